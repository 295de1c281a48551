"""What one MQTT client publishes: runs, retained messages and its will, as publishes of its channel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from broker.amqp.framing import PublishRun as AmqpRun
from broker.core.mqtt.channel import MqttChannel
from broker.core.mqtt.mapping import MessageMapping
from broker.core.mqtt.retained import RetainedMessages
from broker.core.mqtt.session import MqttSession
from broker.core.postponed import Postponed
from broker.mqtt.errors import PacketError
from broker.mqtt.packet_cutter import PublishRun
from broker.mqtt.packets import Will
from broker.mqtt.topics import routing_key

__all__ = ["MqttPublisher"]


class MqttPublisher:
    """Publishes for one client.

    Shapes: `steps` is the connection's: what has to wait becomes its next step.
    """

    __slots__ = ("_channel", "_client", "_confirms", "_mapping", "_retained", "_steps")

    def __init__(
        self,
        channel: MqttChannel,
        session: MqttSession,
        mapping: MessageMapping,
        retained: RetainedMessages,
        steps: deque[Callable[[], None]],
    ) -> None:
        self._channel = channel
        self._client = session.session
        self._confirms = session.confirms
        self._mapping = mapping
        self._retained = retained
        self._steps = steps

    def publish(self, run: PublishRun) -> None:
        """Publish a run. Raises: PacketError for a publish that cannot be; those before it are published. HOT."""
        mapping = self._mapping
        properties = mapping.properties(run.properties, run.qos)
        payloads: list[bytes] = []
        fault: PacketError | None = None
        for topic in run.topics:
            try:
                payloads.append(mapping.payload(topic))
            except PacketError as error:
                fault = error
                break
        bodies = run.bodies
        packet_ids = run.packet_ids
        if fault is not None:
            bodies = bodies[: len(payloads)]
            packet_ids = packet_ids[: len(payloads)]
            self._steps.appendleft(partial(throw, fault))
        if payloads:
            headers = [mapping.header(properties, len(body)) for body in bodies]
            if run.retain:
                for place in range(len(payloads) - 1, -1, -1):
                    one = run.topics[place], payloads[place], headers[place], bodies[place]
                    self._steps.appendleft(partial(self._retain, *one, packet_ids[place], run.qos))
                return
            self._confirms.expect(packet_ids, run.qos)
            self._pass_on(payloads, headers, bodies)

    def _pass_on(self, payloads: list[bytes], headers: list[bytes], bodies: list[bytes]) -> None:
        """Publish messages; those that have to wait are the next step."""
        largest_bytes = max([len(body) for body in bodies])
        taken = self._channel.accept_run(AmqpRun(0, payloads, headers, bodies, largest_bytes))
        if taken < len(payloads):
            self._steps.appendleft(partial(self._pass_on, payloads[taken:], headers[taken:], bodies[taken:]))

    def _retain(self, topic: bytes, payload: bytes, header: bytes, body: bytes, packet_id: int, qos: int) -> None:
        """Publish a message that is retained. Raises: PacketError 0x97 when that is over a limit."""
        key = routing_key(topic, self._mapping.levels_max)
        self._retained.check_room(self._client, key, header, body)
        self._confirms.expect([packet_id], qos)
        self._pass_on_retained(key, payload, header, body)

    def _pass_on_retained(self, key: str, payload: bytes, header: bytes, body: bytes) -> None:
        """Publish a message and retain it, which its PUBACK waits for; one that has to wait is the next step."""
        if not self._channel.accept_run(AmqpRun(0, [payload], [header], [body], len(body))):
            self._steps.appendleft(partial(self._pass_on_retained, key, payload, header, body))
            return
        self._retained.keep(key, header, body)
        if self._retained.needs_sync:
            self._confirms.wait_for_disk()

    def publish_will(self, will: Will) -> None:
        """Publish a will. Raises: ProtocolError or PacketError for one that cannot be published."""
        mapping = self._mapping
        header = mapping.header(mapping.will_properties(will.properties, will.qos), len(will.body))
        run = AmqpRun(0, [mapping.payload(will.topic)], [header], [will.body], len(will.body))
        self._confirms.expect([0], 0)
        if self._channel.accept_run(run) and will.retain:
            key = routing_key(will.topic, mapping.levels_max)
            try:
                self._retained.check_room(self._client, key, header, will.body)
            except Postponed as postponed:
                postponed.begin(nothing)
            else:
                self._retained.keep(key, header, will.body)


def nothing() -> None:
    """Do nothing: the client of a will is gone."""


def throw(error: PacketError) -> None:
    """Raise an error. Raises: PacketError."""
    raise error
