"""One run: clients work on all nodes while faults happen; then the queues are drained and the history is judged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

from tests.broker_process import BrokerAddress
from tests.cluster.checker.analysis import Analysis
from tests.cluster.checker.conversation import Conversation, Gone
from tests.cluster.checker.crew import (
    DEAD,
    DELAY_MAX_MS,
    EXPIRING,
    LATE,
    ORDERED,
    QUEUES,
    Consuming,
    Fetching,
    Governing,
    Member,
    Moving,
    Publishing,
    Work,
    declare,
)
from tests.cluster.checker.history import History
from tests.cluster.checker.system import System
from tests.deadline import wait_until

DRAIN_PREFETCH: Final = 1000
DRAIN_DEADLINE_S: Final = 60.0


class Fault(Protocol):
    """Injects a fault, which is over when the call returns; returns a description for the report."""

    def __call__(self, run: Run) -> str: ...


def crew(system: System, publishers: int) -> dict[str, Work]:
    """Return the work of each member, by name."""
    members: dict[str, Work] = {f"publisher-{number}": Publishing() for number in range(publishers)}
    members |= {f"shared-{number}": Consuming("shared") for number in range(3)}
    members |= {f"mover-{number}": Moving() for number in range(2)}
    members |= {f"operator-{number}": Governing(system.ask) for number in range(2)}
    return members | {
        "ordered": Consuming("ordered"),
        "fetcher": Fetching("fetched"),
        "rejecter": Consuming("rejecting", rejects=0.3),
        "undertaker": Consuming("dead"),
        "limited": Consuming("limited"),
        "brief": Consuming("brief"),
        "expired": Consuming("expired"),
        "late": Consuming("late"),
        "moved": Consuming("moved-1"),
    }


class Run:
    """Clients of a system with recorded actions. The seed determines the actions and the faults.

    `reports` has a line for each fault; `drains_in_order` says that no session was lost in the drain.
    `progress` is how many confirms and settlements must follow each fault: the cluster works again.
    """

    def __init__(self, system: System, seed: int, works: dict[str, Work] | None = None, *, progress: int = 30) -> None:
        self.system = system
        self.seed = seed
        self.random = Random(seed)
        self.history = History()
        self.reports: list[str] = []
        self.progress = progress
        self.drains_in_order = True
        works = crew(system, publishers=3) if works is None else works
        self.members = [
            Member(name, system.running, self.history, f"{seed} {name}", work) for name, work in works.items()
        ]

    def __repr__(self) -> str:
        last = ", ".join(self.reports[-3:])
        return f"seed {self.seed}, {len(self.reports)} faults ({last}), {self.history.figures()}"

    def begin(self) -> None:
        """Declare the queues and let the clients work."""
        declare(self.system.running()[0][1])
        for member in self.members:
            member.start()
        self.await_progress()

    def suffer(self, faults: Sequence[Fault], check: Callable[[], Sequence[str]] = tuple) -> None:
        """Inject the faults in turn; after each, assert that work continues and that `check` finds nothing."""
        for fault in faults:
            time.sleep(self.random.random() * 0.1)  # the time of the fault, not a wait for an event
            began = time.monotonic()
            self.reports.append(fault(self))
            self.await_progress()
            self.reports[-1] += f" ({time.monotonic() - began:.1f} s)"
            found = check()
            assert not found, f"{self!r}: {found}"

    def await_progress(self) -> None:
        """Wait until `progress` messages were confirmed and settled since the call."""
        confirms, settlements = self.history.confirms + self.progress, self.history.settlements + self.progress

        def is_enough() -> bool:
            self._check_members()
            return self.history.confirms >= confirms and self.history.settlements >= settlements

        try:
            self.system.await_(is_enough, f"{self.progress} confirms and settlements, {self!r}")
        except AssertionError as error:
            missing = confirms - self.history.confirms, settlements - self.history.settlements
            states = [f"missing confirms and settlements: {missing}", *map(str, self.members), self.system.remains()]
            error.add_note("\n".join(states))
            raise

    def end(self) -> None:
        """End the clients, drain the queues and assert that the history has no faults."""
        if any(isinstance(member.work, Governing) for member in self.members):
            self.system.await_(lambda: self.history.changes > 0, f"a change of the definitions is answered, {self!r}")
        for member in self.members:
            member.leaving.set()
        for member in self.members:
            member.join(60)
            assert not member.is_alive(), f"{member.name} does not leave, {self!r}"
        self._check_members()
        time.sleep(DELAY_MAX_MS / 1000)  # the longest delay of a message, not a wait for an event
        try:
            self.system.await_(self.system.agrees, f"all nodes have the same definitions, {self!r}")
            self.system.await_(self.system.is_at_rest, f"no node holds a message without clients, {self!r}")
        except AssertionError as error:
            error.add_note(self.system.remains())
            raise
        self._drain()
        verdict = Analysis(
            self.history,
            ordered=ORDERED,
            dead=DEAD,
            expiring=EXPIRING,
            late=LATE,
            drains_in_order=self.drains_in_order,
            stops=self.system.stops,
            rewinds=self.system.rewinds,
        ).judge()
        assert not verdict.faults, f"{self!r}\n{self.reports}\n{verdict.report()}"

    def _check_members(self) -> None:
        for member in self.members:
            if member.error is not None:
                raise AssertionError(f"{member.name}: {member.error!r}, {self!r}") from member.error

    def _drain(self) -> None:
        empty = threading.Event()
        errors: list[BaseException] = []
        nodes = self.system.running()
        threads = []
        for queue in QUEUES:
            arguments = queue, self.random.sample(nodes, len(nodes)), empty, errors
            threads.append(threading.Thread(target=self._drain_queue, args=arguments, daemon=True))
        for thread in threads:
            thread.start()
        end = time.monotonic() + DRAIN_DEADLINE_S
        while not self.system.is_empty() and time.monotonic() < end and not errors:
            time.sleep(0.05)
        empty.set()
        for thread in threads:
            thread.join(60)
        assert not errors, f"{errors}, {self!r}"
        try:
            wait_until(self.system.is_empty, f"every message is settled after the drain, {self!r}")
        except AssertionError as error:
            error.add_note(self.system.remains())
            raise

    def _drain_queue(
        self,
        queue: str,
        nodes: Sequence[tuple[str, BrokerAddress]],
        empty: threading.Event,
        errors: list[BaseException],
    ) -> None:
        """Consume and ack everything of a queue until all queues are empty.

        A node may starve on a busy machine until the others declare it dead; then the next node is used.
        """
        lost: list[Gone] = []
        try:
            for node, address in nodes:
                try:
                    _consume_all(Conversation(address, self.history, f"drain-{queue}", node), queue, empty)
                except Gone as gone:
                    self.reports.append(f"drain of {queue} on {node}: {gone}")
                    self.drains_in_order = False
                    lost.append(gone)
                else:
                    return
            errors += lost
        except BaseException as error:  # noqa: BLE001 - handed to the test, which fails
            errors.append(error)


def _consume_all(talk: Conversation, queue: str, empty: threading.Event) -> None:
    try:
        tag = talk.consume(queue, DRAIN_PREFETCH)
        while not empty.is_set():
            talk.pump(0.05)
            _settle(talk)
        talk.cancel(tag)
        _settle(talk)
        talk.close()
    finally:
        talk.drop()


def _settle(talk: Conversation) -> None:
    held = [*talk.inbox]
    talk.inbox.clear()
    for _, delivery in held:
        delivery.drained = True
    if held:
        talk.settle(held[-1][0], [delivery for _, delivery in held], multiple=True)
