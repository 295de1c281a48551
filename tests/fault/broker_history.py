"""The history of a broker's clients, and the check of a restart against it (in the manner of Jepsen).

A removal (an ack, a purge or the deletion of a queue) that was on disk when the broker died must be in effect. One
that was only requested may be in effect or not. All other confirmed messages must be present, and none that was never
published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

NEVER = 1 << 62


@dataclass(slots=True)
class Sent:
    """One publish. Times are ticks of the history's clock; `sequence` counts a publisher's messages."""

    number: int
    publisher: str
    sequence: int
    persistent: bool
    targets: Sequence[str]
    sent_at: int
    confirmed_at: int = NEVER


@dataclass(slots=True)
class Copy:
    """A message in one queue, as its consumers know it."""

    sent: Sent
    delivered: bool = False
    settled: bool = False  # a client sent an ack or a reject
    settled_for_sure: bool = False  # a later confirm arrived: the settlement is on disk
    recovered: bool = False  # present after a restart: from then on it counts as confirmed
    gone: bool = False  # absent after a restart: it must not reappear


@dataclass(slots=True)
class Removal:
    """A purge, or a deletion, which ends when the queue is declared and bound again."""

    begin: int
    deletes: bool
    held: set[int]  # unacked messages, which a purge does not remove
    end: int = NEVER
    for_sure: bool = False


@dataclass
class History:
    """All operations on the queues, over all restarts of the broker. Shapes: ``copies`` by queue and number."""

    copies: dict[str, dict[int, Copy]]
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.removals: dict[str, list[Removal]] = {queue: [] for queue in self.copies}
        self.sent: dict[int, Sent] = {}
        self.topology_for_sure = False
        self.doubtful = False  # a crash interrupted a deletion: the queue may be missing or unbound
        self._clock = count(1)
        self._numbers = count(1)
        self._sequences: dict[str, int] = {}
        self._last: dict[tuple[str, str], int] = {}
        self._adopted = 0

    # -- reports of clients -----------------------------------------------------------------------------------------

    def publish(self, publisher: str, targets: Sequence[str], *, persistent: bool) -> Sent:
        """Record a message before it is sent."""
        sequence = self._sequences[publisher] = self._sequences.get(publisher, 0) + 1
        sent = Sent(next(self._numbers), publisher, sequence, persistent, targets, next(self._clock))
        for queue in targets:
            self.copies[queue][sent.number] = Copy(sent)
        self.sent[sent.number] = sent
        return sent

    def confirm(self, sent: Sent) -> None:
        """Record a confirm."""
        sent.confirmed_at = next(self._clock)

    def deliver(self, queue: str, number: int, *, redelivered: bool) -> Copy | None:
        """Record a delivery; return None for a message that should not exist."""
        copy = self.copies[queue].get(number)
        if copy is None or copy.gone or copy.settled or self._removed(queue, copy.sent, for_sure=False):
            self.problems.append(f"unexpected: {queue} delivered {number}, which is {copy}")
            return None
        if not redelivered:
            order = (queue, copy.sent.publisher)
            if copy.delivered or copy.recovered:
                self.problems.append(f"unmarked: {queue} delivered {number} again without the redelivered flag, {copy}")
            elif copy.sent.sequence <= self._last.get(order, 0):
                self.problems.append(f"order: {queue} delivered {copy.sent} after {self._last[order]}")
            self._last[order] = copy.sent.sequence
        copy.delivered = True
        return copy

    def begin_removal(self, queue: str, *, deletes: bool, held: Sequence[int] = ()) -> Removal:
        """Record a purge or a deletion before it is requested."""
        removal = Removal(next(self._clock), deletes, set(held))
        self.removals[queue].append(removal)
        return removal

    def end_removal(self, removal: Removal) -> None:
        """Record the end of a removal: messages sent from now on are not removed."""
        removal.end = next(self._clock)

    # -- the check -----------------------------------------------------------------------------------------------------

    def verify(self, found: Mapping[str, Sequence[tuple[int, bool]] | None]) -> None:
        """Compare the queues after an unclean restart with the history, and continue the history from them.

        Shapes: by queue, (number, redelivered) in the order of delivery; None for a missing queue.
        """
        for queue, deliveries in found.items():
            self._verify_queue(queue, deliveries)
        for sent in self.sent.values():
            if sent.number > self._adopted and sent.persistent:
                self._verify_fan_out(sent, found)
        self.doubtful = False
        for queue, deliveries in found.items():
            self.doubtful |= any(one.deletes and not one.for_sure for one in self.removals[queue])
            numbers = {number for number, _ in deliveries or ()}
            for number, copy in self.copies[queue].items():
                copy.recovered = number in numbers
                copy.gone = not copy.recovered
                copy.settled = copy.settled_for_sure = False
            self.removals[queue].clear()
        self._adopted = next(self._numbers)

    def _verify_queue(self, queue: str, deliveries: Sequence[tuple[int, bool]] | None) -> None:
        copies = self.copies[queue]
        removals = self.removals[queue]
        if deliveries is None:
            if self.topology_for_sure and not any(one.deletes and not one.for_sure for one in removals):
                self.problems.append(f"topology: {queue} is missing")
            deliveries = []
        seen: dict[int, bool] = {}
        last: dict[str, int] = {}
        for number, redelivered in deliveries:
            copy = copies.get(number)
            if copy is None or number in seen or not copy.sent.persistent:
                self.problems.append(f"unexpected: {queue} has {number}, which is {copy}, seen: {number in seen}")
                continue
            seen[number] = redelivered
            if not redelivered:
                self.problems.append(f"unmarked: {queue} has {number} after a crash without the redelivered flag")
            if copy.gone or copy.settled_for_sure or self._removed(queue, copy.sent, for_sure=True):
                self.problems.append(f"back: {queue} has {number}, which is {copy}, {removals}")
            if copy.sent.sequence <= last.get(copy.sent.publisher, 0):
                self.problems.append(f"order: {queue} has {copy.sent} after {last[copy.sent.publisher]}")
            last[copy.sent.publisher] = copy.sent.sequence
        for number, copy in copies.items():
            safe = copy.recovered or (copy.sent.confirmed_at != NEVER and copy.sent.persistent and not copy.gone)
            if safe and number not in seen and self._stays(queue, copy):
                self.problems.append(f"lost: {queue} lacks {number}, which is {copy}, {removals}")

    def _verify_fan_out(self, sent: Sent, found: Mapping[str, Sequence[tuple[int, bool]] | None]) -> None:
        present = {
            queue: any(number == sent.number for number, _ in found[queue] or ())
            for queue in sent.targets
            if self._stays(queue, self.copies[queue][sent.number])
        }
        if len(set(present.values())) > 1:
            self.problems.append(f"torn: {sent} reached only some of its queues, {present}")

    def _stays(self, queue: str, copy: Copy) -> bool:
        """Return whether the copy was neither settled nor covered by a requested purge or deletion."""
        return not copy.settled and all(removal.end < copy.sent.sent_at for removal in self.removals[queue])

    def _removed(self, queue: str, sent: Sent, *, for_sure: bool) -> bool:
        since = 0 if self.copies[queue][sent.number].recovered else sent.confirmed_at
        return any(
            since < removal.begin
            and sent.number not in removal.held
            and (removal.for_sure if for_sure else removal.end != NEVER)
            for removal in self.removals[queue]
        )


def padding(random: Random) -> bytes:
    """Return padding that makes bodies differ in length."""
    return bytes(random.choice((0, 10, 90, 700)))
