"""One stream of the overlay on disk: the messages of a stream queue by their numbers, and the changes of its vector.

Reading does not settle messages. Messages that all brokers have received are trimmed from the front, except for the
vector change in force there.
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

# Prefixes of the names of the broker's own producers, each of which stores one number of a stream.
VECTOR_PRODUCER: Final = "amq.overlay.vectors."  # the number of the last vector change
LOST_PRODUCER: Final = "amq.overlay.lost."  # the last number that may have been removed before all brokers had it
EXPIRATION_MIN_MS: Final = 100  # the time that a link needs: a message with a shorter expiration is still sent
FETCH_MESSAGES: Final = 1000
SLOTS_AT_ONCE: Final = 32  # slots trimmed in one turn
VECTORS: Final = "amq.slotmq.vector"  # in place of an exchange's name, so that no message of a client has it
ENVELOPE: Final = Envelope(VECTORS, "")


def vector_message(old: Vector, new: Vector, incarnation: int, previous: int, now_ms: int) -> Message:
    """Return the message that stores a vector change. `previous` is the number of the change before, or 0."""
    change = {"previous": previous, "old": dict(old), "new": dict(new), "incarnation": incarnation}
    body = json.dumps(change, separators=(",", ":")).encode()
    header = encode_header({"delivery_mode": 2}, len(body))
    facts = plain_facts(persistent=True, priority=NO_PRIORITY, expiration_ms=None)
    return Message(ENVELOPE, header, body, OVERHEAD_BYTES + len(header) + len(body), facts, now_ms)


def is_vector_change(message: Message) -> bool:
    """Return whether a message of a stream queue stores a vector change."""
    return message.envelope.exchange == VECTORS


def vector_change(number: int, message: Message) -> VectorChange:
    """Return the vector change that a message stores."""
    fields = json.loads(message.body)
    return VectorChange(number, fields["old"], fields["new"], fields["incarnation"])


def previous_change(message: Message) -> int:
    """Return the number of the vector change before that of a message, or 0 if there is none."""
    return int(json.loads(message.body)["previous"])


class ExchangeLog:
    """Read, extend and trim the stream of one exchange.

    Invariant: numbers are dense and never reused. The last vector change among the trimmed numbers is kept. Numbers up
        to `lost` may have been removed before all brokers had received them.
    Cost: reading costs O(messages read), and O(slots of the queue) near its front, elsewhere O(slots from there on).
    """

    def __init__(self, vhost: Vhost, queue: OverlayQueue) -> None:
        self._vhost = vhost
        self.queue = queue
        self._stream = queue.level
        self._manager = queue.level.manager
        self._targets = Targets((queue.level,))
        self._vectors = vhost.producers.own(VECTOR_PRODUCER + queue.exchange)
        self._lost = vhost.producers.own(LOST_PRODUCER + queue.exchange)
        if self._manager.next_id < queue.first_number:
            self._stream.lose_sealed(queue.first_number)
        self.changes: list[VectorChange] = []  # the stored ones, ascending
        self._fetched: dict[int, Message | None] = {}
        self._fetching = False
        self._ready: Callable[[], None] = lambda: None
        self._appended: Callable[[], None] = lambda: None
        self.durable = 0  # the highest number on disk, set by the driver
        self.ended = False
        self.trimmed = queue.first_number - 1  # all numbers up to here are trimmed, some only in the next turns
        self._front: tuple[int, int] | None = None  # the first slot, and the timestamp of its last message

    def when_ready(self, ready: Callable[[], None], appended: Callable[[], None] = lambda: None) -> None:
        """Call `ready` after each read from disk, and `appended` after each appended vector."""
        self._ready = ready
        self._appended = appended

    @property
    def last(self) -> int:
        """The last number of the stream, which may not be on disk yet; in an empty stream, the one before the first."""
        return self._manager.next_id - 1

    @property
    def lost(self) -> int:
        """The number up to which messages may have been removed before all brokers had received them, or 0."""
        return 0 if self.ended else max(self._lost.reached, 0)

    def became_durable(self, upto: int) -> None:
        """Record that the stream is on disk up to a number."""
        if not self.ended:
            self.durable = max(self.durable, upto)

    def end(self) -> None:
        """End the stream because its vhost is deleted: treat all numbers as trimmed, and store nothing more."""
        self.before_next(None)
        self.ended = True
        self.trimmed = self.durable

    # -- the vector ---------------------------------------------------------------------------------------------------

    def append_vector(self, old: Vector, new: Vector, incarnation: int) -> int:
        """Append a vector change and return its number; the next commit writes it, unless the stream has ended."""
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
        """Call a function once, right before the next message is numbered; None or the end of the stream cancels it."""
        if not self.ended:
            self._stream.call_before_next(None if call is None else lambda _stream: call())

    def change_at(self, number: int) -> int:
        """Return the number of the vector change in force before a number, or 0 if there is none."""
        index = bisect_right(self.changes, number - 1, key=attrgetter("number"))
        return self.changes[index - 1].number if index else 0

    def recover(self, done: Callable[[], None]) -> None:
        """Read the stored vector changes after a start, then call `done`."""
        number = self._vectors.reached
        if number > 0:
            self._find_change(number, done)
        else:
            done()

    def _find_change(self, number: int, done: Callable[[], None]) -> None:
        """Read the vector change with a number, and the stored ones before it."""
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
        """Return the number up to which the stream was trimmed before the start: the end of its first gap.

        The first number may be that of a vector change that was kept alone.
        """
        present = (number for slot in self._manager.slots.values() for number in _numbers(slot, slot.first, slot.end))
        first = next(present, self._manager.next_id)
        if first != (self.changes[0].number if self.changes else 0):
            return first - 1
        following = next(present, self._manager.next_id)
        return first - 1 if following == first + 1 else following - 1

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, first: int, last: int, limit_bytes: int) -> LogPart | None:
        """Return the elements from a number on, at least one if there is any, and the number up to which they reach.

        Expired and lost messages are left out. If the next message is only on disk, start reading and return None;
        `ready` is called afterwards.
        Units: `limit_bytes` limits the headers and bodies of all messages together, except for a single one.
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
        """Read messages from disk, from a number on."""
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
        """Return the slots that contain numbers from a number on, searched from the nearer end."""
        slots = self._manager.slots
        if number <= self.trimmed + self._manager.window_messages:
            return (slot for slot in list(slots.values()) if slot.end > number)
        following: list[Slot] = []
        for slot in reversed(slots.values()):
            if slot.end <= number and slot.length:
                break
            following.append(slot)
        return reversed(following)

    # -- trimming -----------------------------------------------------------------------------------------------------

    def trim(self, upto: int) -> None:
        """Settle all messages up to a number except the last vector change among them, some slots in each turn."""
        if not self.ended:
            self.trimmed = max(self.trimmed, min(upto, self.last))
            self._trim()

    def mark_lost(self, upto: int) -> None:
        """Record that messages up to a number may be removed before all brokers have received them."""
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
        """Remove messages beyond the limits, the oldest first, and return the last removed number, or 0 if none was.

        Cost: O(slots + messages of the checked resident slots); the age of a slot on disk is its last message's.
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
        """Return the last number of a slot published by `before_ms`, or 0 if there is none or it must first be read."""
        if slot.contents is not None:
            kept = [
                (message.timestamp_ms, number)
                for number, message in enumerate(slot.contents, slot.first)
                if message is not None and number > self.trimmed
            ]
            index = bisect_right(kept, before_ms, key=itemgetter(0))
            return kept[index - 1][1] if index else 0
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
    """Return whether a message has expired. A delayed one has not, as its expiration starts after its delay."""
    facts = message.facts
    if facts.expiration_ms is None or facts.delay is not MISSING:
        return False
    return now_ms > message.timestamp_ms + max(facts.expiration_ms, EXPIRATION_MIN_MS)


def _numbers(slot: Slot, first: int, end: int) -> range | list[int]:
    """Return the unsettled numbers of a slot from `first` to `end`, excluding `end`."""
    start, stop = max(first - slot.first, 0), min(slot.length, end - slot.first)
    if not slot.acks.count:
        return range(slot.first + start, slot.first + max(stop, start))
    return [slot.first + index for index in slot.acks.unsettled(start, stop)] if start < stop else []


def _message_bytes(slot: Slot) -> int:
    """Return the approximate bytes of the headers and bodies of a slot's unsettled messages."""
    return max(slot.bytes - OVERHEAD_BYTES * slot.length, 0) * slot.unsettled // max(slot.length, 1)


def _element(number: int, message: Message) -> Element:
    if is_vector_change(message):
        return vector_change(number, message)
    return Data(number, message.envelope.key, message.header + message.body, copies_of(message))
