"""Exchanges, queues and keys of a run, as they follow from the flags."""

from __future__ import annotations

import argparse

import pytest

from broker.perf.faults import BadOptions
from broker.perf.flags import spread
from broker.perf.parts import Load
from broker.perf.scenarios.messages import add_throughput, addressed
from broker.perf.topology import addressing_of


def options(*words: str) -> argparse.Namespace:
    """Return the options of a throughput run's command line."""
    commands = argparse.ArgumentParser().add_subparsers()
    add_throughput(commands)
    parsed: argparse.Namespace = commands.choices["throughput"].parse_args(words)
    return parsed


def load(*words: str) -> Load:
    """Return the load of a throughput run."""
    return addressed(options(*words))[1]


@pytest.mark.parametrize(
    ("queues", "consumers", "each"),
    [
        (["a"], 3, (("a",), ("a",), ("a",))),
        (["a", "b"], 3, (("a",), ("b",), ("a",))),
        (["a", "b", "c"], 2, (("a", "c"), ("b",))),
        (["a", "b"], 0, ()),
    ],
)
def test_queues_are_spread_over_consumers(queues: list[str], consumers: int, each: tuple[tuple[str, ...], ...]) -> None:
    """If there are enough consumers, each queue has one."""
    assert spread(queues, consumers) == each


def test_a_number_of_messages_is_shared_to_the_last_one() -> None:
    """Seven publishers in two processes publish 100 messages in all, and none waits for another's schedule."""
    whole = load("-x", "7", "--processes", "2", "-C", "100", "-r", "10")
    shares = whole.publish_shares()
    numbers = [number for share in shares for number in share.numbers]
    assert (len(shares), numbers) == (2, list(range(7)))
    assert sum(whole.pace(number).messages or 0 for number in numbers) == 100
    assert len({whole.stagger_s(number) for number in numbers}) == 7


def test_a_number_to_consume_is_counted_by_one_process() -> None:
    """One process counts all consumed messages, because no other knows how many are left."""
    assert len(load("-y", "5", "--processes", "2", "-D", "10").consume_shares()) == 1
    assert len(load("-y", "5", "--processes", "2").consume_shares()) == 2


def test_named_things_are_not_the_runs_own() -> None:
    """Named queues and exchanges are kept; predeclared exchanges are not even bound."""
    given = options("-u", "mine", "-e", "ours", "-k", "a.b")
    topology, _, _ = addressing_of(given)
    assert (topology.own_queues, topology.own_exchange) == (False, False)
    assert topology.bindings == (("mine", "a.b"),)
    given = options("-u", "mine", "-e", "ours", "-k", "a.b", "-p")
    assert addressing_of(given)[0].bindings == ()


def test_time_ends_a_run_unless_a_number_does() -> None:
    """A run lasts ten seconds by default; with a number of messages, or with -z 0, it has no time limit."""
    assert [load(*words).seconds for words in ((), ("-C", "5"), ("-z", "0"), ("-z", "3", "-C", "5"))] == [
        10.0, None, None, 3.0,
    ]  # fmt: skip


def test_how_many_copies_is_known_or_not() -> None:
    """Limits, foreign bindings and keys of no queue make the number of copies unknown."""
    cases: dict[tuple[str, ...], int | None] = {
        (): 1,
        ("--keys", "5"): 1,
        ("-t", "fanout", "--keys", "1", "--queues", "4"): 4,
        ("-k", "elsewhere"): None,
        ("--queue-args", "x-max-length=5"): None,
        ("-e", "theirs", "-u", "mine", "-p"): None,
        ("-u", "mine", "-p"): 1,
    }
    assert {words: load(*words).copies for words in cases} == cases


@pytest.mark.parametrize(
    "words", [["-u", "q" * 253, "--queues", "2"], ["--keys", "100", "-k", "k" * 252], ["-p"], ["-x", "0"]]
)
def test_what_amqp_cannot_carry_or_nobody_named_is_refused(words: list[str]) -> None:
    """An invalid value or a missing name is refused before anything is created."""
    with pytest.raises(BadOptions):
        addressing_of(options(*words))
