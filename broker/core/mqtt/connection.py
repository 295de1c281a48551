"""The connection of an MQTT client: its packets become publishes, queues and bindings, and their answers packets.

It takes the place of an AMQP connection: the transport, the throttle and the listener see no difference. It has one
channel, whose number no packet shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from broker.amqp.channel import Channel
from broker.amqp.connection import Connection, ConnectionSession
from broker.amqp.connection_limits import ConnectionLimits
from broker.amqp.control import CLOSED, RUNNING, STARTING
from broker.amqp.errors import UNEXPECTED, ChannelError, ConnectionFault, Fatal, ProtocolError, Refused
from broker.amqp.framing import PublishRun as AmqpRun
from broker.amqp.output import OutputTaker
from broker.core.auth.logins import EXTERNAL, PLAIN
from broker.core.mqtt.channel import CHANNEL, MqttChannel
from broker.core.mqtt.clients import MqttClients
from broker.core.mqtt.consumer import ClientForm
from broker.core.mqtt.faults import PacketFault, reason_of
from broker.core.mqtt.mapping import MessageMapping
from broker.core.mqtt.retained import RetainedMessages
from broker.core.mqtt.session import CLIENT_ID_MAX_BYTES, MqttSession, MqttSessionOfConnection
from broker.core.vhost import Vhost
from broker.mqtt.conversation import Acks, Conversation, Ping
from broker.mqtt.errors import PacketError
from broker.mqtt.packet_cutter import PublishRun
from broker.mqtt.packets import (
    PINGRESP,
    V5,
    V311,
    Ack,
    Connect,
    Disconnect,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode_connack,
    encode_suback,
    encode_unsuback,
)
from broker.mqtt.properties import (
    ASSIGNED_CLIENT_ID,
    AUTHENTICATION_METHOD,
    IDENTIFIERS_AVAILABLE,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_S,
    SHARED_AVAILABLE,
    SUBSCRIPTION_IDENTIFIER,
    WILL_DELAY_S,
)
from broker.mqtt.reason_codes import (
    BAD_AUTHENTICATION_METHOD,
    BAD_CREDENTIALS,
    CLIENT_ID_INVALID,
    FAILURE_311,
    IDENTIFIERS_UNSUPPORTED,
    IMPLEMENTATION_ERROR,
    NO_SUBSCRIPTION,
    PROTOCOL_ERROR,
    QOS_UNSUPPORTED,
    SERVER_UNAVAILABLE,
    SUCCESS,
)
from broker.mqtt.topics import binding_key, routing_key
from broker.mqtt.wire import VARINT_MAX

__all__ = ["MqttConnection", "MqttContext"]

NO_BODIES: Final = 8  # a frame size that leaves no room for a body: the flusher appends each message by itself
WITH_WILL: Final = 0x04
ALWAYS: Final = 0  # retain handling: send retained messages at each SUBSCRIBE of a filter
IF_NEW: Final = 1
WORDS: Final = {V311: "MQTT 3-1-1", V5: "MQTT 5-0"}  # RabbitMQ's


class MqttContext:
    """What all MQTT connections of a broker share.

    Units: `prefetch` is how many deliveries at QoS 1 a client has unacknowledged, at most; a client may ask for fewer.
        `retained_max` is how many messages a vhost retains.
    """

    __slots__ = ("_retained", "_retained_max", "_retained_max_bytes", "clients", "default_vhost", "mapping",
                 "packet_max_bytes", "prefetch", "session_expiry_max_s")  # fmt: skip

    def __init__(
        self,
        levels_max: int,
        *,
        default_vhost: str,
        packet_max_bytes: int,
        prefetch: int,
        session_expiry_max_s: int,
        retained_max: int,
        retained_max_bytes: int,
    ) -> None:
        self.clients = MqttClients()
        self.mapping = MessageMapping(levels_max)
        self.default_vhost = default_vhost
        self.packet_max_bytes = packet_max_bytes
        self.prefetch = prefetch
        self.session_expiry_max_s = session_expiry_max_s
        self._retained: dict[str, RetainedMessages] = {}
        self._retained_max = retained_max
        self._retained_max_bytes = retained_max_bytes

    def load_retained(self, vhost: Vhost, done: Callable[[], None]) -> None:
        """Make the index of a vhost's retained messages, and call `done` then."""
        retained = self._retained[vhost.name] = RetainedMessages(vhost, self._retained_max, self._retained_max_bytes)
        retained.load(done)

    def retained_of(self, vhost: Vhost) -> RetainedMessages:
        """Return the retained messages of a vhost; those of one that was opened later may be loading."""
        found = self._retained.get(vhost.name)
        if found is None or found.vhost is not vhost:
            self.load_retained(vhost, nothing)
            found = self._retained[vhost.name]
        return found


class MqttConnection(Connection):
    """One MQTT client's connection.

    Shapes: `_steps` are parts of packets that are carried out before the next packet is cut: they wait while the
        connection is held.
    Invariant: feed() raises no protocol error.
    """

    __slots__ = (
        "_client_id",
        "_codes",
        "_connect",
        "_context",
        "_reason",
        "_steps",
        "_talk",
        "_vhost",
        "_wanted",
        "_will",
    )

    def __init__(
        self,
        session_factory: Callable[[Connection], ConnectionSession],
        limits: ConnectionLimits,
        taker: OutputTaker,
        on_error: Callable[[Connection, int, ProtocolError | Refused], None],
        context: MqttContext,
        mechanisms: Sequence[str],
    ) -> None:
        super().__init__(session_factory, limits, {}, taker, on_error, mechanisms)
        self.heartbeat_s = 0
        self.frame_max = NO_BODIES
        self.channel_max = 1
        self._context = context
        self._talk = Conversation(context.packet_max_bytes)
        self._steps: deque[Callable[[], None]] = deque()
        self._client_id = ""
        self._connect: Connect | None = None
        self._vhost: Vhost | None = None
        self._will: Will | None = None
        self._codes: list[int] = []  # of the SUBSCRIBE or UNSUBSCRIBE that is carried out
        self._wanted: list[tuple[str, str]] = []  # queues and binding keys of which it is to get retained messages
        self._reason = ""

    @property
    def protocol(self) -> str:
        """The protocol, in RabbitMQ's words."""
        return WORDS[self._talk.version]

    @property
    def buffered_bytes(self) -> int:
        """Return how many received bytes wait to be processed."""
        return self._talk.buffered_bytes

    @property
    def spared_bytes(self) -> int:
        """Return 0: all bytes use up the budget."""
        return 0

    def upcoming(self, count: int) -> Iterator[tuple[Channel, Any]]:
        """Return nothing: packets are carried out one by one."""
        return iter(())

    # -- input --------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, budget_bytes: int | None = None) -> bool:
        """Process received bytes, and return False when complete packets are left. HOT.

        Raises: only Fatal.
        """
        self.received += len(data)
        talk = self._talk
        if self.state is CLOSED:
            return True
        talk.feed(data)
        begun_bytes = talk.buffered_bytes
        limit_bytes = self.limits.unsent_max_bytes
        while not self.held and self.out_bytes <= limit_bytes and not self.finished:
            if budget_bytes is not None and begun_bytes - talk.buffered_bytes >= budget_bytes:
                break
            try:
                if self._steps:
                    self._steps.popleft()()
                    continue
                packet = talk.next_packet()
                if packet is None:
                    self.amid_message = talk.amid_packet
                    return True
                self._act(packet)
            except Fatal:
                raise
            except PacketError as error:
                self.fail(PacketFault(error.reason_code, error.text))
            except ProtocolError as error:
                self.fail(error)
            except Exception as error:  # noqa: BLE001 - any error ends this connection and no other
                self.session.crashed(error)
                self.fail(ConnectionFault(541, UNEXPECTED))
        self.amid_message = False
        return self.finished or not (self._steps or talk.has_packet)

    def _act(self, packet: Any) -> None:
        if isinstance(packet, PublishRun):
            self._publish(packet)
        elif isinstance(packet, Acks):
            self._mqtt.deliveries.acknowledge(packet.packet_ids)
        elif isinstance(packet, Ping):
            self.write(PINGRESP)
        elif isinstance(packet, Subscribe):
            self._subscribe(packet)
        elif isinstance(packet, Unsubscribe):
            self._unsubscribe(packet)
        elif isinstance(packet, Ack):
            if packet.reason_code < FAILURE_311:
                self._mqtt.deliveries.acknowledge([packet.packet_id])
            else:
                self._mqtt.deliveries.refuse(packet.packet_id)
        elif isinstance(packet, Disconnect):
            self._disconnect(packet)
        else:
            self._log_in(packet)

    @property
    def _mqtt(self) -> MqttSession:
        session = self.channels[CHANNEL].session
        assert isinstance(session, MqttSession)
        return session

    # -- login --------------------------------------------------------------------------------------------------------

    def _log_in(self, connect: Connect) -> None:
        """Check a CONNECT and its login. Raises: PacketError."""
        self.client_properties = {
            "product": "MQTT client",
            "client_id": connect.client_id,
            "connection_name": connect.client_id,
        }
        if AUTHENTICATION_METHOD in connect.properties:
            raise PacketError(BAD_AUTHENTICATION_METHOD, "enhanced authentication is not supported")
        if len(connect.client_id.encode()) > CLIENT_ID_MAX_BYTES:
            raise PacketError(CLIENT_ID_INVALID, f"a client id of more than {CLIENT_ID_MAX_BYTES} bytes")
        if not connect.client_id and connect.version == V311 and not connect.clean_start:
            raise PacketError(CLIENT_ID_INVALID, "an empty client id for a session that lasts")
        if connect.will is not None:
            self._check_will(connect, connect.will)
        mechanism, response = PLAIN, b""
        if connect.user is not None and connect.password is not None:
            name = connect.user.rpartition(":")[2]
            response = b"\0" + name.encode() + b"\0" + connect.password
        elif connect.password is None and EXTERNAL in self.mechanisms:
            mechanism = EXTERNAL
        else:
            raise PacketError(BAD_CREDENTIALS, "no user name and password")
        self._connect = connect
        self.state = STARTING
        try:
            self.session.authenticate(mechanism, response)
        except Refused as error:
            self.refuse(error, mechanism)

    def _check_will(self, connect: Connect, will: Will) -> None:
        """Check a will, so that it can be published at the end. Raises: PacketError."""
        if will.qos > 1:
            raise PacketError(QOS_UNSUPPORTED, "a will at QoS 2 is not supported")
        if will.properties.get(WILL_DELAY_S, 0) and connect.session_expiry_s:
            raise PacketError(IMPLEMENTATION_ERROR, "a delayed will of a session that lasts is not supported")
        mapping = self._context.mapping
        mapping.payload(will.topic)
        mapping.will_properties(will.properties, will.qos)

    def admit(self) -> None:
        """Admit the user, also when the decision came after a hold; the vhost is opened next."""
        if self.state is not STARTING:
            return
        self._steps.append(self._open)
        if self.held:
            self.release()

    def refuse(self, error: Refused, mechanism: str) -> None:
        """Refuse the client."""
        if self.state is not STARTING:
            return
        self.end_holds()
        if self._on_error is not None:
            self._on_error(self, 0, error)
        self.write(self._talk.refusal(BAD_CREDENTIALS, "bad user name or password"))
        self.failure = error.with_traceback(None)
        self.finish()

    def _open(self) -> None:
        """Open the vhost, take over the client id, and begin the session. Raises: ConnectionFault."""
        connect, context, session = self._connect, self._context, self.session
        assert connect is not None and isinstance(session, MqttSessionOfConnection)
        named, colon, _ = (connect.user or "").rpartition(":")
        session.open(named if colon else context.default_vhost)
        self._vhost = vhost = session.vhost
        assert vhost is not None
        self._client_id = connect.client_id or vhost.new_name("mqtt-")
        if not context.retained_of(vhost).loaded:
            raise PacketFault(SERVER_UNAVAILABLE, "the retained messages of the vhost are being read")
        context.clients.enter(vhost.name, self._client_id, self)
        channel = MqttChannel(self, CHANNEL, self.forget_channel)
        opened = session.open_channel(channel)
        assert isinstance(opened, MqttSession)
        self.channels[CHANNEL] = channel
        channel.start(opened)
        asked = connect.properties.get(MAXIMUM_PACKET_SIZE, VARINT_MAX + 5)
        form = ClientForm(connect.version, asked, context.mapping, vhost.ports.clock)
        longest_s = context.session_expiry_max_s
        expiry_s = longest_s if connect.session_expiry_s is None else min(connect.session_expiry_s, longest_s)
        prefetch = min(context.prefetch, connect.properties.get(RECEIVE_MAXIMUM, context.prefetch))
        opened.begin(self._client_id, form, expiry_s, prefetch)
        self.heartbeat_s = -(-3 * connect.keep_alive_s // 4)  # a client is gone after two silent intervals
        self._will = connect.will
        self.state = RUNNING
        if connect.clean_start:
            self._steps += (partial(opened.delete, 0), partial(opened.delete, 1))
        self._steps.append(partial(self._welcome, connect, opened))
        self.touch()

    def _welcome(self, connect: Connect, session: MqttSession) -> None:
        """Answer a CONNECT, and go on with the session that is there. Raises: ChannelError 403."""
        self._talk.accept()
        present = bool(session.kept_queues())
        session.learn_expiry()
        properties: dict[int, Any] = {}
        if connect.version == V5:
            if session.expiry_s != connect.session_expiry_s:
                properties[SESSION_EXPIRY_S] = session.expiry_s
            properties[MAXIMUM_QOS] = 1
            properties[MAXIMUM_PACKET_SIZE] = self._context.packet_max_bytes
            if not connect.client_id:
                properties[ASSIGNED_CLIENT_ID] = self._client_id
            properties[IDENTIFIERS_AVAILABLE] = 0
            properties[SHARED_AVAILABLE] = 0
        self._answer(encode_connack(connect.version, SUCCESS, present=present, properties=properties))
        session.resume()

    def _answer(self, packet: bytes) -> None:
        """Send a packet after the changes that it answers are on disk."""
        self.when_sent(CHANNEL, partial(self.write, packet))

    # -- publishing ---------------------------------------------------------------------------------------------------

    def _publish(self, run: PublishRun) -> None:
        """Publish a run. Raises: PacketError for a publish that cannot be; those before it are published. HOT."""
        mapping = self._context.mapping
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
            self._mqtt.confirms.expect(packet_ids, run.qos)
            self._pass_on(payloads, headers, bodies)

    def _pass_on(self, payloads: list[bytes], headers: list[bytes], bodies: list[bytes]) -> None:
        """Publish messages; those that have to wait are the next step."""
        largest_bytes = max([len(body) for body in bodies])
        taken = self.channels[CHANNEL].accept_run(AmqpRun(0, payloads, headers, bodies, largest_bytes))
        if taken < len(payloads):
            self._steps.appendleft(partial(self._pass_on, payloads[taken:], headers[taken:], bodies[taken:]))

    def _retain(self, topic: bytes, payload: bytes, header: bytes, body: bytes, packet_id: int, qos: int) -> None:
        """Publish a message that is retained. Raises: PacketError 0x97 when that is over a limit."""
        key = routing_key(topic, self._context.mapping.levels_max)
        self._retained.check_room(key, len(header), len(body))
        self._mqtt.confirms.expect([packet_id], qos)
        self._pass_on_retained(key, payload, header, body)

    def _pass_on_retained(self, key: str, payload: bytes, header: bytes, body: bytes) -> None:
        """Publish a message and retain it, which its PUBACK waits for; one that has to wait is the next step."""
        if not self.channels[CHANNEL].accept_run(AmqpRun(0, [payload], [header], [body], len(body))):
            self._steps.appendleft(partial(self._pass_on_retained, key, payload, header, body))
            return
        self._retained.keep(key, header, body)
        session = self._mqtt
        if session.vhost.store.needs_sync:
            session.confirms.wait_for_disk()

    @property
    def _retained(self) -> RetainedMessages:
        assert self._vhost is not None
        return self._context.retained_of(self._vhost)

    def _publish_will(self) -> None:
        """Publish the will, if there is one. The client is gone: what goes wrong is logged."""
        will, self._will = self._will, None
        if will is None or CHANNEL not in self.channels:
            return
        mapping = self._context.mapping
        properties = mapping.will_properties(will.properties, will.qos)
        header = mapping.header(properties, len(will.body))
        run = AmqpRun(0, [mapping.payload(will.topic)], [header], [will.body], len(will.body))
        try:
            self._mqtt.confirms.expect([0], 0)
            if self.channels[CHANNEL].accept_run(run) and will.retain:
                key = routing_key(will.topic, mapping.levels_max)
                self._retained.check_room(key, len(header), len(will.body))
                self._retained.keep(key, header, will.body)
        except PacketError as error:
            if self._on_error is not None:
                self._on_error(self, CHANNEL, PacketFault(error.reason_code, error.text))
        except ProtocolError as error:
            if self._on_error is not None:
                self._on_error(self, CHANNEL, error)

    # -- subscribing --------------------------------------------------------------------------------------------------

    def _subscribe(self, packet: Subscribe) -> None:
        """Carry out a SUBSCRIBE, a filter in each step. Raises: PacketError 0xA1."""
        if SUBSCRIPTION_IDENTIFIER in packet.properties:
            raise PacketError(IDENTIFIERS_UNSUPPORTED, "subscription identifiers are not supported")
        self._begin_answer()
        self._steps += [partial(self._subscribe_to, one) for one in packet.subscriptions]
        self._steps.append(partial(self._answer_subscribe, packet.packet_id))

    def _subscribe_to(self, subscription: Subscription) -> None:
        try:
            if subscription.no_local:
                raise PacketError(IMPLEMENTATION_ERROR, "no local is not supported")
            key = binding_key(subscription.topic_filter, self._context.mapping.levels_max)
            qos = min(subscription.qos, 1)
            is_new = self._mqtt.subscribe(key, qos)
            self._codes.append(qos)
            if subscription.retain_handling == ALWAYS or (subscription.retain_handling == IF_NEW and is_new):
                self._wanted.append((self._mqtt.queue_name(qos), key))
        except PacketError as error:
            self._refuse_one(error.reason_code, error.text)
        except ChannelError as error:
            self._refuse_one(*reason_of(error))

    def _answer_subscribe(self, packet_id: int) -> None:
        reason = self._reason if self._talk.reasons else ""
        self._answer(encode_suback(self._talk.version, packet_id, self._codes, reason))
        if self._wanted:
            self.when_sent(CHANNEL, partial(self._mqtt.deliveries.send_retained, self._retained, self._wanted))
            self._wanted = []

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        """Carry out an UNSUBSCRIBE, a filter in each step."""
        self._begin_answer()
        self._steps += [partial(self._unsubscribe_from, one) for one in packet.filters]
        self._steps.append(partial(self._answer_unsubscribe, packet.packet_id))

    def _unsubscribe_from(self, topic_filter: str) -> None:
        try:
            key = binding_key(topic_filter, self._context.mapping.levels_max)
            self._codes.append(SUCCESS if self._mqtt.unsubscribe(key) else NO_SUBSCRIPTION)
        except PacketError as error:
            self._refuse_one(error.reason_code, error.text)
        except ChannelError as error:
            self._refuse_one(*reason_of(error))

    def _answer_unsubscribe(self, packet_id: int) -> None:
        self._answer(encode_unsuback(self._talk.version, packet_id, self._codes))

    def _begin_answer(self) -> None:
        self._codes = []
        self._reason = ""

    def _refuse_one(self, reason_code: int, text: str) -> None:
        self._codes.append(reason_code if self._talk.version == V5 else FAILURE_311)
        self._reason = self._reason or text

    # -- the end ------------------------------------------------------------------------------------------------------

    def _disconnect(self, packet: Disconnect) -> None:
        """End as the client wants. Raises: PacketError for an expiry that cannot be."""
        expiry_s = packet.session_expiry_s
        session = self._mqtt
        if expiry_s is not None and expiry_s != session.expiry_s:
            if not session.expiry_s:
                raise PacketError(PROTOCOL_ERROR, "a session that ends with its connection cannot last after all")
            if expiry_s:
                raise PacketError(IMPLEMENTATION_ERROR, "a DISCONNECT can end a session, not change its expiry")
        if packet.reason_code != WITH_WILL:
            self._will = None
        self.orderly = self.drained = True
        if expiry_s == 0 and session.expiry_s:
            session.delete(0)
            session.delete(1)
        self.finish()

    def fail(self, error: ProtocolError, channel: int = 0) -> None:
        """Tell the client why its connection ends, as its version can, and end it."""
        if self.state is CLOSED:
            return
        if self._on_error is not None:
            self._on_error(self, channel, error)
        self.failure = error.with_traceback(None)
        self.end_holds()
        words = self.last_words(error)
        if words:
            self.write(words)
        self.finish()

    def last_words(self, error: ProtocolError) -> bytes:
        """Return what tells the client of an error."""
        reason_code, text = reason_of(error)
        return self._talk.refusal(reason_code, text)

    def finish(self) -> None:
        """End the connection: discard further packets, publish the will, and close every session."""
        if self.state is not CLOSED:
            self._steps.clear()
            self._talk.end()
            if self.state is RUNNING:
                self._publish_will()
            if self._vhost is not None:
                self._context.clients.leave(self._vhost.name, self._client_id, self)
        super().finish()

    def send_heartbeat(self) -> None:
        """Send nothing: the client keeps the connection alive."""

    def take_output(self) -> list[Any]:
        """Return the output in pieces to write, and settle what it delivers without a PUBACK."""
        if self.state is RUNNING and CHANNEL in self.channels:
            self._mqtt.deliveries.serve()
        return super().take_output()


def throw(error: PacketError) -> None:
    """Raise an error. Raises: PacketError."""
    raise error


def nothing() -> None:
    """Do nothing."""
