"""The order of a benchmark: stages, rounds, turns, failures and the time limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from bench.brokers import Broker
from bench.meter import Figures
from bench.scenario import Limits, NotOffered
from bench.suite import Suite
from broker.perf.crew import RunFailed
from broker.perf.peer import Address


@dataclass
class Scripted:
    """A scenario that records the measured brokers and fails on request."""

    name: str
    stage: str = "one"
    rounds: int = 99
    relayed: bool = False
    record_bytes: int = 0
    title: str = ""
    fails_for: str = ""
    offered: bool = True
    seen: list[str] = field(default_factory=list)

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        self.seen.append(broker.name)
        if broker.name == self.fails_for:
            raise RunFailed("as told")
        if not self.offered:
            raise NotOffered
        return {"cpu_us": 1.0}

    def least_calls(self, limits: Limits) -> None:
        """Return nothing."""


def suite(
    *scenarios: Scripted, rounds: int = 2, deadline: float = inf, together: bool = False
) -> tuple[Suite, list[str]]:
    """Return a suite of the brokers A and B, and the list of its started stages."""
    started: list[str] = []

    @contextmanager
    def start(stage: str) -> Iterator[list[Broker]]:
        started.append(stage)
        yield [Broker(name, Address("127.0.0.1", 1)) for name in "AB"]

    return Suite(start, scenarios, Limits(rounds=rounds), deadline, lambda _: None, together), started


def test_brokers_take_turns() -> None:
    """The order is A B, then B A, so that no broker is always first; a broker with one run has one."""
    often, once = Scripted("often"), Scripted("once", rounds=1)
    made, _ = suite(often, once)
    made.run()
    assert (often.seen, once.seen) == (["A", "B", "B", "A"], ["A", "B"])
    assert [(run.round, run.scenario, run.broker) for run in made.runs] == [
        (0, "often", "A"), (0, "often", "B"), (0, "once", "A"), (0, "once", "B"), (1, "often", "B"), (1, "often", "A")
    ]  # fmt: skip


def test_each_stage_has_fresh_brokers() -> None:
    """Scenarios of a stage share its brokers, also with others in between; a quick run has one stage."""
    scenarios = [Scripted("a", "flow"), Scripted("b", "memory"), Scripted("c", "flow")]
    made, started = suite(*scenarios)
    made.run()
    assert started == ["flow", "memory"]
    assert [run.scenario for run in made.runs[:4]] == ["a", "a", "c", "c"]
    made, started = suite(*scenarios, together=True)
    made.run()
    assert len(started) == 1


def test_a_broker_is_left_out_where_it_is_skipped_or_offers_nothing() -> None:
    """A skipped broker has no run and no failure, and neither has one without the port that a scenario needs."""
    asked, refused = Scripted("asked"), Scripted("refused", offered=False)
    made, _ = suite(asked, refused, rounds=1)
    made.skips = lambda broker, _: broker.name == "A"
    made.run()
    assert (asked.seen, refused.seen, made.failures) == (["B"], ["B"], [])
    assert [run.scenario for run in made.runs] == ["asked"]


def test_a_failed_run_is_kept_and_the_next_one_goes_on() -> None:
    """The failure names scenario and broker, and the other broker is measured."""
    made, _ = suite(Scripted("a", fails_for="A"), rounds=1)
    made.run()
    assert made.failures == ["A, a: as told"]
    assert [run.broker for run in made.runs] == ["B"]


def test_nothing_begins_after_the_deadline() -> None:
    """After the deadline no run starts, and the report says so."""
    scenario = Scripted("a")
    made, started = suite(scenario, deadline=0.0)
    made.run()
    assert (scenario.seen, started, made.cut_short) == ([], [], True)


def test_only_what_can_be_relayed_meets_the_relay() -> None:
    """The relay is measured once per scenario that it can run."""
    yes, no = Scripted("yes", relayed=True), Scripted("no")
    made, _ = suite(yes, no)
    made.run_ceiling(Broker("relay", Address("127.0.0.1", 1), relay=True))
    assert (yes.seen, no.seen) == (["relay"], [])
