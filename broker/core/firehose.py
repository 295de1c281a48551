"""The firehose: what is published to a vhost and delivered from it, copied to the exchange `amq.rabbitmq.trace`.

While nobody wants it, it costs the publish path nothing. The first watcher drops the publish caches, and from then on
each publish takes the slow path. Source: RabbitMQ, rabbit_trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from broker.amqp.content_header import FLAG_OF
from broker.amqp.header_edit import cut_properties
from broker.amqp.header_facts import plain_facts
from broker.amqp.table_writer import counted, encode_entry, encode_short_text
from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.core.message.fields import HeaderFields
from broker.core.message.message import Envelope, Message
from broker.core.names import TRACE
from broker.core.publishing.posting import charge_bytes, post
from broker.core.session.publication import further_keys

if TYPE_CHECKING:
    from broker.amqp.header_facts import HeaderFacts
    from broker.core.queue.consumer import Consumer
    from broker.core.queue.queue import Queue
    from broker.core.session.connection import SessionOfConnection
    from broker.core.session.publication import Publication
    from broker.core.vhost import Vhost

__all__ = ["Firehose", "Passage", "Watcher"]

NUMBERS: Final = {"delivery_mode": 1, "priority": 1, "timestamp": 8}  # properties that are no texts, and their octets
NAMES: Final = {"message_type": "type"}  # RabbitMQ's name of a property, where it is not ours
SIGNED: Final = Struct(">i")
SIGNED_MAX: Final = (1 << 31) - 1
HEADER: Final = Struct(">HHQH")  # class, weight, body size, flags of a content header


class Passage:
    """One message on its way in or out.

    Shapes: `name` is that of the exchange of a publish, or of the queue of a delivery. `queues` are those that a
        publish was routed to, `redelivered` is None for a publish.
    """

    __slots__ = (
        "body", "channel", "connection", "exchange", "header", "keys", "name", "queues", "redelivered", "user",
    )  # fmt: skip

    def __init__(
        self,
        session: SessionOfConnection,
        channel: int,
        name: str,
        message: tuple[str, Sequence[str], bytes, bytes],
        *,
        queues: Sequence[str] = (),
        redelivered: bool | None = None,
    ) -> None:
        """Take exchange, routing keys, content header and body of a message."""
        assert session.user is not None
        self.connection = session.name
        self.user = session.user.name
        self.channel = channel
        self.name = name
        self.exchange, self.keys, self.header, self.body = message
        self.queues = queues
        self.redelivered = redelivered

    @property
    def kind(self) -> str:
        """Whether it was published or delivered, as the trace's routing keys begin."""
        return "publish" if self.redelivered is None else "deliver"


class Watcher(Protocol):
    """An object that hears of each message that passes."""

    def hear(self, passage: Passage) -> None:
        """Take a message in no time, or leave it."""


def _nobody(_firehose: Firehose | None) -> None:
    """Hear of the switch when nobody else does."""


class Firehose:
    """Copies what passes a vhost while somebody wants it.

    Invariant: ``active`` while it is ``publishing`` or watched; ``switched`` tells who hands out messages.
        What comes from the trace exchange itself is not traced.
    Cost: nothing while it is not active; then each publish goes the slow way, and each copy is a message more.
    """

    __slots__ = ("_due", "_vhost", "_watchers", "active", "node", "publishing", "switched")

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost
        self._watchers: list[Watcher] = []
        self._due: list[Passage] = []
        self.active = False
        self.publishing = False
        self.node = "slotmq"
        self.switched: Callable[[Firehose | None], None] = _nobody

    def switch(self, *, on: bool) -> None:
        """Begin to publish to the trace exchange, or end it."""
        self.publishing = on
        self._changed()

    def watch(self, watcher: Watcher) -> None:
        """Let somebody hear what passes."""
        self._watchers.append(watcher)
        self._changed()

    def forget(self, watcher: Watcher) -> None:
        """Let somebody hear nothing any more."""
        self._watchers.remove(watcher)
        self._changed()

    def published(
        self, session: SessionOfConnection, channel: int, publication: Publication, facts: HeaderFacts
    ) -> None:
        """Copy a publish that was checked and routed, before its queues have it; `facts` are those of its header."""
        envelope = publication.envelope
        keys = tuple(dict.fromkeys((envelope.key, *further_keys(facts))))
        message = (envelope.exchange, keys, publication.header, publication.body)
        queues = [queue.name for queue in publication.queues if not queue.is_tap]
        self._tell(Passage(session, channel, envelope.exchange, message, queues=queues))

    def delivered_to(self, consumer: Consumer, passing: Sequence[tuple[Message, bool]]) -> None:
        """Copy what a consumer was sent: each message, and whether it is redelivered."""
        session = cast("SessionOfConnection", consumer.connection.session)
        for message, redelivered in passing:
            self.delivered(session, consumer.session.number, consumer.queue, message, redelivered=redelivered)

    def delivered(
        self, session: SessionOfConnection, channel: int, queue: Queue, message: Message, *, redelivered: bool
    ) -> None:
        """Copy a delivery."""
        envelope = message.envelope
        if envelope.exchange == TRACE:
            return
        keys = tuple(dict.fromkeys((envelope.key, *further_keys(message.facts))))
        content = (envelope.exchange, keys, message.header, message.body)
        self._tell(Passage(session, channel, queue.name, content, redelivered=redelivered))

    def _tell(self, passage: Passage) -> None:
        for watcher in self._watchers:
            watcher.hear(passage)
        if self.publishing:
            # A queue that is being served must not get a message in between: the copies follow in the same turn.
            self._due.append(passage)
            ports = self._vhost.ports
            ports.deadlines.left -= 1
            ports.deadlines.set(self, ports.clock.now_ms, self._publish)

    def _publish(self) -> None:
        due, self._due = self._due, []
        for passage in due:
            self._post(passage)

    def _post(self, passage: Passage) -> None:
        vhost = self._vhost
        exchange = vhost.exchanges[TRACE]
        key = f"{passage.kind}.{passage.name}".encode()[:SHORT_STRING_MAX_BYTES].decode("utf-8", "ignore")
        header = self._header(passage)
        queues = vhost.router.match(exchange, key, HeaderFields(header))
        if queues:
            charge = charge_bytes(header, passage.body, len(queues))
            facts = plain_facts(persistent=False, priority=0, expiration_ms=None)
            now_ms = vhost.ports.clock.now_ms
            message = Message(Envelope(TRACE, key), header, passage.body, charge, facts, now_ms)
            post(vhost, message, queues)

    def _header(self, passage: Passage) -> bytes:
        """Return the content header of a copy: what there is to say of the message, as RabbitMQ's headers."""
        entries = [
            encode_entry("exchange_name", passage.exchange),
            encode_entry("routing_keys", list(passage.keys)),
            encode_short_text("properties") + b"F" + counted(b"".join(_properties(passage.header))),
            encode_entry("node", self.node),
        ]
        if passage.redelivered is not None:
            entries.append(_signed("redelivered", int(passage.redelivered)))
        entries += [
            encode_entry("vhost", self._vhost.name),
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
            self._vhost.drop_publish_caches()


def _properties(header: bytes) -> list[bytes]:
    """Return the properties of a message as entries of a table: numbers are signed ones of 32 bits, as in RabbitMQ."""
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
