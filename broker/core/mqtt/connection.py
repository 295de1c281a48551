"""The connection of an MQTT client: map its packets to publishes, queues and bindings, and answer them with packets.
It has the interface of an AMQP connection, with a single channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from broker.amqp.channel import Channel
from broker.amqp.connection import Connection, ConnectionSession
from broker.amqp.control import CLOSED, RUNNING, STARTING
from broker.amqp.errors import UNEXPECTED, ChannelError, ConnectionFault, Fatal, ProtocolError, Refused
from broker.amqp.framing import FrameCutter
from broker.amqp.handshake import ConnectionLimits
from broker.amqp.output import OutputTaker
from broker.core.mqtt.context import MqttContext
from broker.core.mqtt.faults import PacketFault, reason_of
from broker.core.mqtt.handshakes import ClientHandshakes, Handshakes
from broker.core.mqtt.login import check_connect, client_form, connack_properties, credentials, session_expiry_s
from broker.core.mqtt.publisher import MqttPublisher
from broker.core.mqtt.session import CHANNEL, MqttChannel, MqttSession, MqttSessionOfConnection, shared_name
from broker.core.mqtt.subscriptions import options_of
from broker.core.postponed import Postponed, carry_out
from broker.core.queue.consumer import NO_BODIES
from broker.core.queue.queue import Queue
from broker.core.session.client import SessionClient
from broker.core.vhost import Vhost
from broker.mqtt.conversation import Conversation, Ping
from broker.mqtt.errors import PacketError
from broker.mqtt.packet_cutter import PublishRun
from broker.mqtt.packets import (
    PINGRESP,
    PUBACK,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    V5,
    V311,
    Acks,
    Connect,
    Disconnect,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode_answer,
    encode_connack,
)
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER, WILL_DELAY_S
from broker.mqtt.reason_codes import (
    BAD_CREDENTIALS,
    FAILURE_311,
    NO_SUBSCRIPTION,
    PROTOCOL_ERROR,
    SERVER_UNAVAILABLE,
    SUCCESS,
)
from broker.mqtt.topics import SYSTEM, split_shared

NOTHING: Final[dict[str, Any]] = {}
NO_FRAMES: Final = FrameCutter(0)  # always empty, so all MQTT connections share it
PROTOCOLS: Final = {V311: "MQTT 3-1-1", V5: "MQTT 5-0"}  # RabbitMQ's names
ALWAYS: Final = 0  # retain handling: send retained messages for each SUBSCRIBE
IF_NEW: Final = 1  # retain handling: send them only if the session has no subscription with the filter yet


class FilterRequest:
    """Process the topic filters of one SUBSCRIBE or UNSUBSCRIBE, and collect a reason code for each.

    Shapes: `wanted` contains a queue name and a binding key for each filter whose retained messages are to be sent;
        `has_system` is set if a filter for topics below `$SYS` was subscribed.
    """

    def __init__(self, session: MqttSession, context: MqttContext, talk: Conversation, identifier: int = 0) -> None:
        self._session = session
        self._context = context
        self._talk = talk
        self._identifier = identifier
        self._codes: list[int] = []
        self._reason = ""
        self.wanted: list[tuple[str, str]] = []
        self.has_system = False

    def subscribe(self, subscription: Subscription) -> None:
        session = self._session
        try:
            share, topic_filter = split_shared(subscription.topic_filter)
            key = self._context.mapping.binding_key(topic_filter)
            qos = min(subscription.qos, self._context.qos_max)
            if share:
                qos = min(qos, 1)
                session.share(
                    shared_name(share, topic_filter), key, qos, options_of(subscription, qos, self._identifier)
                )
                self._codes.append(qos)
                return
            is_new = session.subscribe(key, qos, options_of(subscription, qos, self._identifier))
            self.has_system |= topic_filter.startswith(SYSTEM)
            self._codes.append(qos)
            if subscription.retain_handling == ALWAYS or (subscription.retain_handling == IF_NEW and is_new):
                self.wanted.append((session.queue_name(qos), key))
        except (PacketError, ChannelError) as error:
            self._refuse(*reason_of(error))

    def unsubscribe(self, topic_filter: str) -> None:
        try:
            share, unshared = split_shared(topic_filter)
            key = self._context.mapping.binding_key(unshared)
            session = self._session
            ended = session.unshare(shared_name(share, unshared)) if share else session.unsubscribe(key)
            self._codes.append(SUCCESS if ended else NO_SUBSCRIPTION)
        except (PacketError, ChannelError) as error:
            self._refuse(*reason_of(error))

    def _refuse(self, reason_code: int, text: str) -> None:
        self._codes.append(reason_code if self._talk.version == V5 else FAILURE_311)
        self._reason = self._reason or text

    def suback(self, packet_id: int) -> bytes:
        """Return the answer to a SUBSCRIBE."""
        reason = self._reason if self._talk.reasons else ""
        return encode_answer(SUBACK, self._talk.version, packet_id, self._codes, reason)

    def unsuback(self, packet_id: int) -> bytes:
        """Return the answer to an UNSUBSCRIBE, with codes in MQTT 5 only."""
        codes = self._codes if self._talk.version == V5 else []
        return encode_answer(UNSUBACK, self._talk.version, packet_id, codes)


class MqttConnection(Connection):
    """One MQTT client's connection.

    Shapes: `_steps` contains the remaining steps of the current packet, the next one at the end. The next packet is
        parsed when none is left.
    Invariant: feed() raises no protocol error.
    """

    __slots__ = ("_client_id", "_connect", "_context", "_expired_queues", "_handshakes", "_publisher", "_steps",
                 "_talk", "_vhost", "_will")  # fmt: skip
    __deletable__ = ("_handshakes", "_publisher")
    _handshakes: ClientHandshakes  # set while the state is RUNNING
    _publisher: MqttPublisher  # as above

    def __init__(
        self,
        session_factory: Callable[[Connection], ConnectionSession],
        limits: ConnectionLimits,
        taker: OutputTaker,
        on_error: Callable[[Connection, int, ProtocolError | Refused], None],
        context: MqttContext,
        mechanisms: Sequence[str],
    ) -> None:
        super().__init__(session_factory, limits, NOTHING, taker, on_error, mechanisms)
        self._cutter = NO_FRAMES
        self.heartbeat_s = 0
        self.frame_max = NO_BODIES
        self.channel_max = 1
        self._context = context
        self._talk = Conversation(context.settings.packet_max_bytes)
        self._steps: list[Callable[[], None]] = []
        self._client_id = ""
        self._expired_queues: Sequence[Queue] = ()  # durable queues of a session that expires with the connection
        self._connect: Connect | None = None
        self._vhost: Vhost | None = None
        self._will: Will | None = None

    @property
    def protocol(self) -> str:
        return PROTOCOLS[self._talk.version]

    @property
    def client_facts(self) -> dict[str, Any] | None:
        """Facts about the client for operators; None until its CONNECT has passed the checks."""
        connect = self._connect
        if connect is None:
            return None
        session = self.channels.get(CHANNEL)
        will = connect.will
        return {
            "client_id": self._client_id or connect.client_id,
            "keep_alive_s": connect.keep_alive_s,
            "clean_start": connect.clean_start,
            "session_expiry_s": 0 if session is None else self._mqtt.expiry_s,
            "will_topic": None if will is None else will.topic.decode(errors="replace"),
            "will_qos": None if will is None else will.qos,
            "will_retain": None if will is None else will.retain,
        }

    @property
    def buffered_bytes(self) -> int:
        """The number of received bytes that are not processed yet."""
        return self._talk.buffered_bytes

    @property
    def spared_bytes(self) -> int:
        """Always 0, because all received bytes count against the budget."""
        return 0

    def upcoming(self, count: int) -> Iterator[tuple[Channel, Any]]:
        """Return an empty iterator, because packets are processed one by one."""
        return iter(())

    # -- input --------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, budget_bytes: int | None = None) -> bool:
        """Process received bytes, and return False if complete packets may remain to be processed. HOT.

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
                    self._carry_out(self._steps.pop())
                    continue
                packet = talk.next_packet()
                if packet is None:
                    self.amid_message = talk.amid_packet
                    return True
                self._act(packet)
            except Exception as error:  # noqa: BLE001 - any error ends this connection and no other
                self._end_by(error)
        self.amid_message = False
        return self.finished or not (self._steps or talk.has_packet)

    def _end_by(self, error: Exception) -> None:
        """End the connection because of an error. Raises: the error itself, if it is Fatal."""
        if isinstance(error, Fatal):
            raise error
        if isinstance(error, PacketError):
            self.fail(PacketFault(error.reason_code, error.text))
        elif isinstance(error, ProtocolError):
            self.fail(error)
        else:
            self.session.crashed(error)
            self.fail(ConnectionFault(541, UNEXPECTED))

    def _then(self, *steps: Callable[[], None]) -> None:
        """Schedule steps to run next, in this order."""
        self._steps.extend(reversed(steps))

    def _carry_out(self, step: Callable[[], None]) -> None:
        """Run a step. A postponed step runs again when the answer that it needs has arrived."""
        waiting = self._postponed
        try:
            step()
        except Postponed as postponed:
            self.hold()
            waiting.append(postponed)
            postponed.begin(partial(self._answered, step))
        else:
            waiting.clear()

    def _answered(self, step: Callable[[], None]) -> None:
        """Run a postponed step again, because the answer that it needs has arrived."""
        if self.state is CLOSED:
            return
        self.release()
        try:
            self._postponed[-1].check()
            self._carry_out(step)
        except Exception as error:  # noqa: BLE001 - as in feed()
            self._end_by(error)

    @property
    def _postponed(self) -> list[Postponed]:
        session = self.session
        assert isinstance(session, SessionClient)
        return session.postponed

    def _act(self, packet: Any) -> None:
        if isinstance(packet, PublishRun):
            self._publisher.publish(packet)
        elif isinstance(packet, Acks):
            if packet.reason_code >= FAILURE_311 and packet.octet in (PUBACK, PUBREC):
                self._mqtt.deliveries.refuse(packet.packet_ids[0])
            else:
                self._acknowledge(packet.octet, packet.packet_ids)
        elif isinstance(packet, Ping):
            self.write(PINGRESP)
        elif isinstance(packet, Subscribe):
            self._subscribe(packet)
        elif isinstance(packet, Unsubscribe):
            self._unsubscribe(packet)
        elif isinstance(packet, Disconnect):
            self._disconnect(packet)
        else:
            self._log_in(packet)

    def _acknowledge(self, octet: int, packet_ids: list[int]) -> None:
        if octet == PUBACK:
            self._mqtt.deliveries.acknowledge(packet_ids)
        elif octet == PUBREL:
            self._handshakes.release(packet_ids)
        elif octet == PUBREC:
            self._handshakes.settle(packet_ids)
        else:
            self._handshakes.complete(packet_ids)

    @property
    def _mqtt(self) -> MqttSession:
        session = self.channels[CHANNEL].session
        assert isinstance(session, MqttSession)
        return session

    # -- login --------------------------------------------------------------------------------------------------------

    def _log_in(self, connect: Connect) -> None:
        """Check a CONNECT, and begin the login. Raises: PacketError."""
        self.client_properties = {
            "product": "MQTT client",
            "client_id": connect.client_id,
            "connection_name": connect.client_id,
        }
        session = self.session
        assert isinstance(session, MqttSessionOfConnection)
        check_connect(connect, self._context)
        mechanism, response = credentials(connect, self._context, session.peer, self.mechanisms)
        self._connect = connect
        self.state = STARTING
        try:
            session.log_in(mechanism, response)
        except Refused as error:
            self.refuse(error, mechanism)

    def admit(self) -> None:
        """Admit the user, possibly after a hold; the vhost is opened next."""
        if self.state is not STARTING:
            return
        self._then(self._open)
        if self.held:
            self.release()

    def _end_refused(self, error: Refused, mechanism: str) -> None:
        self.write(self._talk.refusal(BAD_CREDENTIALS, "bad user name or password"))
        self.finish()

    def _open(self) -> None:
        """Open the vhost, and schedule the start of the session. Raises: ConnectionFault."""
        connect, context, session = self._connect, self._context, self.session
        assert connect is not None and isinstance(session, MqttSessionOfConnection)
        session.open(context.vhost_and_user(connect.user or "", session.peer)[0])
        self._vhost = vhost = session.vhost
        assert vhost is not None
        self._client_id = connect.client_id or vhost.new_name("mqtt-")
        self.client_properties |= {"client_id": self._client_id, "connection_name": self._client_id}
        if not context.state_in(vhost).handshakes.loaded:
            raise PacketFault(SERVER_UNAVAILABLE, "the MQTT messages of the vhost are being read")
        self._then(
            partial(context.require_exchange, vhost),
            partial(context.clients.enter, vhost.name, self._client_id, self),
            partial(self._begin, connect, session, vhost),
        )

    def _begin(self, connect: Connect, session: MqttSessionOfConnection, vhost: Vhost) -> None:
        """Begin the session, once no other connection has the client id."""
        context = self._context
        vhost_state = context.state_in(vhost)
        handshakes = vhost_state.handshakes
        vhost_state.resolve_will(self._client_id, clean_start=connect.clean_start)
        channel = MqttChannel(self, CHANNEL, self.forget_channel)
        opened = session.open_channel(channel)
        assert isinstance(opened, MqttSession)
        self.channels[CHANNEL] = channel
        channel.start(opened)
        opened.begin(
            client_form(connect, context, self._client_id, vhost.ports.clock),
            session_expiry_s(connect, context),
            context.settings.session_expiry_max_s,
        )
        own = self._handshakes = ClientHandshakes(handshakes, self._client_id, opened)
        self._publisher = MqttPublisher(
            channel, opened, connect.version, context.mapping, vhost_state.retained, own, self._steps, context.qos_max
        )
        self.heartbeat_s = -(-3 * connect.keep_alive_s // 4)  # a client that is silent for two heartbeats is dead
        self._will = connect.will
        self.state = RUNNING
        deletions: Sequence[Callable[[], None]] = ()  # of the queues of the client's earlier session
        if connect.clean_start:
            if handshakes.enter(self._client_id):
                handshakes.drop(self._client_id)
                vhost.answers.changed(self._subject)
            deletions = partial(opened.delete, 0), partial(opened.delete, 1)
        self._then(
            *deletions,
            partial(self._renew_expiry, opened, handshakes),
            partial(self._accept_client, connect, opened, handshakes),
            partial(opened.resume, 0),
            partial(opened.resume, 1),
            partial(self._resume_others, opened),
        )
        self.touch()

    def _renew_expiry(self, session: MqttSession, handshakes: Handshakes) -> None:
        """Set the session expiry that the client requests; the CONNACK waits until the change is on disk."""
        answers, channel = session.vhost.answers, self.channels[CHANNEL]
        mark = answers.mark()
        session.renew_expiry(session.expiry_s)
        if not session.expiry_s and self._context.qos_max == 2:  # not in a cluster: its nodes would poll for the expiry
            session.end_with_broker()
            handshakes.keep_in_memory(self._client_id)
        answers.fulfil(channel, answers.promise(channel, None), self._subject, mark)

    def _accept_client(self, connect: Connect, session: MqttSession, handshakes: Handshakes) -> None:
        """Send the CONNACK, and a PUBREL for each QoS 2 delivery that still waits for its PUBCOMP."""
        self._talk.accept()
        present = handshakes.enter(self._client_id) or bool(session.kept_queues())
        properties = connack_properties(connect, self._context, self._client_id, session.expiry_s)
        self._answer(encode_connack(connect.version, SUCCESS, present=present, properties=properties))
        connect.forget()
        releases = self._handshakes.resume()
        if releases:
            self._answer(releases)

    def _resume_others(self, session: MqttSession) -> None:
        """Resume the session's shared subscriptions, one in each step, and its topics below `$SYS`."""
        self._then(*[partial(session.share, *one) for one in session.earlier_shares()])
        self._context.state_in(session.vhost).system_topics.watch(session)

    @property
    def _subject(self) -> tuple[str, str]:
        """The subject of durable changes that the CONNACK waits for."""
        return "mqtt_session", self._client_id

    def _answer(self, packet: bytes) -> None:
        """Send a packet once the changes that it answers are on disk."""
        self.when_sent(CHANNEL, partial(self.write, packet))

    # -- subscribing --------------------------------------------------------------------------------------------------

    def _subscribe(self, packet: Subscribe) -> None:
        """Process a SUBSCRIBE, one filter in each step."""
        identifier = packet.properties.get(SUBSCRIPTION_IDENTIFIER, 0)
        request = FilterRequest(self._mqtt, self._context, self._talk, identifier)
        steps = [partial(request.subscribe, one) for one in packet.subscriptions]
        self._then(*steps, partial(self._answer_subscribe, request, packet.packet_id))

    def _answer_subscribe(self, request: FilterRequest, packet_id: int) -> None:
        vhost_state = self._context.state_in(self._mqtt.vhost)
        retained = vhost_state.retained
        if request.wanted:
            retained.prepare(self._mqtt.session)
        self._answer(request.suback(packet_id))
        if request.wanted:
            self.when_sent(CHANNEL, partial(self._mqtt.deliveries.send_retained, retained, request.wanted))
        if request.has_system:
            self.when_sent(CHANNEL, partial(vhost_state.system_topics.watch, self._mqtt))

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        """Process an UNSUBSCRIBE, one filter in each step."""
        request = FilterRequest(self._mqtt, self._context, self._talk)
        steps = [partial(request.unsubscribe, one) for one in packet.filters]
        self._then(*steps, lambda: self._answer(request.unsuback(packet.packet_id)))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _disconnect(self, packet: Disconnect) -> None:
        """End the connection as the client asks. Raises: PacketError for an invalid expiry."""
        expiry_s = packet.session_expiry_s
        session = self._mqtt
        if expiry_s is not None and expiry_s != session.expiry_s:
            if not session.expiry_s:
                raise PacketError(PROTOCOL_ERROR, "a DISCONNECT cannot extend a session whose expiry is 0")
            carry_out(partial(session.renew_expiry, min(expiry_s, self._context.settings.session_expiry_max_s)))
        if packet.reason_code == SUCCESS:
            self._will = None
        self.orderly = self.drained = True
        self.finish()

    def fail(self, error: ProtocolError, channel: int = 0) -> None:
        """End the connection, and report the reason to the client if the protocol allows it."""
        if self.state is CLOSED:
            return
        if self._on_error is not None:
            self._on_error(self, channel, error)
        self.failure = error.with_traceback(None)
        self.end_holds()
        words = self.encode_failure(error)
        if words:
            self.write(words)
        self.finish()

    def encode_failure(self, error: ProtocolError) -> bytes:
        """Return the packet that reports an error to the client; empty if the protocol allows none."""
        reason_code, text = reason_of(error)
        return self._talk.refusal(reason_code, text)

    def finish(self) -> None:
        """End the connection: discard further packets, publish or hold the will, and close every session."""
        if self.state is not CLOSED:
            self._steps.clear()
            self._talk.end()
            if self.state is RUNNING:
                self._publish_will()
                if not self._mqtt.expiry_s:
                    self._expired_queues = self._mqtt.kept_queues()
                self._handshakes.leave()
                del self._handshakes, self._publisher
        super().finish()

    def answer_close(self) -> None:
        """Release the client id once the durable queues of an expired session are deleted."""
        if self._vhost is not None:
            release_id = partial(self._context.clients.leave, self._vhost.name, self._client_id, self)
            self._vhost.queues.drop_all(self._expired_queues, release_id)

    def _publish_will(self) -> None:
        """Publish the will, if there is one, or hold it for its delay. Errors are only logged: the client has left."""
        will, self._will = self._will, None
        if will is None or CHANNEL not in self.channels:
            return
        session = self._mqtt
        delay_s = min(will.properties.get(WILL_DELAY_S, 0), session.expiry_s)
        fault: ProtocolError | None = None
        try:
            if delay_s:
                self._publisher.hold_will(will, self._context.state_in(session.vhost).wills, self._client_id, delay_s)
            else:
                self._publisher.publish_will(will)
        except PacketError as error:
            fault = PacketFault(error.reason_code, error.text)
        except ProtocolError as error:
            fault = error
        if fault is not None and self._on_error is not None:
            self._on_error(self, CHANNEL, fault)

    @property
    def heartbeat(self) -> bytes:
        """Empty, because only the client sends keep-alive packets."""
        return b""

    def take_output(self) -> list[Any]:
        """Return and clear the output, in pieces to write, and schedule the work that waits for this."""
        if self.state is RUNNING and CHANNEL in self.channels:
            self._mqtt.deliveries.serve()
        return super().take_output()
