"""A holding level: messages that wait until they are due, and their release in the order of their due moments.

An x-delayed-message exchange has a holding queue with such a level. A queue whose messages wait for a retry, or until a
time in a header, has one in addition to its other levels. Held messages are ready messages of the slot manager, so they
are stored, paged out, counted and purged like all others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from broker.core.message.delay import due_ms_of
from broker.core.message.message import Message
from broker.core.queue.due_moments import DueMoments, Moment, SlotMoments
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.event_log import get_logger
from broker.slots.redeliveries import ReturnRun
from broker.slots.slot import Slot
from broker.slots.states import Tenure

_log = get_logger()

RELEASE_SHARE: Final = 4  # units of the turn's share for one due message
INDEX_SHARE: Final = 16  # units for indexing the next messages of a slot
FETCH_MESSAGES: Final = 256  # at most this many due messages are read from disk at once
FETCH_BYTES: Final = 4 << 20  # at most this many octets of messages are read at once, unless a single message is larger
Place = tuple[Slot, int]  # a slot, and the index of a message
_FOR_EVER: Final = 1 << 62  # later than every moment


class Holding:
    """Release the messages of one holding level when they are due. Whole slots are not read from disk for that: their
    entries in the queue log show which messages are due next, and many due messages are read at once.
    Units: ``_early`` is the number of messages that remain to be released early for an operator. ``_last_ms`` is the
        latest due moment of all messages held since the level was last empty.
    Invariant: after startup, nothing is released until the first moment of each existing slot is known.
    Cost: the memory of DueMoments and of one batch of due messages.
    """

    def __init__(self, ports: QueuePorts[Level, Any], level: Level) -> None:
        self._ports = ports
        self._moments = DueMoments()
        self._unread: deque[Slot] = deque()  # slots that existed at startup and whose moments are unknown
        self._fetched: deque[tuple[int, Slot, Message | None]] = deque()  # due messages in memory
        self._reading = False
        self._early = 0
        self._last_ms = 0
        self.level = level

    @property
    def count(self) -> int:
        return self.level.manager.ready

    @property
    def next_ms(self) -> int | None:
        """The earliest moment at which a message may be due, or None if there is none or it is not known yet."""
        return self._moments.next_ms if self.count else None

    @property
    def last_ms(self) -> int | None:
        """The latest moment at which a message may be due, or None if there is none or it is not known yet."""
        return self._last_ms or None if self.count else None

    @abstractmethod
    def send(self, held: Message, returns: ReturnRun | None) -> None:
        """Send a due message to its destination. `returns` states how often it was returned, or is None."""

    def keep(self, message: Message, due_ms: int, number: bytes = b"", returns: ReturnRun | None = None) -> Place:
        """Hold a message until it is due, and return its slot and index.

        Shapes: `number` is a producer's sequence number, which precedes the targets in the record, or empty. `returns`
            is passed to `send` later.
        """
        self._forget_purged()
        slot, index = self._ports.accept(message, self.level, due_ms, number)
        if returns is not None:
            self.level.note_returns(slot, index, returns)
        self._last_ms = max(self._last_ms, due_ms)
        self._moments.add(slot, slot.first + index, due_ms)
        self._arm()
        return slot, index

    def gather(self) -> None:
        """Read the moments of the messages that were held before the broker started."""
        self._unread.extend(self.level.manager.slots.values())
        self._gather()

    def _gather(self) -> None:
        while self._unread:
            slot = self._unread[0]
            if slot.contents is None and not _is_gone(slot):
                self._read_moments(slot, self._gathered)
                return
            self._gathered(slot, _in_memory(slot))
        self._arm()

    def _gathered(self, slot: Slot, moments: Iterable[Moment]) -> None:
        self._unread.popleft()
        known = list(moments)
        self._last_ms = max([self._last_ms, *[due_ms for due_ms, _ in known]])
        self._moments.begin(slot, known)

    def close(self) -> None:
        """Discard all state, because the level was deleted."""
        self._forget()
        self._ports.deadlines.cancel(self)

    def release_early(self, count: int) -> int:
        """Schedule the release of up to `count` messages before they are due, and return their number."""
        self._forget_purged()
        count = min(count, self.count - self._early)
        self._early += count
        self._arm()
        return count

    def _arm(self) -> None:
        deadlines = self._ports.deadlines
        next_ms = self._ports.clock.now_ms if self._fetched or self._early else self._moments.next_ms
        if self._reading or next_ms is None:
            deadlines.cancel(self)
        else:
            deadlines.set(self, next_ms, self.release)

    def release(self) -> None:
        """Release due messages within the turn's share."""
        self._forget_purged()
        deadlines = self._ports.deadlines
        while deadlines.units_left > 0 and not self._reading:
            now_ms = _FOR_EVER if self._early else self._ports.clock.now_ms
            if self._fetched:
                self._release_fetched()
            elif (known := self._moments.hidden(now_ms)) is not None:
                deadlines.spend(INDEX_SHARE)
                self._index_slot(known, self._ports.clock.now_ms)
            elif (taken := self._moments.take(now_ms)) is not None:
                self._fetch(taken, now_ms)
            else:
                self._early = 0
                break
        self._arm()

    # -- on disk ------------------------------------------------------------------------------------------------------

    def _index_slot(self, known: SlotMoments, now_ms: int) -> None:
        """Index the next messages of a slot."""
        slot = known.slot
        if known.next is not None and known.next[0] > now_ms:
            now_ms = known.next[0]  # messages are released early on an operator's order
        if _is_gone(slot):
            self._moments.forget(slot)
        elif slot.contents is None:
            self._read_moments(slot, lambda _slot, moments: self._moments.index(known, moments, now_ms))
        else:
            self._moments.index(known, _in_memory(slot), now_ms)

    def _read_moments(self, slot: Slot, then: Callable[[Slot, Iterable[Moment]], None]) -> None:
        self._reading = True
        self._ports.moments(self.level, slot, partial(self._moments_were_read, slot, then))

    def _moments_were_read(
        self, slot: Slot, then: Callable[[Slot, Iterable[Moment]], None], due_ms: Sequence[int]
    ) -> None:
        self._reading = False
        if not self.level.deleted:
            ready: Iterable[int] = () if _is_gone(slot) else slot.acks.unsettled(0, slot.length)
            then(slot, [(due_ms[index], slot.first + index) for index in ready])
            self._gather()

    def _fetch(self, first: tuple[int, int, Slot], now_ms: int) -> None:
        """Take a batch of due messages, the given one first, and read those on disk."""
        batch = [first]
        limit = min(FETCH_MESSAGES, self._early or FETCH_MESSAGES)
        while len(batch) < limit and (taken := self._moments.take(now_ms)) is not None:
            batch.append(taken)
        wanted = [(message_id, slot) for _, message_id, slot in batch if _is_on_disk(slot, message_id)]
        if wanted:
            self._reading = True
            self._ports.fetch(self.level, wanted, partial(self._were_fetched, batch))
        else:
            self._were_fetched(batch, {})

    def _were_fetched(self, batch: Sequence[tuple[int, int, Slot]], found: Mapping[int, Message | None]) -> None:
        """Queue the due messages for release, up to the first one that was not read; put back the rest."""
        self._reading = False
        if self.level.deleted:
            return
        for place, (_, message_id, slot) in enumerate(batch):
            if message_id in found:
                self._fetched.append((message_id, slot, found[message_id]))
            elif slot.contents is not None:
                self._fetched.append((message_id, slot, slot.contents[message_id - slot.first]))
            elif _is_on_disk(slot, message_id):
                for moment in batch[place:]:
                    self._moments.put_back(*moment)
                break
        self._arm()

    # -- release ------------------------------------------------------------------------------------------------------

    def _release_fetched(self) -> None:
        """Release due messages that are in memory. Their settlements and their new records are one transaction."""
        deadlines, level = self._ports.deadlines, self.level
        with self._ports.transaction():
            while self._fetched and deadlines.units_left > 0:
                deadlines.spend(RELEASE_SHARE)
                self._release(*self._fetched.popleft())
            level.log_settlements()

    def _release(self, message_id: int, slot: Slot, message: Message | None) -> None:
        level, index = self.level, message_id - slot.first
        if _is_gone(slot) or index in slot.acks:  # it was purged
            return
        self._early = max(0, self._early - 1)
        returns = slot.returns_of((index,))
        level.lose(slot, (index,))  # before `send`, because held messages count towards the limit of the queue, too
        if _is_gone(slot):
            self._moments.forget(slot)
        if message is not None:
            self.send(message, returns[0] if returns else None)
        else:
            _log.error("messages.lost", queue=level.queue.name, slot=slot.first, count=1)

    def _forget_purged(self) -> None:
        if not self.count and not self._reading:
            self._forget()

    def _forget(self) -> None:
        self._early = self._last_ms = 0
        self._moments.clear()
        self._unread.clear()
        self._fetched.clear()


def _is_gone(slot: Slot) -> bool:
    return slot.tenure is Tenure.DELETED


def _in_memory(slot: Slot) -> Iterable[Moment]:
    """Yield the moments of the ready messages of a slot that is in memory."""
    for index, message in enumerate(slot.contents or ()):
        if message is not None:
            yield due_ms_of(message), slot.first + index


def _is_on_disk(slot: Slot, message_id: int) -> bool:
    """Return whether a message is unsettled and not in memory."""
    return slot.contents is None and not _is_gone(slot) and message_id - slot.first not in slot.acks
