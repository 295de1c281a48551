"""The deliveries to one MQTT client, and their acknowledgements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pamqp import commands

from broker.amqp.channel import Channel
from broker.core.mqtt.consumer import ClientForm, MqttConsumer
from broker.core.mqtt.faults import FORCED, PacketFault
from broker.core.mqtt.packet_ids import PacketIds
from broker.core.mqtt.retained import RetainedCopies, RetainedMessages
from broker.core.mqtt.subscriptions import Match, Subscriptions
from broker.core.queue.consumer import Consumer
from broker.core.queue.queue import Queue
from broker.core.session.basic import BasicSession
from broker.core.session.client import SessionClient
from broker.core.vhost import Vhost
from broker.mqtt.reason_codes import ADMINISTRATIVE_ACTION


class MqttBasic(BasicSession):
    """Consume the queues of one session. Shapes: `subscriptions` contains those of the queue for QoS 0 and those of the
    queue for QoS 1 and 2; `shared` maps the consumer tag of each shared subscription to its options.
    Invariant: `set_form` is called before the first consumer is added.
    """

    __slots__ = ("_copies", "_form", "_settling", "shared", "subscriptions")

    _form: ClientForm

    def __init__(self, channel: Channel, session: SessionClient, vhost: Vhost) -> None:
        super().__init__(channel, session, vhost)
        self._settling = False
        self._copies: RetainedCopies | None = None  # set while retained messages are copied
        self.subscriptions = Subscriptions(), Subscriptions()
        self.shared: dict[str, Match] = {}

    def set_form(self, form: ClientForm) -> None:
        self._form = form
        self.prefetch_consumer = form.window

    def new_consumer(self, tag: str, queue: Queue, method: commands.Basic.Consume) -> Consumer:
        subscriptions, shared = self.subscriptions[0 if method.no_ack else 1], self.shared.get(tag)
        return MqttConsumer(tag, queue, self, self._vhost, self._form, subscriptions, shared, no_ack=method.no_ack)

    def forget_matches(self) -> None:
        """Forget which subscriptions match, because the subscriptions have changed."""
        for consumer in self.consumers.values():
            assert isinstance(consumer, MqttConsumer)
            consumer.forget_match()

    def serve(self) -> None:
        """Schedule the settlement of deliveries that need no PUBACK, and the return of held ones; continue to copy
        retained messages. The connection calls this whenever its output is taken to be written.
        """
        if self._copies is not None and not self._copies.output_taken():
            self._copies = None
        ids = self._form.packet_ids
        if (ids.unanswered or ids.held) and not self._settling:
            self._settling = True
            ports = self._vhost.ports
            ports.deadlines.set((self, "unanswered"), ports.clock.now_ms, self._settle_unanswered)

    def _settle_unanswered(self) -> None:
        self._settling = False
        if not self.closed:
            ids = self._form.packet_ids
            for tag in ids.take_unanswered():
                self.ack(tag, multiple=False)
            for tag in ids.take_held():
                self.nack(tag, multiple=False, requeue=True, failed=False)

    def send_retained(self, retained: RetainedMessages, wanted: list[tuple[str, str]]) -> None:
        """Begin to deliver retained messages. Shapes: `wanted` contains pairs of a queue name and a binding key."""
        if not self.closed and len(retained):
            copies = self._copies
            if copies is None:
                copies = self._copies = RetainedCopies(self._vhost, retained)
            for name, key in wanted:
                copies.begin(name, key)

    def acknowledge(self, packet_ids: list[int]) -> None:
        """Settle the deliveries with these packet ids; ignore ids without an unacknowledged delivery."""
        full = self._is_full
        ids = self._form.packet_ids
        first = last = 0
        for packet_id in packet_ids:
            tag = ids.free(packet_id)
            if tag:
                if not first or tag != last + 1:
                    self._ack_range(first, last)
                    first = tag
                last = tag
        self._ack_range(first, last)
        self._serve_others(full)

    def _ack_range(self, first: int, last: int) -> None:
        """Settle deliveries with consecutive tags, in one call if possible. `first` is 0 if there are none."""
        if first < last and first == self.unacked.oldest:
            self.ack(last, multiple=True)
        elif first:
            for tag in range(first, last + 1):
                self.ack(tag, multiple=False)

    def refuse(self, packet_id: int) -> None:
        """Reject a delivery that the client answered with an error, as RabbitMQ does, so that it is not sent again."""
        full = self._is_full
        tag = self._form.packet_ids.free(packet_id)
        if tag:
            self.nack(tag, multiple=False, requeue=False, failed=True)
        self._serve_others(full)

    @property
    def packet_ids(self) -> PacketIds:
        return self._form.packet_ids

    def settle_received(self, packet_ids: Sequence[int]) -> list[int]:
        """Settle deliveries and return their packet ids, which stay in use until `complete`; ignore unknown ids."""
        ids = self._form.packet_ids
        received: list[int] = []
        for packet_id in packet_ids:
            tag = ids.free(packet_id)
            if tag:
                deliveries = self.unacked.take(tag, multiple=False)
                ids.release(packet_id)
                self.settle(deliveries)
                for delivery in deliveries:
                    delivery.level.log_settlements()
                received.append(packet_id)
        return received

    def complete(self, packet_ids: Sequence[int]) -> None:
        """Free the packet ids of deliveries whose QoS 2 handshake is complete."""
        full = self._is_full
        for packet_id in packet_ids:
            self._form.packet_ids.complete(packet_id)
        if full and not self._is_full:
            self.wake()

    @property
    def _is_full(self) -> bool:
        """Whether deliveries at QoS 1 and 2 must wait: the window is used up, or a message's packet id is in use."""
        ids = self._form.packet_ids
        return ids.blocking > 0 or self.outstanding + ids.released >= self._form.window

    def _serve_others(self, was_full: bool) -> None:
        """Serve all queues of the session if there is room again: an ack serves only the queue of its message."""
        if was_full and not self._is_full and len(self.consumers) > 1:
            self.wake()

    def close(self) -> None:
        """End the consumers and requeue the messages that are not acknowledged, because the channel is closed."""
        if self._copies is not None:
            self._copies.close()
        for tag in self._form.packet_ids.take_unanswered():
            self.ack(tag, multiple=False)
        super().close()

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """End the connection in the next turn, because the broker has cancelled a consumer of its session."""
        self.consumers.pop(consumer.tag, None)
        queue = f"queue '{consumer.queue.name}'"
        text = f"{queue} was deleted" if consumer.queue.deleted else f"the consumer of {queue} was cancelled"
        fault = PacketFault(ADMINISTRATIVE_ACTION, text, FORCED)
        ports = self._vhost.ports
        ports.deadlines.set((self, "cancelled"), ports.clock.now_ms, partial(self.connection.fail, fault))
