"""Publishing on one channel: from a complete basic.publish to accepted messages and a log record (street steps 5 to
8).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.codec import BasicReturn, publish_fields
from broker.amqp.content_header import decode_properties
from broker.amqp.errors import ChannelError, ConnectionFault
from broker.core.message import OVERHEAD_BYTES, Envelope, Message
from broker.store.record import PERSISTENT, TARGET, encode_message

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.core.queue import Queue
    from broker.core.session.connection import SessionOfConnection
    from broker.core.vhost import Vhost
    from broker.routing.cache import Route
    from broker.routing.exchange import Exchange

__all__ = ["PublishEntry", "Publisher"]

pack_target: Final = TARGET.pack
_CONFIRM: Final = Struct(">BHIHHQBB")  # basic.ack: type, channel, size, class, method, tag, multiple, frame end


class PublishEntry:
    """What one basic.publish payload comes to: rights checked, route resolved, prepared bytes.

    Invariant: valid while ``route.live``. The queues are those of the route, split by who needs a record.
    """

    __slots__ = ("by_headers", "durable", "envelope", "mandatory", "queues", "route", "transient")

    def __init__(self, envelope: Envelope, route: Route, queues: tuple[Queue, ...], *, mandatory: bool) -> None:
        self.envelope = envelope
        self.route = route
        self.mandatory = mandatory
        self.queues = queues
        self.durable = tuple(queue for queue in queues if queue.durable)
        self.transient = tuple(queue for queue in queues if not queue.durable)
        self.by_headers: Exchange | None = None


class Publisher:
    """Publishes for one channel and counts what it has to confirm.

    Units: ``published``, ``confirmed`` and ``logged`` are publish sequence numbers, which start at 1 with
        confirm.select; ``logged`` is the last one whose confirm has to wait for the disk.
    Invariant: confirmed <= published; every number up to ``confirmed`` was confirmed to the client.
    """

    __slots__ = (
        "_cache",
        "_channel",
        "_clock",
        "_committer",
        "_connection",
        "_entries",
        "_log",
        "_number",
        "_session",
        "_vhost",
        "closed",
        "confirmed",
        "confirming",
        "logged",
        "published",
        "waiting",
    )

    def __init__(self, channel: Channel, session: SessionOfConnection, vhost: Vhost) -> None:
        self._channel = channel
        self._number = channel.number
        self._connection = channel.connection
        self._session = session
        self._vhost = vhost
        self._clock = vhost.ports.clock
        self._log = vhost.ports.store.log
        self._committer = vhost.committer
        assert session.user is not None
        self._cache = vhost.publish_cache(session.user)
        self._entries = self._cache.entries
        self.closed = False  # the channel is gone: nobody hears a confirm
        self.confirming = False
        self.waiting = False  # stands on the committer's list
        self.published = 0
        self.confirmed = 0
        self.logged = 0

    def publish(self, payload: bytes, header: bytes, body: bytes) -> None:
        """Routes one message to its queues and appends one record, whatever the fan-out.

        Raises: ChannelError 403, 404, 406; ConnectionFault 502, 540.
        """
        entry = self._entries.get(payload)
        if entry is None or not entry.route.live:
            entry = self._resolve(payload)
        if self.confirming:
            self.published += 1
            if not self.waiting:
                self.waiting = True
                self._committer.wait(self)
        if entry.by_headers is not None:
            entry = self._by_headers(entry, header)
        queues = entry.queues
        if not queues:
            if entry.mandatory:
                self._return(entry.envelope, header, body)
            return
        envelope = entry.envelope
        message = Message(envelope, header, body, OVERHEAD_BYTES + (len(header) + len(body)) // len(queues))
        durable = entry.durable
        if durable and self._channel.persistent:
            log = self._log
            segment = log.position >> 32
            if len(durable) == 1:
                queue = durable[0]
                targets = pack_target(queue.number, queue.accept_logged(message, segment))
            else:
                targets = b"".join(
                    [pack_target(queue.number, queue.accept_logged(message, segment)) for queue in durable]
                )
            record = encode_message(log.synced, self._clock.now_ms, PERSISTENT, envelope.route, header, body, targets)
            message.entry = (log.append(record), len(record))
            self.logged = self.published
            queues = entry.transient
        for queue in queues:
            queue.accept(message)

    # -- confirm ------------------------------------------------------------------------------------------------------

    def confirm(self, upto: int) -> None:
        """Confirms every publish up to and including number `upto`, with one frame.

        Source: RabbitMQ's publisher confirms; basic.ack (60, 80).
        """
        confirmed = self.confirmed
        if upto <= confirmed or self.closed:
            return
        self.confirmed = upto
        multiple = 1 if upto > confirmed + 1 else 0
        self._connection.write(_CONFIRM.pack(1, self._number, 13, 60, 80, upto, multiple, 0xCE))

    # -- routing ------------------------------------------------------------------------------------------------------

    def _resolve(self, payload: bytes) -> PublishEntry:
        exchange_name, key, mandatory, immediate = publish_fields(payload)
        if immediate:
            raise ConnectionFault(540, "immediate=true")
        session, vhost = self._session, self._vhost
        resource = vhost.exchange_resource(exchange_name)
        session.check(resource, "write")
        exchange = vhost.exchange(exchange_name)
        if exchange.internal:
            raise ChannelError(403, f"cannot publish to internal {resource}")
        if exchange.type == "topic":
            session.check_topic(resource, key, "write")
        session.publishing = True
        envelope = Envelope(exchange_name, key)
        if exchange.by_headers:
            entry = PublishEntry(envelope, exchange.route(key), (), mandatory=mandatory)
            entry.by_headers = exchange
        else:
            route = exchange.route(key)
            entry = PublishEntry(envelope, route, route.destinations, mandatory=mandatory)
        self._cache.offer(payload, entry)
        return entry

    def _by_headers(self, entry: PublishEntry, header: bytes) -> PublishEntry:
        headers: dict[str, Any] = decode_properties(header).headers or {}
        assert entry.by_headers is not None
        queues = entry.by_headers.match_headers(headers)
        return PublishEntry(entry.envelope, entry.route, queues, mandatory=entry.mandatory)

    def _return(self, envelope: Envelope, header: bytes, body: bytes) -> None:
        """Gives an unroutable mandatory message back; the confirm follows it (RabbitMQ: return before the confirm)."""
        self._channel.send_content(BasicReturn(312, "NO_ROUTE", envelope.exchange, envelope.key), header, body)
