"""The retained messages of a vhost, one for each topic, stored in an internal queue and indexed in memory. A message
and the settlement of the one that it replaces are logged in one transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from mypy_extensions import mypyc_attr

from broker.amqp.content_header import facts_of
from broker.core.message.message import Envelope, Message, new_message
from broker.core.mqtt.mapping import MessageMapping
from broker.core.mqtt.places import Place, read_all
from broker.core.queue.kinds import RETAINED_NAME
from broker.core.queue.queue import Queue
from broker.core.session.client import SessionClient
from broker.core.vhost import Vhost
from broker.event_log import get_logger
from broker.mqtt.errors import PacketError
from broker.mqtt.reason_codes import QUOTA_EXCEEDED
from broker.mqtt.topics import binding_key, routing_key, topic_of
from broker.mqtt.wire import TEXT_MAX_BYTES
from broker.routing.key_trie import KeyTrie
from broker.slots.slot import Slot

_log = get_logger()

NEVER: Final = 0


class Retained(Place):
    """The position of one retained message. Units: `expires_ms` is NEVER for a message that does not expire."""

    __slots__ = ("expires_ms", "size_bytes")

    def __init__(self, slot: Slot, message_id: int, size_bytes: int, expires_ms: int) -> None:
        super().__init__(slot, message_id)
        self.size_bytes = size_bytes
        self.expires_ms = expires_ms


@mypyc_attr(allow_interpreted_subclasses=True)
class RetainedMessages:
    """Store the retained messages of one vhost. Shapes: `_places` maps each routing key to the position of its message,
    which may have left the queue.
    """

    def __init__(self, vhost: Vhost, mapping: MessageMapping, max_messages: int, max_bytes: int) -> None:
        self.vhost = vhost
        self._mapping = mapping
        self._max = max_messages
        self._max_bytes = max_bytes
        self._places: dict[str, Retained] = {}
        self._trie = KeyTrie(mapping.dialect.words)
        self._bytes = 0
        self._queue: Queue | None = vhost.queues.get(RETAINED_NAME)

    @property
    def by_header(self) -> bool:
        """Whether AMQP publishers may retain messages by setting a header."""
        return True

    def __len__(self) -> int:
        return len(self._places)

    @property
    def exchange(self) -> str:
        """The exchange whose publishes can be retained."""
        return self._mapping.exchange

    @property
    def size_bytes(self) -> int:
        """The number of retained bytes: topics, headers and bodies."""
        return self._bytes

    # -- the start ----------------------------------------------------------------------------------------------------

    def load(self, done: Callable[[], None]) -> None:
        """Build the index from the queue, then call `done`."""
        read_all(self.vhost, self._queue, self._index, done)

    def _index(self, message: Message, slot: Slot, index: int) -> None:
        older = self._remove(message.envelope.key)
        if older is not None and self._queue is not None:
            self._queue.level.lose(older.slot, (older.index,))
        self._add(message, slot, index)

    # -- messages -----------------------------------------------------------------------------------------------------

    def prepare_retain(self, _session: SessionClient | None, key: str, header: bytes, body: bytes) -> None:
        """Check that a client's message may be retained.

        Raises: PacketError 0x97 if a limit is exceeded; in a cluster, Postponed.
        """
        if lack := self.lack_of_room(key, len(header), len(body)):
            raise PacketError(QUOTA_EXCEEDED, lack)

    def lack_of_room(self, key: str, header_bytes: int, body_bytes: int) -> str:
        """Return why a limit prevents retaining a message, or an empty string."""
        if not body_bytes:
            return ""
        older = self._find(key)
        size_bytes = len(key) + header_bytes + body_bytes
        older_bytes = 0 if older is None else older.size_bytes
        return self.lack_in(len(self._places) - (older is not None), self._bytes - older_bytes, size_bytes)

    def lack_in(self, count: int, retained_bytes: int, size_bytes: int) -> str:
        """Return why a message cannot be retained in addition to `count` others, or an empty string."""
        if count >= self._max:
            return f"{count} messages are retained: mqtt.retained_max allows no more"
        if retained_bytes + size_bytes > self._max_bytes:
            return f"{retained_bytes} bytes are retained: mqtt.retained_max_bytes does not allow {size_bytes} more"
        return ""

    def retain(self, key: str, header: bytes, body: bytes) -> None:
        """Retain a message and delete the former one with its key; an empty message only deletes."""
        queue, ports = self._queue, self.vhost.ports
        if queue is None or queue.deleted:
            if not body:
                return
            self._clear()
            queue = self._queue = self.vhost.queues.own(RETAINED_NAME)
        level = queue.level
        older = self._find(key)
        if older is None and not body:
            return
        with ports.transaction():
            if body:
                envelope = Envelope(self._mapping.exchange, key)
                message = new_message(envelope, header, body, facts_of(header), ports.clock.now_ms)
                slot, index = ports.accept(message, level, 0, b"")
            if older is not None:
                self._remove(key)
                level.lose(older.slot, (older.index,))
                level.log_settlements()
        if body:
            self._add(message, slot, index)

    def _add(self, message: Message, slot: Slot, index: int) -> None:
        key = message.envelope.key
        left_ms = message.facts.expiration_ms
        expires_ms = NEVER if left_ms is None else message.timestamp_ms + left_ms
        message_id = slot.first + index
        place = Retained(slot, message_id, len(key) + len(message.header) + len(message.body), expires_ms)
        self._places[key] = place
        self._trie.add(key)
        self._bytes += place.size_bytes
        if expires_ms:
            ports = self.vhost.ports
            at_ms = max(expires_ms, ports.clock.now_ms)  # messages that expired before startup must not go first
            ports.deadlines.set((self, key), at_ms, partial(self._expire, key))

    def _remove(self, key: str) -> Retained | None:
        place = self._places.pop(key, None)
        if place is not None:
            self._trie.remove(key)
            self._bytes -= place.size_bytes
            if place.expires_ms:
                self.vhost.ports.deadlines.cancel((self, key))
        return place

    def _find(self, key: str) -> Retained | None:
        """Return the position of a key's message, or None if there is none."""
        place = self._places.get(key)
        if place is not None and place.is_gone:
            self._remove(key)
            return None
        return place

    def _clear(self) -> None:
        self._places.clear()
        self._trie.clear()
        self._bytes = 0

    def _expire(self, key: str) -> None:
        """Drop the message of a key if it has expired; the deadline may be that of an earlier message."""
        queue, now_ms = self._queue, self.vhost.ports.clock.now_ms
        if queue is not None and not queue.deleted and 0 < self.expires_ms(key) <= now_ms:
            self._drop(queue, key)

    def _drop(self, queue: Queue, key: str) -> None:
        place = self._find(key)
        if place is not None:
            self._remove(key)
            queue.level.lose(place.slot, (place.index,))

    # -- look-up ------------------------------------------------------------------------------------------------------

    def prepare(self, session: SessionClient) -> None:
        """Update the index before a client's new subscriptions use it. Raises: Postponed, in a cluster."""

    def topic(self, key: str) -> str:
        """Return the topic of a routing key, or an empty string if the key corresponds to no topic."""
        return (topic_of(key, self._mapping.swaps) or b"").decode()

    def key(self, topic: str) -> str:
        """Return the routing key of a topic. Raises: PacketError for an invalid topic."""
        return routing_key(topic.encode(), TEXT_MAX_BYTES, self._mapping.swaps)

    def expires_ms(self, key: str) -> int:
        """Return when the message of a key expires; NEVER if it does not expire, or if there is none."""
        place = self._find(key)
        return NEVER if place is None else place.expires_ms

    def find(self, topic_filter: str) -> Iterator[str | None]:
        """Yield the routing keys of the topics that a filter matches, as `search` does. Raises: PacketError."""
        return self.search(binding_key(topic_filter, TEXT_MAX_BYTES, self._mapping.swaps))

    def search(self, key: str) -> Iterator[str | None]:
        """Yield the routing keys that a binding key matches, and None for visited nodes, as `KeyTrie.search` does."""
        return self._trie.search(self._mapping.dialect.parse(key).words)

    def read(self, keys: Sequence[str], take: Callable[[Message], None], done: Callable[[], None]) -> None:
        """Call `take` with the message of each key that has an unexpired one, and `done` at the end.

        If a message is replaced while it is read from disk, `take` is called with the newer one.
        """
        queue = self._queue
        missing: list[str] = []
        if queue is not None and not queue.deleted:
            for key in keys:
                place = self._find(key)
                if place is None or 0 < place.expires_ms <= self.vhost.ports.clock.now_ms:
                    continue
                contents = place.slot.contents
                if contents is None:
                    missing.append(key)
                elif (message := contents[place.index]) is not None:
                    take(message)
        if not missing:
            done()
            return
        assert queue is not None
        wanted = [(self._places[key].message_id, self._places[key].slot) for key in missing]
        self.vhost.ports.fetch(queue.level, wanted, partial(self._were_read, missing, take, done))

    def _were_read(
        self,
        keys: Sequence[str],
        take: Callable[[Message], None],
        done: Callable[[], None],
        found: Mapping[int, Message | None],
    ) -> None:
        """Call `take` with the messages that were read and are still retained; read those that replaced others."""
        replaced: list[str] = []
        queue = self._queue
        for key in keys:
            place = self._find(key)
            if place is None:
                continue
            if place.message_id not in found:
                replaced.append(key)
                continue
            message = found[place.message_id]
            if message is not None:
                take(message)
            elif queue is not None:
                _log.error("messages.lost", queue=RETAINED_NAME, slot=place.slot.first, count=1)
                self._drop(queue, key)
        if replaced:
            self.read(replaced, take, done)
        else:
            done()


PORTION: Final = 64  # messages copied at once
WAITING_MAX: Final = 512  # the next portion waits while the queue has this many ready messages
WAIT_MS: Final = 1000  # until a full queue is checked again, unless output is written earlier
VISITS_MAX: Final = 4096  # nodes of the index visited for one portion
VISITS_PER_UNIT: Final = 16  # nodes visited for one unit of the turn's share
COPY_SHARE: Final = 4  # units for one copy


class RetainedCopies:
    """For each filter in a SUBSCRIBE, add copies of the matching retained messages to the session's queue. The
    envelope of a copy names `amq.retained` as its exchange, so that the consumer sets RETAIN.
    Cost: copies are added in portions, while fewer than `WAITING_MAX` messages of the queue are ready.
    """

    def __init__(self, vhost: Vhost, retained: RetainedMessages) -> None:
        self._vhost = vhost
        self._retained = retained
        self._searches: deque[tuple[str, Iterator[str | None]]] = deque()
        self._reading = False
        self._closed = False

    def begin(self, queue_name: str, binding_key: str) -> None:
        """Copy the messages that a binding key matches, after those of earlier calls."""
        self._searches.append((queue_name, self._retained.search(binding_key)))
        self.proceed()

    def close(self) -> None:
        self._closed = True
        self._searches.clear()
        self._vhost.ports.deadlines.cancel(self)

    def output_taken(self) -> bool:
        """Continue in the next turn if no read is in progress, and return whether there is more to copy."""
        if self._searches and not self._reading:
            ports = self._vhost.ports
            ports.deadlines.set(self, ports.clock.now_ms, self.proceed)
        return self._reading or len(self._searches) > 0

    def proceed(self) -> None:
        """Copy portions, within the turn's share and the room in the queue."""
        ports = self._vhost.ports
        deadlines = ports.deadlines
        while self._searches and not self._reading and not self._closed:
            name, search = self._searches[0]
            queue = self._vhost.queues.get(name)
            if queue is None:
                self._searches.popleft()
                continue
            if queue.ready >= WAITING_MAX:
                deadlines.set(self, ports.clock.now_ms + WAIT_MS, self.proceed)
                return
            if deadlines.units_left <= 0:
                deadlines.set(self, ports.clock.now_ms, self.proceed)
                return
            keys = self._next_keys(search)
            self._reading = True
            self._retained.read(keys, partial(self._copy, queue), self._was_read)

    def _next_keys(self, search: Iterator[str | None]) -> list[str]:
        """Return the next keys of the first search, and remove the search if it is complete."""
        keys: list[str] = []
        visits = 0
        more = False
        for key in search:
            visits += 1
            if key is not None:
                keys.append(key)
            if len(keys) >= PORTION or visits >= VISITS_MAX:
                more = True
                break
        if not more:
            self._searches.popleft()
        self._vhost.ports.deadlines.spend(1 + COPY_SHARE * len(keys) + visits // VISITS_PER_UNIT)
        return keys

    def _copy(self, queue: Queue, message: Message) -> None:
        if not self._closed and not queue.deleted:
            envelope = Envelope(RETAINED_NAME, message.envelope.key)
            facts, timestamp_ms = message.facts, message.timestamp_ms
            copy = Message(envelope, message.header, message.body, message.charge, facts, timestamp_ms)
            self._vhost.poster.post(copy, (queue,))

    def _was_read(self) -> None:
        self._reading = False
        self.output_taken()
