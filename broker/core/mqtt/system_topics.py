"""The topics below `$SYS`: what the broker tells of itself, to clients that have subscribed with them."""

from __future__ import annotations

from typing import Final

from broker import __version__
from broker.amqp.content_header import facts_of
from broker.amqp.header_edit import encode_header
from broker.core.message.message import Envelope, Message
from broker.core.mqtt.clients import MqttClients
from broker.core.mqtt.mapping import SYSTEM_EXCHANGE
from broker.core.mqtt.retained import RetainedMessages
from broker.core.mqtt.session import MqttSession
from broker.core.publishing.posting import charge_bytes
from broker.core.vhost import Vhost
from broker.routing.pattern import AMQP, words_match

INTERVAL_MS: Final = 10_000


class SystemTopics:
    """Publishes the values of one vhost, to the queues of sessions that watch them, while there is any.

    The names are Mosquitto's. No binding leads there, so no other client or AMQP consumer gets them.
    """

    __slots__ = ("_begun_ms", "_clients", "_retained", "_sessions", "_vhost")

    def __init__(self, vhost: Vhost, clients: MqttClients, retained: RetainedMessages) -> None:
        self._vhost = vhost
        self._clients = clients
        self._retained = retained
        self._begun_ms = vhost.ports.clock.now_ms
        self._sessions: dict[MqttSession, None] = {}

    def watch(self, session: MqttSession) -> None:
        """Publish to a session now, and from time to time until it ends or has no such filter."""
        if self._publish_to(session):
            self._sessions[session] = None
            self._wait()

    def _wait(self) -> None:
        ports = self._vhost.ports
        ports.deadlines.set(self, ports.clock.now_ms + INTERVAL_MS, self._publish)

    def _publish(self) -> None:
        for session in list(self._sessions):
            if not self._publish_to(session):
                del self._sessions[session]
        if self._sessions:
            self._wait()

    def _publish_to(self, session: MqttSession) -> bool:
        """Publish the values that the filters of a session match, and return whether it has any filter."""
        filters = [] if session.closed else session.system_filters()
        values = self._values() if filters else {}
        for name, key in filters:
            queue = self._vhost.queues.get(name)
            pattern = AMQP.parse(key).words
            for topic, value in values.items():
                if queue is not None and words_match(pattern, AMQP.words(topic)):
                    body = str(value).encode()
                    header = encode_header({"delivery_mode": 1}, len(body))
                    envelope = Envelope(SYSTEM_EXCHANGE, topic)
                    charge = charge_bytes(header, body, 1)
                    now_ms = self._vhost.ports.clock.now_ms
                    self._vhost.poster.post(Message(envelope, header, body, charge, facts_of(header), now_ms), (queue,))
        return bool(filters)

    def _values(self) -> dict[str, str | int]:
        """Return the values by routing key."""
        counts, now_ms = self._vhost.tally.counts(), self._vhost.ports.clock.now_ms
        return {
            "$SYS.broker.version": f"SlotMQ {__version__}",
            "$SYS.broker.uptime": f"{(now_ms - self._begun_ms) // 1000} seconds",
            "$SYS.broker.clients.connected": len([vhost for vhost, _ in self._clients if vhost == self._vhost.name]),
            "$SYS.broker.messages.received": counts.publish,
            "$SYS.broker.messages.sent": counts.deliver + counts.deliver_no_ack,
            "$SYS.broker.retained messages.count": len(self._retained),
        }
