"""The firehose: copies of the messages published to a vhost and delivered from it, for watchers and for the exchange
`amq.rabbitmq.trace`. Source: RabbitMQ, rabbit_trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol, cast

from broker.amqp.content_header import FLAG_OF, HeaderFields
from broker.amqp.header_edit import cut_properties
from broker.amqp.header_facts import NO_PRIORITY, HeaderFacts, plain_facts
from broker.amqp.table_writer import counted, encode_entry, encode_short_text
from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.core.auth.users import User
from broker.core.deadlines import Deadlines
from broker.core.message.message import Envelope, Message, further_keys, new_message
from broker.core.names import TRACE
from broker.core.publishing.posting import Poster
from broker.core.queue.consumer import Consumer
from broker.core.queue.queue import Queue
from broker.core.topology.exchanges import Exchanges

NUMBERS: Final = {"delivery_mode": 1, "priority": 1, "timestamp": 8}  # numeric properties, and their sizes in octets
NAMES: Final = {"message_type": "type"}  # RabbitMQ's name of a property, if it differs
SIGNED: Final = Struct(">i")
SIGNED_MAX: Final = (1 << 31) - 1
Origin = tuple[str, str, int]
"""Connection, user and channel; a message that an overlay leaf published has no user and no channel."""
HEADER: Final = Struct(">HHQH")  # class, weight, body size, flags of a content header


class TracedClient(Protocol):
    """The client that published or received a message."""

    name: str
    user: User | None


class Passage(NamedTuple):
    """The publish or the delivery of one message.

    Shapes: `name` is the exchange of a publish, or the queue of a delivery. `queues` are the names of the queues that a
        publish was routed to. `redelivered` is None for a publish.
    """

    connection: str
    user: str
    channel: int
    name: str
    exchange: str
    keys: Sequence[str]
    header: bytes
    body: bytes
    queues: Sequence[str] = ()
    redelivered: bool | None = None

    @property
    def kind(self) -> str:
        """The first word of the routing key of the copy."""
        return "publish" if self.redelivered is None else "deliver"


class Watcher(Protocol):
    """Receive each message that is published or delivered."""

    def offer(self, passage: Passage) -> None:
        """Accept a message without delay, or drop it."""


class Firehose:
    """Copy the messages of a vhost while the firehose is switched on or watched.

    Invariant: ``active`` is set while copies are published or watched. ``switched`` is called when that changes.
        Messages of the trace exchange itself are not copied.
    Cost: nothing while inactive. While active, each publish takes the slow path, and each copy is another message.
    """

    def __init__(
        self,
        vhost_name: str,
        exchanges: Exchanges,
        poster: Poster,
        deadlines: Deadlines,
        *,
        resolve_again: Callable[[], None],
    ) -> None:
        """`resolve_again` drops the publish caches."""
        self._vhost_name = vhost_name
        self._exchanges = exchanges
        self._poster = poster
        self._deadlines = deadlines
        self._resolve_again = resolve_again
        self._watchers: list[Watcher] = []
        self._due: list[Passage] = []
        self.active = False
        self.publishing = False
        self.node = "slotmq"
        self.switched: Callable[[Firehose | None], None] = lambda _firehose: None

    def attach(self, node: str, switched: Callable[[Firehose | None], None]) -> None:
        """Set the node's name for the copies, and the function to call when the firehose becomes active or inactive."""
        self.node = node
        self.switched = switched

    def switch(self, *, on: bool) -> None:
        """Start or stop copying to the trace exchange."""
        self.publishing = on
        self._changed()

    def watch(self, watcher: Watcher) -> None:
        """Offer each message from now on to a watcher."""
        self._watchers.append(watcher)
        self._changed()

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.remove(watcher)
        self._changed()

    def published(
        self, origin: Origin, envelope: Envelope, content: tuple[HeaderFacts, bytes, bytes], queues: Sequence[Queue]
    ) -> None:
        """Copy a publish that was checked and routed, before it is queued.

        Shapes: `content` is the facts of the header, the header without BCC, and the body.
        """
        facts, header, body = content
        keys = tuple(dict.fromkeys((envelope.key, *further_keys(facts))))
        names = [queue.name for queue in queues if not (queue.is_tap or queue.is_overlay)]
        self._tell(Passage(*origin, envelope.exchange, envelope.exchange, keys, header, body, names))

    def delivered_to(self, consumer: Consumer, passing: Sequence[tuple[Message, bool]]) -> None:
        """Copy messages sent to a consumer. Shapes: `passing` pairs each message with whether it is redelivered."""
        client = cast("TracedClient", consumer.connection.session)
        for message, redelivered in passing:
            self.delivered(client, consumer.session.number, consumer.queue, message, redelivered=redelivered)

    def delivered(
        self, client: TracedClient, channel: int, queue: Queue, message: Message, *, redelivered: bool
    ) -> None:
        envelope = message.envelope
        if envelope.exchange == TRACE:
            return
        keys = tuple(dict.fromkeys((envelope.key, *further_keys(message.facts))))
        origin = origin_of(client, channel)
        self._tell(Passage(*origin, queue.name, envelope.exchange, keys, message.header, message.body, (), redelivered))

    def _tell(self, passage: Passage) -> None:
        for watcher in self._watchers:
            watcher.offer(passage)
        if self.publishing:
            # Post it later, because a queue must not get a message while it is being served.
            self._due.append(passage)
            self._deadlines.spend(1)
            self._deadlines.next_turn(self, self._publish)

    def _publish(self) -> None:
        due, self._due = self._due, []
        for passage in due:
            self._post(passage)

    def _post(self, passage: Passage) -> None:
        exchange = self._exchanges[TRACE]
        key = f"{passage.kind}.{passage.name}".encode()[:SHORT_STRING_MAX_BYTES].decode("utf-8", "ignore")
        header = self._header(passage)
        queues = self._exchanges.router.match(exchange, key, HeaderFields(header))
        if queues:
            facts = plain_facts(persistent=False, priority=NO_PRIORITY, expiration_ms=None)
            now_ms = self._deadlines.clock.now_ms
            message = new_message(Envelope(TRACE, key), header, passage.body, facts, now_ms, len(queues))
            self._poster.post(message, queues)

    def _header(self, passage: Passage) -> bytes:
        """Return the content header of a copy; its headers describe the message as RabbitMQ's do."""
        entries = [
            encode_entry("exchange_name", passage.exchange),
            encode_entry("routing_keys", list(passage.keys)),
            encode_short_text("properties") + b"F" + counted(b"".join(_properties(passage.header))),
            encode_entry("node", self.node),
        ]
        if passage.redelivered is not None:
            entries.append(_signed("redelivered", int(passage.redelivered)))
        entries += [
            encode_entry("vhost", self._vhost_name),
            encode_entry("connection", passage.connection),
            _signed("channel", passage.channel),
            encode_entry("user", passage.user),
        ]
        if passage.redelivered is None:
            entries.append(encode_entry("routed_queues", list(passage.queues)))
        head = HEADER.pack(60, 0, len(passage.body), FLAG_OF["headers"])
        return head + counted(b"".join(entries))

    def _changed(self) -> None:
        active = self.publishing or bool(self._watchers)
        if active is not self.active:
            self.active = active
            self.switched(self if active else None)
            self._resolve_again()


def origin_of(client: TracedClient, channel: int) -> Origin:
    """Return the origin of a client's publishes and deliveries."""
    assert client.user is not None
    return client.name, client.user.name, channel


def _properties(header: bytes) -> list[bytes]:
    """Return the properties of a message as entries of a table, with numbers as signed integers, as in RabbitMQ."""
    entries = []
    for name, octets in cut_properties(header).items():
        key = encode_short_text(NAMES.get(name, name))
        if name == "headers":
            entries.append(key + b"F" + octets)
        elif name in NUMBERS:
            number = int.from_bytes(octets, "big")
            value: Any = b"I" + SIGNED.pack(number) if number <= SIGNED_MAX else b"l" + octets
            entries.append(key + value)
        else:
            entries.append(key + b"S" + counted(octets[1:]))
    return entries


def _signed(key: str, number: int) -> bytes:
    return encode_short_text(key) + b"I" + SIGNED.pack(number)
