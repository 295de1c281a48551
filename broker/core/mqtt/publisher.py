"""Publish the messages of one MQTT client through its channel: runs, retained messages and its will."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.amqp.framing import PublishRun as AmqpRun
from broker.core.mqtt.context import nothing
from broker.core.mqtt.handshakes import ClientHandshakes
from broker.core.mqtt.mapping import NO_ALIAS, MessageMapping
from broker.core.mqtt.retained import RetainedMessages
from broker.core.mqtt.session import MqttChannel, MqttSession
from broker.core.mqtt.wills import Wills
from broker.core.postponed import Postponed
from broker.mqtt.errors import PacketError
from broker.mqtt.packet_cutter import PublishRun
from broker.mqtt.packets import PUBREC, V5, Will
from broker.mqtt.reason_codes import PROTOCOL_ERROR, QOS_UNSUPPORTED, RECEIVE_MAXIMUM_EXCEEDED, TOPIC_ALIAS_INVALID

RECEIVE_MAX: Final = 4096
RECEIVE_MAX_311: Final = 65_535  # MQTT 3.1.1 cannot announce a limit
TOPIC_ALIAS_MAX: Final = 16  # as in RabbitMQ
NO_QOS_2: Final = "a cluster does not support QoS 2"
NO_ALIASES: Final[dict[int, bytes]] = {}


class MqttPublisher:
    """Publish the messages of one client.

    Shapes: `steps` is the connection's list of steps, to which publishes that have to wait are appended. `_aliases`
        maps each topic alias to its topic.
    """

    __slots__ = ("_aliases", "_channel", "_confirms", "_handshakes", "_mapping", "_qos_max", "_receive_max",
                 "_retained", "_session", "_steps")  # fmt: skip

    def __init__(
        self,
        channel: MqttChannel,
        session: MqttSession,
        version: int,
        mapping: MessageMapping,
        retained: RetainedMessages,
        handshakes: ClientHandshakes,
        steps: list[Callable[[], None]],
        qos_max: int,
    ) -> None:
        self._channel = channel
        self._session = session
        self._confirms = session.confirms
        self._mapping = mapping
        self._retained = retained
        self._steps = steps
        self._qos_max = qos_max
        self._receive_max = RECEIVE_MAX if version == V5 else RECEIVE_MAX_311
        self._aliases = NO_ALIASES  # replaced by the client's first alias
        self._handshakes = handshakes
        self._confirms.begin(version, handshakes.forget)

    def publish(self, run: PublishRun) -> None:
        """Publish a run. Raises: PacketError, ProtocolError; for an invalid topic, after the earlier publishes. HOT."""
        mapping = self._mapping
        client_id = self._session.local_client_id
        properties, alias = mapping.properties(run.properties, run.qos, run.retain, client_id)
        payloads: list[bytes] = []
        fault: PacketError | None = None
        topics = run.topics
        known = payload = b""
        try:
            for place in range(len(topics)):
                if alias != NO_ALIAS:
                    topics[place] = self._topic_of(alias, topics[place])
                topic = topics[place]
                if topic != known or not payload:  # most runs have one topic
                    payload = mapping.payload(topic)
                    known = topic
                payloads.append(payload)
        except PacketError as error:
            fault = error
        bodies = run.bodies
        packet_ids = run.packet_ids
        if fault is not None:
            bodies = bodies[: len(payloads)]
            packet_ids = packet_ids[: len(payloads)]
            self._steps.append(partial(throw, fault))
        if payloads:
            qos = run.qos
            if qos:
                if qos > self._qos_max:
                    raise PacketError(QOS_UNSUPPORTED, NO_QOS_2)
                self._check_receive_maximum(len(payloads))
            headers: list[bytes] = []
            header = b""
            body_bytes = -1
            sizes_vary = False
            for body in bodies:
                if len(body) != body_bytes:
                    sizes_vary = body_bytes >= 0
                    body_bytes = len(body)
                    header = mapping.header(properties, body_bytes)
                headers.append(header)
            if run.retain or (qos > 1 and self._handshakes.has_repeats(packet_ids)):
                for place in range(len(payloads) - 1, -1, -1):
                    topic = topics[place] if run.retain else b""
                    one = payloads[place], headers[place], bodies[place], packet_ids[place], qos
                    self._steps.append(partial(self._publish_one, topic, *one))
                return
            self._confirms.set_sizes_vary(sizes_vary)
            self._publish_run(payloads, headers, bodies, packet_ids, qos)

    def _topic_of(self, alias: int, topic: bytes) -> bytes:
        """Return the topic of an alias; set it first if `topic` is not empty. Raises: PacketError 0x82, 0x94."""
        if not 0 < alias <= TOPIC_ALIAS_MAX:
            raise PacketError(TOPIC_ALIAS_INVALID, f"topic alias {alias}, at most {TOPIC_ALIAS_MAX} are allowed")
        if topic:
            if self._aliases is NO_ALIASES:
                self._aliases = {}
            self._aliases[alias] = topic
        elif alias not in self._aliases:
            raise PacketError(PROTOCOL_ERROR, f"topic alias {alias} has no topic")
        return self._aliases[alias]

    def _check_receive_maximum(self, count: int) -> None:
        """Check the number of unfinished publishes at QoS 1 and 2. Raises: PacketError 0x93 for too many."""
        if self._confirms.in_flight + len(self._handshakes.received) + count > self._receive_max:
            raise PacketError(RECEIVE_MAXIMUM_EXCEEDED, f"more than {self._receive_max} publishes are unfinished")

    def _publish_run(
        self, payloads: list[bytes], headers: list[bytes], bodies: list[bytes], packet_ids: list[int], qos: int
    ) -> None:
        """Publish messages; schedule those that have to wait as the next step."""
        taken = self._accept(payloads, headers, bodies, packet_ids, qos)
        if taken < len(payloads):
            rest = payloads[taken:], headers[taken:], bodies[taken:], packet_ids[taken:]
            self._steps.append(partial(self._publish_run, *rest, qos))

    def _publish_one(
        self, retained_topic: bytes, payload: bytes, header: bytes, body: bytes, packet_id: int, qos: int
    ) -> None:
        """Publish a message that is to be retained, or that may have been received before.

        Shapes: `retained_topic` is empty for a message that is not to be retained.
        Raises: PacketError or ProtocolError if it cannot be published or retained; in a cluster, Postponed.
        """
        confirms, retained = self._confirms, self._retained
        if qos > 1 and packet_id in self._handshakes.received:
            confirms.answer(PUBREC, packet_id)
            return
        if retained_topic:
            key = self._mapping.routing_key(retained_topic)
            retained.prepare_retain(self._session.session, key, header, body)
        with retained.vhost.ports.transaction():
            if not self._accept([payload], [header], [body], [packet_id], qos):
                again = retained_topic, payload, header, body, packet_id, qos
                self._steps.append(partial(self._publish_one, *again))

    def _accept(
        self, payloads: list[bytes], headers: list[bytes], bodies: list[bytes], packet_ids: list[int], qos: int
    ) -> int:
        """Publish messages, and return how many were accepted; the remaining ones have to wait."""
        largest_bytes = 0
        for body in bodies:
            if len(body) > largest_bytes:
                largest_bytes = len(body)
        run = AmqpRun(0, payloads, headers, bodies, largest_bytes)
        publisher = self._session.publisher
        dropped = publisher.tally.drop_unroutable
        taken = self._channel.accept_run(run) if qos < 2 else self._accept_once(run, packet_ids)
        unroutable: list[bool] = []
        unrouted = publisher.tally.drop_unroutable - dropped
        if qos and unrouted:
            unroutable = [unrouted == taken or publisher.is_unroutable(payload) for payload in payloads[:taken]]
        self._confirms.expect(packet_ids[:taken], qos, unroutable)
        return taken

    def _accept_once(self, run: AmqpRun, packet_ids: list[int]) -> int:
        """Publish messages at QoS 2 and store their packet ids in one transaction; return how many were accepted."""
        confirms = self._confirms
        begun = confirms.published
        with self._retained.vhost.ports.transaction():
            try:
                taken = self._channel.accept_run(run)
            finally:
                published = confirms.published - begun
                refused = confirms.refused
                self._handshakes.receive(
                    [packet_ids[place] for place in range(published) if not refused or begun + place + 1 not in refused]
                )
        if published < taken:  # the last message, for very many queues, is published later
            self._steps.append(partial(self._handshakes.receive, packet_ids[published:taken]))
        return taken

    def publish_will(self, will: Will) -> None:
        """Publish a will. Raises: ProtocolError or PacketError if it cannot be published."""
        mapping = self._mapping
        header = self._will_header(will)
        if self._accept([mapping.payload(will.topic)], [header], [will.body], [0], 0) and will.retain:
            key = mapping.routing_key(will.topic)
            try:
                self._retained.prepare_retain(self._session.session, key, header, will.body)
            except Postponed as postponed:
                postponed.begin(nothing)  # nothing follows, because the client has disconnected

    def hold_will(self, will: Will, wills: Wills, client_id: str, delay_s: int) -> None:
        """Store a will until its delay is over. Raises: ProtocolError or PacketError if it cannot be published."""
        mapping = self._mapping
        header = self._will_header(will)
        self._session.publisher.is_unroutable(mapping.payload(will.topic))  # raises if the user may not publish there
        key = mapping.routing_key(will.topic)
        wills.hold(client_id, key, header, will.body, delay_s * 1000)

    def _will_header(self, will: Will) -> bytes:
        """Return the content header of a will. Raises: PacketError."""
        client_id = self._session.local_client_id
        properties = self._mapping.will_properties(will.properties, will.qos, will.retain, client_id)
        return self._mapping.header(properties, len(will.body))


def throw(error: PacketError) -> None:
    """Raise an error, as a step."""
    raise error
