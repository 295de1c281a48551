"""The filters of one SUBSCRIBE or UNSUBSCRIBE, and the packet that answers them."""

from __future__ import annotations

from typing import Final

from broker.amqp.errors import ChannelError
from broker.core.mqtt.context import MqttContext
from broker.core.mqtt.faults import reason_of
from broker.core.mqtt.session import MqttSession, shared_name
from broker.core.mqtt.subscriptions import options_of
from broker.mqtt.conversation import Conversation
from broker.mqtt.errors import PacketError
from broker.mqtt.packets import SUBACK, UNSUBACK, V5, Subscription, encode_answer
from broker.mqtt.reason_codes import FAILURE_311, NO_SUBSCRIPTION, SUCCESS
from broker.mqtt.topics import SYSTEM, split_shared

ALWAYS: Final = 0  # retain handling: send retained messages at each SUBSCRIBE of a filter
IF_NEW: Final = 1


class FilterRequest:
    """Run the filters of one packet, and collect a reason code for each.

    Shapes: `wanted` has the queues and binding keys that are to get retained messages; `of_system` says that one of the
        filters is for topics below `$SYS`.
    """

    def __init__(self, session: MqttSession, context: MqttContext, talk: Conversation, identifier: int = 0) -> None:
        self._session = session
        self._context = context
        self._talk = talk
        self._identifier = identifier
        self._codes: list[int] = []
        self._reason = ""
        self.wanted: list[tuple[str, str]] = []
        self.of_system = False

    def subscribe(self, subscription: Subscription) -> None:
        """Subscribe with a filter."""
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
            self.of_system |= topic_filter.startswith(SYSTEM)
            self._codes.append(qos)
            if subscription.retain_handling == ALWAYS or (subscription.retain_handling == IF_NEW and is_new):
                self.wanted.append((session.queue_name(qos), key))
        except PacketError as error:
            self._refuse(error.reason_code, error.text)
        except ChannelError as error:
            self._refuse(*reason_of(error))

    def unsubscribe(self, topic_filter: str) -> None:
        """End the subscription with a filter."""
        try:
            share, unshared = split_shared(topic_filter)
            key = self._context.mapping.binding_key(unshared)
            session = self._session
            ended = session.unshare(shared_name(share, unshared)) if share else session.unsubscribe(key)
            self._codes.append(SUCCESS if ended else NO_SUBSCRIPTION)
        except PacketError as error:
            self._refuse(error.reason_code, error.text)
        except ChannelError as error:
            self._refuse(*reason_of(error))

    def _refuse(self, reason_code: int, text: str) -> None:
        self._codes.append(reason_code if self._talk.version == V5 else FAILURE_311)
        self._reason = self._reason or text

    def suback(self, packet_id: int) -> bytes:
        """Return the answer to a SUBSCRIBE."""
        reason = self._reason if self._talk.reasons else ""
        return encode_answer(SUBACK, self._talk.version, packet_id, self._codes, reason)

    def unsuback(self, packet_id: int) -> bytes:
        """Return the answer to an UNSUBSCRIBE, which has codes in MQTT 5 only."""
        codes = self._codes if self._talk.version == V5 else []
        return encode_answer(UNSUBACK, self._talk.version, packet_id, codes)
