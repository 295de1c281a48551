"""The deliveries to one MQTT client, and the PUBACK packets that settle them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from broker.core.mqtt.consumer import ClientForm, MqttConsumer
from broker.core.mqtt.faults import PacketFault
from broker.core.mqtt.retained import RetainedMessages
from broker.core.mqtt.retained_copies import RetainedCopies
from broker.core.queue.consumer import Consumer
from broker.core.queue.queue import Queue
from broker.core.session.basic import BasicSession
from broker.core.session.client import SessionClient
from broker.core.vhost import Vhost
from broker.mqtt.reason_codes import ADMINISTRATIVE_ACTION

if TYPE_CHECKING:
    from broker.amqp.channel import Channel

__all__ = ["MqttBasic"]


class MqttBasic(BasicSession):
    """Consumes the queues of one session. Invariant: `take_form` comes before the first consumer."""

    __slots__ = ("_copies", "_form", "_settling")

    _form: ClientForm

    def __init__(self, channel: Channel, session: SessionClient, vhost: Vhost) -> None:
        super().__init__(channel, session, vhost)
        self._settling = False
        self._copies: RetainedCopies | None = None  # made by the first subscription that gets some

    def take_form(self, form: ClientForm, prefetch: int) -> None:
        """Take what the packets to the client depend on, and how many of them may wait for a PUBACK."""
        self._form = form
        self.prefetch_consumer = prefetch

    def new_consumer(
        self,
        tag: str,
        queue: Queue,
        *,
        no_ack: bool,
        exclusive: bool,
        arguments: dict[str, Any],
        priority: int,
        timeout_ms: int | None,
    ) -> Consumer:
        """Return a consumer that delivers PUBLISH packets."""
        prefetch = self.prefetch_consumer
        form = self._form
        return MqttConsumer(tag, queue, self, form, no_ack=no_ack, arguments=arguments, prefetch=prefetch)

    def serve(self) -> None:
        """Settle in the next turn what was delivered and needs no PUBACK, and go on with copies of retained messages.

        Called when output is taken.
        """
        if self._copies is not None:
            self._copies.output_taken()
        if self._form.packet_ids.unanswered and not self._settling:
            self._settling = True
            ports = self._vhost.ports
            ports.deadlines.set((self, "unanswered"), ports.clock.now_ms, self._settle_unanswered)

    def _settle_unanswered(self) -> None:
        self._settling = False
        if not self.closed:
            for tag in self._form.packet_ids.take_unanswered():
                self.ack(tag, multiple=False)

    def send_retained(self, retained: RetainedMessages, wanted: list[tuple[str, str]]) -> None:
        """Deliver copies of retained messages. Shapes: `wanted` has names of queues, and binding keys."""
        if not self.closed:
            copies = self._copies
            if copies is None:
                copies = self._copies = RetainedCopies(self._vhost, retained)
            for name, key in wanted:
                copies.begin(name, key)

    def acknowledge(self, packet_ids: list[int]) -> None:
        """Settle deliveries; a packet id that is not in use means nothing."""
        take = self._form.packet_ids.take
        for packet_id in packet_ids:
            tag = take(packet_id)
            if tag:
                self.ack(tag, multiple=False)

    def refuse(self, packet_id: int) -> None:
        """Reject a delivery that the client answered with an error, as RabbitMQ does: it is not sent again."""
        tag = self._form.packet_ids.take(packet_id)
        if tag:
            self.nack(tag, multiple=False, requeue=False, failed=True)

    def close(self) -> None:
        """End the consumers and requeue everything that waits for an acknowledgement, because the channel is closed."""
        if self._copies is not None:
            self._copies.close()
        for tag in self._form.packet_ids.take_unanswered():
            self.ack(tag, multiple=False)
        super().close()

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """End the connection in the next turn, because a queue of its session was deleted."""
        self.consumers.pop(consumer.tag, None)
        fault = PacketFault(ADMINISTRATIVE_ACTION, f"queue '{consumer.queue.name}' was deleted", 320)
        ports = self._vhost.ports
        ports.deadlines.set((self, "deleted"), ports.clock.now_ms, partial(self.connection.fail, fault))
