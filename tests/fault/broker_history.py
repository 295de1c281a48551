"""What clients did and saw, and what must be true of a broker after any accident (in the manner of Jepsen).

A removal (an ack, a purge, the deletion of a queue) that was on disk for sure when the broker died must hold; one that
was asked for may hold or not. Everything else that was confirmed must be there, and nothing that nobody sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

NEVER = 1 << 62


@dataclass(slots=True)
class Sent:
    """One publish. Units: times are ticks of the history's clock; `sequence` counts a publisher's messages."""

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
    settled: bool = False  # somebody sent an ack, or rejected it
    settled_for_sure: bool = False  # and a confirm came behind it: the settlement is on disk
    recovered: bool = False  # a restart found it: from then on it is as good as confirmed
    gone: bool = False  # a restart did not find it: it may not come back


@dataclass(slots=True)
class Removal:
    """A purge, or the time from the deletion of a queue until it is bound again."""

    begin: int
    deletes: bool
    held: set[int]  # unacked meanwhile: a purge leaves them
    end: int = NEVER
    for_sure: bool = False


@dataclass
class History:
    """Everything that happened to the queues, over all lives of the broker. Shapes: ``copies`` by queue and number."""

    copies: dict[str, dict[int, Copy]]
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.removals: dict[str, list[Removal]] = {queue: [] for queue in self.copies}
        self.sent: dict[int, Sent] = {}
        self.topology_for_sure = False
        self.doubtful = False  # the accident cut a deletion short: the queue is there or not, bound or not
        self._clock = count(1)
        self._numbers = count(1)
        self._sequences: dict[str, int] = {}
        self._last: dict[tuple[str, str], int] = {}
        self._adopted = 0

    # -- what clients tell --------------------------------------------------------------------------------------------

    def publish(self, publisher: str, targets: Sequence[str], *, persistent: bool) -> Sent:
        """Note a message that is about to be sent."""
        sequence = self._sequences[publisher] = self._sequences.get(publisher, 0) + 1
        sent = Sent(next(self._numbers), publisher, sequence, persistent, targets, next(self._clock))
        for queue in targets:
            self.copies[queue][sent.number] = Copy(sent)
        self.sent[sent.number] = sent
        return sent

    def confirm(self, sent: Sent) -> None:
        """Note a confirm."""
        sent.confirmed_at = next(self._clock)

    def deliver(self, queue: str, number: int, *, redelivered: bool) -> Copy | None:
        """Note a delivery; tells None when there should be no such message."""
        copy = self.copies[queue].get(number)
        if copy is None or copy.gone or copy.settled or self._removed(queue, copy.sent, for_sure=False):
            self.problems.append(f"unexpected: {queue} delivered {number}, which is {copy}")
            return None
        if not redelivered:
            order = (queue, copy.sent.publisher)
            if copy.delivered or copy.recovered:
                self.problems.append(f"unmarked: {queue} delivered {number} again as if for the first time, {copy}")
            elif copy.sent.sequence <= self._last.get(order, 0):
                self.problems.append(f"order: {queue} delivered {copy.sent} after {self._last[order]}")
            self._last[order] = copy.sent.sequence
        copy.delivered = True
        return copy

    def begin_removal(self, queue: str, *, deletes: bool, held: Sequence[int] = ()) -> Removal:
        """Note a purge or a deletion that is about to be asked for."""
        removal = Removal(next(self._clock), deletes, set(held))
        self.removals[queue].append(removal)
        return removal

    def end_removal(self, removal: Removal) -> None:
        """Note that it is over: what is sent from now on stays."""
        removal.end = next(self._clock)

    # -- what must be true --------------------------------------------------------------------------------------------

    def verify(self, found: Mapping[str, Sequence[tuple[int, bool]] | None]) -> None:
        """Compare what a restart after an unclean stop found, and takes it for the truth from then on.

        Shapes: by queue, (number, redelivered) in the order of delivery; None when there is no such queue.
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
                self.problems.append(f"topology: {queue} is gone")
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
                self.problems.append(f"unmarked: {queue} has {number} after an unclean stop as if it were fresh")
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
        there = {
            queue: any(number == sent.number for number, _ in found[queue] or ())
            for queue in sent.targets
            if self._stays(queue, self.copies[queue][sent.number])
        }
        if len(set(there.values())) > 1:
            self.problems.append(f"torn: {sent} reached some of its queues only, {there}")

    def _stays(self, queue: str, copy: Copy) -> bool:
        """Return whether nobody asked for this copy to go, so that it is there if its message is."""
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
    """Return what makes bodies differ in length."""
    return bytes(random.choice((0, 10, 90, 700)))
