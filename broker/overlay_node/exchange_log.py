"""One stream of the overlay on disk: the messages of a stream queue by their numbers, and the changes of its vector.

Reading settles nothing. Messages that all brokers have are trimmed from the front; the vector in force there stays.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final

from broker.amqp.header_edit import encode_header
from broker.amqp.header_facts import MISSING, NO_PRIORITY, plain_facts
from broker.core.message.message import OVERHEAD_BYTES, Envelope, Message, copies_of
from broker.core.publishing.message_store import Targets
from broker.event_log import get_logger
from broker.overlay.packets import Data, Element, Vector, VectorChange
from broker.overlay.source import LogPart
from broker.slots.slot import Slot, dense

if TYPE_CHECKING:
    from broker.core.queue.kinds import OverlayQueue
    from broker.core.vhost import Vhost

_log = get_logger()

VECTORS_OF: Final = "amq.overlay.vectors."  # producers of the broker: the number of the last change of the vector,
LOST_OF: Final = "amq.overlay.lost."  # ... and the last number that may have been dropped too early
PASSAGE_MS: Final = 100  # the time that a link needs while it is up; shorter expirations count from the arrival
FETCH_MESSAGES: Final = 1000
SLOTS_AT_ONCE: Final = 32  # slots trimmed in one turn
VECTORS: Final = "amq.slotmq.vector"  # no exchange: the messages of clients never have it
ENVELOPE: Final = Envelope(VECTORS, "")


def vector_message(old: Vector, new: Vector, incarnation: int, previous: int, now_ms: int) -> Message:
    """Return the message of a change. Shapes: `previous` is the number of the change before it, 0 if there is none."""
    change = {"previous": previous, "old": dict(old), "new": dict(new), "incarnation": incarnation}
    body = json.dumps(change, separators=(",", ":")).encode()
    header = encode_header({"delivery_mode": 2}, len(body))
    facts = plain_facts(persistent=True, priority=NO_PRIORITY, expiration_ms=None)
    return Message(ENVELOPE, header, body, OVERHEAD_BYTES + len(header) + len(body), facts, now_ms)


def is_vector_change(message: Message) -> bool:
    """Return whether a message of a stream queue is a change of its vector."""
    return message.envelope.exchange == VECTORS


def vector_change(number: int, message: Message) -> VectorChange:
    """Return the vector change that a message encodes."""
    written = json.loads(message.body)
    return VectorChange(number, written["old"], written["new"], written["incarnation"])


def previous_change(message: Message) -> int:
    """Return the number of the change before this one, 0 if there is none."""
    return int(json.loads(message.body)["previous"])


class ExchangeLog:
    """Read, extend and trim the stream of one exchange.

    Invariant: numbers are dense and never used twice. The last change of the vector at or below each trimmed number is
        kept. Numbers up to ``lost`` may have been dropped before all brokers had them.
    Cost: reading costs the messages read, and the slots between the front, or the end, and the place.
    """

    def __init__(self, vhost: Vhost, queue: OverlayQueue) -> None:
        self._vhost = vhost
        self.queue = queue
        self._stream = queue.level
        self._manager = queue.level.manager
        self._targets = Targets((queue.level,))
        self._vectors = vhost.producers.own(VECTORS_OF + queue.exchange)
        self._lost = vhost.producers.own(LOST_OF + queue.exchange)
        if self._manager.next_id < queue.first_number:
            self._stream.lose_sealed(queue.first_number)
        self.changes: list[VectorChange] = []  # those still kept, ascending
        self._fetched: dict[int, Message | None] = {}
        self._fetching = False
        self._ready: Callable[[], None] = lambda: None
        self._appended: Callable[[], None] = lambda: None
        self.durable = 0  # the highest number on disk, once the driver knows
        self.ended = False
        self.trimmed = queue.first_number - 1  # everything up to here was trimmed, or will be in the next turns
        self._front: tuple[int, int] | None = None  # the first slot, and when its last message came

    def when_ready(self, ready: Callable[[], None], appended: Callable[[], None] = lambda: None) -> None:
        """Call `ready` whenever messages were read from disk, for a read that returned None.

        Call `appended` for each vector that is appended.
        """
        self._ready = ready
        self._appended = appended

    @property
    def last(self) -> int:
        """The last number of the stream, 0 at first. It may not be on disk yet."""
        return self._manager.next_id - 1

    @property
    def first(self) -> int:
        """The first kept number, except for a vector that is kept alone; `last` + 1 if there is none."""
        for slot in self._manager.slots.values():
            for number in _numbers(slot, slot.first, slot.end):
                if number > self.trimmed:
                    return number
        return self._manager.next_id

    @property
    def lost(self) -> int:
        """The number up to which messages may have been dropped before all brokers had them; 0 if none was."""
        return 0 if self.ended else max(self._lost.reached, 0)

    def became_durable(self, upto: int) -> None:
        """Record that the stream is on disk up to a number."""
        if not self.ended:
            self.durable = max(self.durable, upto)

    def end(self) -> None:
        """End the stream with its vhost: its numbers are unwanted from now on, and nothing is kept for it."""
        self.before_next(None)
        self.ended = True
        self.trimmed = self.durable

    # -- the vector ---------------------------------------------------------------------------------------------------

    def append_vector(self, old: Vector, new: Vector, incarnation: int) -> int:
        """Append a change of the vector and return its number, which is on disk with the next commit."""
        if self.ended:
            self.durable = self.trimmed = self.durable + 1
            return self.durable
        assert self._stream.before_next is None, "another change would get this number"
        previous = self.changes[-1].number if self.changes else 0
        number = self._manager.next_id
        message = vector_message(old, new, incarnation, previous, self._vhost.ports.clock.now_ms)
        self._vectors.sequences.add(number, message.timestamp_ms)
        self._vhost.store.accept([message], [self._targets], [1], self._vectors.target(number))
        self.changes.append(VectorChange(number, dict(old), dict(new), incarnation))
        self._appended()
        return number

    def before_next(self, call: Callable[[], None] | None) -> None:
        """Call a function once, right before the next message gets its number or the stream ends."""
        if not self.ended:
            self._stream.call_before_next(None if call is None else lambda _stream: call())

    def change_at(self, number: int) -> int:
        """Return the number of the change in force before a number, 0 if there is none."""
        place = bisect_right(self.changes, number - 1, key=attrgetter("number"))
        return self.changes[place - 1].number if place else 0

    def recover(self, done: Callable[[], None]) -> None:
        """Find the changes of the vector that the stream has after a start, then call `done`."""
        number = self._vectors.reached
        if number > 0:
            self._find_change(number, done)
        else:
            done()

    def _find_change(self, number: int, done: Callable[[], None]) -> None:
        """Find the vector change with a number, and the kept ones before it."""
        while number > 0:
            slot = next(self._slots_from(number), None)
            if slot is None or number not in _numbers(slot, number, number + 1):
                break
            if slot.contents is None and number not in self._fetched:
                self._fetch([(number, slot)], partial(self._find_change, number, done))
                return
            message = self._message(slot, number)
            if message is None:
                break
            self.changes.insert(0, vector_change(number, message))
            number = previous_change(message)
        self.trimmed = self._find_trimmed()
        done()

    def _find_trimmed(self) -> int:
        """Return the number up to which the stream was trimmed before the start: the first gap after a vector."""
        present = (number for slot in self._manager.slots.values() for number in _numbers(slot, slot.first, slot.end))
        first = next(present, self._manager.next_id)
        if first != (self.changes[0].number if self.changes else 0):
            return first - 1
        following = next(present, self._manager.next_id)
        return first - 1 if following == first + 1 else following - 1

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, first: int, last: int, limit_bytes: int) -> LogPart | None:
        """Return the elements from one number on, at least one if there is any, and their last number.

        Messages that have expired meanwhile are left out.
        None when they are on disk: they are read, and `ready` is called.
        Units: `limit_bytes` limits the messages' headers and bodies together.
        """
        if self.ended:
            return LogPart(last, ())
        last = min(last, self.last)
        now_ms = self._vhost.ports.clock.now_ms
        elements: list[Element] = []
        size_bytes = 0
        for slot in self._slots_from(first):
            for number in _numbers(slot, first, last + 1):
                if slot.contents is None and number not in self._fetched:
                    if elements:
                        return LogPart(number - 1, tuple(elements))
                    self._fetch_from(slot, number, last)
                    return None
                message = self._message(slot, number)
                if message is None or _is_expired(message, now_ms):
                    continue
                size_bytes += len(message.header) + len(message.body)
                if elements and size_bytes > limit_bytes:
                    return LogPart(number - 1, tuple(elements))
                elements.append(_element(number, message))
            if slot.end > last:
                break
        return LogPart(last, tuple(elements))

    def _message(self, slot: Slot, number: int) -> Message | None:
        message: Message | None
        message = self._fetched[number] if slot.contents is None else slot.contents[number - slot.first]
        if message is None:
            _log.error("messages.lost", queue=self.queue.name, slot=slot.first, count=1)
        return message

    def _fetch_from(self, slot: Slot, first: int, last: int) -> None:
        """Read messages from disk, from one number on."""
        wanted: list[tuple[int, Slot]] = []
        for following in self._slots_from(first):
            if following.contents is not None or following.first > last or len(wanted) >= FETCH_MESSAGES:
                break
            wanted += [(number, following) for number in _numbers(following, first, last + 1)]
        self._fetch(wanted[:FETCH_MESSAGES])

    def _fetch(self, wanted: list[tuple[int, Slot]], then: Callable[[], None] = lambda: None) -> None:
        def fetched(found: Mapping[int, Message | None]) -> None:
            self._fetching = False
            self._fetched = dict(found)
            then()
            self._ready()

        if not self._fetching:
            self._fetching = True
            self._vhost.ports.fetch(self._stream, wanted, fetched)

    def _slots_from(self, number: int) -> Iterator[Slot]:
        """Yield the slots that have numbers from one on."""
        slots = self._manager.slots
        if number <= self.trimmed + self._manager.window_messages:
            return (slot for slot in list(slots.values()) if slot.end > number)
        behind: list[Slot] = []
        for slot in reversed(slots.values()):
            if slot.end <= number and slot.length:
                break
            behind.append(slot)
        return reversed(behind)

    # -- trimming -----------------------------------------------------------------------------------------------------

    def trim(self, upto: int) -> None:
        """Settle everything up to a number except the last change of the vector there, some slots in each turn."""
        if not self.ended:
            self.trimmed = max(self.trimmed, min(upto, self.last))
            self._trim()

    def mark_lost(self, upto: int) -> None:
        """Record that numbers up to this one may be dropped before all brokers had them."""
        if upto > self.lost and not self.ended:
            self._vhost.producers.advance(self._lost, upto)

    def _trim(self) -> None:
        if self.queue.deleted:
            return
        kept = self.change_at(self.trimmed + 1)
        trimmed = 0
        slots = [slot for slot in self._manager.slots.values() if slot.first <= self.trimmed and slot.length]
        for slot in slots[:SLOTS_AT_ONCE]:
            numbers = [number for number in _numbers(slot, slot.first, self.trimmed + 1) if number != kept]
            if numbers:
                trimmed = numbers[-1]
                self._stream.lose(slot, dense([number - slot.first for number in numbers]))
        if trimmed:
            settled = self._vhost.ports.settled
            while settled:
                settled.pop().log_settlements()
            self.changes = [change for change in self.changes if change.number >= kept]
        if len(slots) > SLOTS_AT_ONCE:
            self._vhost.ports.deadlines.set(("trim", self.queue), self._vhost.ports.clock.now_ms, self._trim)

    def enforce(self, max_bytes: int, max_age_ms: int) -> int:
        """Drop messages beyond the limits, the oldest first, and return the last dropped number; 0 if none was dropped.

        Cost: O(slots); the age of a slot on disk is that of its last message.
        """
        slots = [slot for slot in self._manager.slots.values() if slot.end > self.trimmed + 1]
        left_bytes = sum(_message_bytes(slot) for slot in slots)
        before_ms = self._vhost.ports.clock.now_ms - max_age_ms
        upto = 0
        for slot in slots:
            if left_bytes > max_bytes:
                left_bytes -= _message_bytes(slot)
                upto = slot.end - 1
            elif number := self._aged(slot, before_ms):
                upto = number
                if number < slot.end - 1:
                    break
            else:
                break
        if upto:
            self.mark_lost(upto)
            self.trim(upto)
        return upto

    def _aged(self, slot: Slot, before_ms: int) -> int:
        """Return the last number of a slot whose message came before a moment, 0 if none did or if unknown."""
        if slot.contents is not None:
            kept = [
                (message.timestamp_ms, number)
                for number, message in enumerate(slot.contents, slot.first)
                if message is not None and number > self.trimmed
            ]
            place = bisect_right(kept, before_ms, key=itemgetter(0))
            return kept[place - 1][1] if place else 0
        if self._front is None or self._front[0] != slot.first:
            number = max(_numbers(slot, slot.first, slot.end))
            if number in self._fetched:
                message = self._fetched[number]
                self._front = (slot.first, 0 if message is None else message.timestamp_ms)
            else:
                self._fetch([(number, slot)])
                return 0
        return slot.end - 1 if self._front[1] <= before_ms else 0


def _is_expired(message: Message, now_ms: int) -> bool:
    """Return whether a message has waited longer than it may; a delayed one begins to wait after its delay."""
    facts = message.facts
    if facts.expiration_ms is None or facts.delay is not MISSING:
        return False
    return now_ms > message.timestamp_ms + max(facts.expiration_ms, PASSAGE_MS)


def _numbers(slot: Slot, first: int, end: int) -> range | list[int]:
    """Return the numbers first <= number < end that a slot has."""
    start, stop = max(first - slot.first, 0), min(slot.length, end - slot.first)
    if not slot.acks.count:
        return range(slot.first + start, slot.first + max(stop, start))
    return [slot.first + index for index in slot.acks.unsettled(start, stop)] if start < stop else []


def _message_bytes(slot: Slot) -> int:
    """Return the approximate bytes of the headers and bodies of a slot's messages."""
    return max(slot.bytes - OVERHEAD_BYTES * slot.length, 0) * slot.unsettled // max(slot.length, 1)


def _element(number: int, message: Message) -> Element:
    if is_vector_change(message):
        return vector_change(number, message)
    return Data(number, message.envelope.key, message.header + message.body, copies_of(message))
