"""Delayed messages of exchanges of the type x-delayed-message, and of queues.

Each such exchange has an internal queue in which its messages wait. A message is routed when it is due, through the
bindings of that moment. A queue keeps its delayed messages in a separate level until they are due.
Source: the plugin rabbitmq_delayed_message_exchange; RabbitMQ 4.3, rabbit_fifo (delayed retry).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.amqp.content_header import HeaderFields, facts_of
from broker.amqp.header_edit import edit_header
from broker.amqp.header_facts import MISSING
from broker.core.message.delay import RECEIVED, delay_of
from broker.core.message.message import Message, new_message
from broker.core.publishing.posting import Poster
from broker.core.queue.holding import Holding
from broker.core.queue.kinds import HOLDING_PREFIX, holding_name, is_holding_name
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.topology.exchanges import Exchanges
from broker.core.topology.queues import Queues
from broker.routing.exchange import Exchange
from broker.routing.router import Router
from broker.slots.redeliveries import ReturnRun

RECEIVED_OCTETS: Final = RECEIVED.encode()


class Delay(Holding):
    """Hold the messages of one exchange in an internal queue, and route those that are due."""

    def __init__(
        self, ports: QueuePorts[Level, Queue], router: Router, poster: Poster, exchange: Exchange, queue: Queue
    ) -> None:
        super().__init__(ports, queue.level)
        self.queue = queue
        self._router = router
        self._poster = poster
        self.exchange = exchange

    def hold(self, message: Message, delay_ms: int, number: bytes = b"") -> None:
        self.keep(message, message.timestamp_ms + delay_ms, number)

    def send(self, held: Message, returns: ReturnRun | None = None) -> None:
        """Route a message as if it were published now, with its x-delay negated, as the plugin does.

        A message from another broker of the overlay is not forwarded to further brokers.
        """
        negated = {"x-delay": -(delay_of(held.facts.delay) or 0)}
        header = edit_header(held.header, set_headers=negated, drop_headers=(RECEIVED,))
        copies = () if held.facts.cc is MISSING else [key for key in held.facts.cc if isinstance(key, str)]
        queues = self._router.match(self.exchange, held.envelope.key, HeaderFields(header), copies)
        if RECEIVED_OCTETS in held.header and RECEIVED in HeaderFields(held.header).headers:
            queues = tuple([queue for queue in queues if not queue.is_overlay])
        if queues:
            facts, now_ms = facts_of(header), self._ports.clock.now_ms
            self._poster.post(new_message(held.envelope, header, held.body, facts, now_ms, len(queues)), queues)


class QueueDelay(Holding):
    """Hold messages of one queue in one of its levels until they are due."""

    def __init__(self, ports: QueuePorts[Level, Queue], queue: Queue, level: Level) -> None:
        super().__init__(ports, level)
        self._queue = queue

    def send(self, held: Message, returns: ReturnRun | None) -> None:
        """Add a due message to its queue. Unless it was returned, its time to live starts now."""
        queue, now_ms = self._queue, self._ports.clock.now_ms
        entered_ms = now_ms if returns is None else held.timestamp_ms
        message = Message(held.envelope, held.header, held.body, held.charge, held.facts, entered_ms)
        level = queue.level_for(message)
        slot, index = self._ports.accept(message, level, 0, b"")
        if returns is not None:
            level.note_returns(slot, index, returns)
        queue.came_due(level, slot, index, message)


class Delays:
    """Create, find and delete the delays of a vhost's exchanges, and find the delay of a queue."""

    def __init__(
        self,
        exchanges: Exchanges,
        queues: Queues,
        poster: Poster,
        ports: QueuePorts[Level, Queue],
        kind: Callable[..., Delay] = Delay,
    ) -> None:
        self._kind = kind
        self._exchanges = exchanges
        self._queues = queues
        self._poster = poster
        self._ports = ports
        self._by_name: dict[str, Delay] = {}

    def of(self, queue: Queue) -> Holding | None:
        """Return the delay of a queue, or None if there is none; for a holding queue, the delay of its exchange."""
        if queue.is_holding:
            return self._by_name.get(queue.name.removeprefix(HOLDING_PREFIX))
        return queue.holding

    def hold(self, exchange: Exchange, message: Message, delay_ms: int, number: bytes = b"") -> None:
        """Hold a message of an exchange until it is due; drop it if the exchange was deleted in the meantime."""
        delay = self._by_name.get(exchange.name)
        if delay is not None and delay.exchange is exchange:
            delay.hold(message, delay_ms, number)

    def open(self, exchange: Exchange) -> None:
        """Create the holding queue of an exchange, durable if the exchange is."""
        queue = self._queues.own(holding_name(exchange.name), durable=exchange.durable)
        router = self._exchanges.router
        self._by_name[exchange.name] = self._kind(self._ports, router, self._poster, exchange, queue)

    def close(self, exchange: Exchange) -> None:
        """Delete the holding queue of an exchange with its messages."""
        delay = self._by_name.pop(exchange.name)
        delay.close()
        self._queues.drop(delay.queue)

    def restored(self) -> None:
        """Restore all delays from their held messages after recovery, and drop holding queues without an exchange."""
        for exchange in list(self._exchanges.values()):
            if exchange.delayed and exchange.name not in self._by_name:
                self.open(exchange)
                self._by_name[exchange.name].gather()
        for queue in self._queues.values():
            if queue.holding is not None:
                queue.holding.gather()
        held = {delay.queue.name for delay in self._by_name.values()}
        for name in [name for name in self._queues if is_holding_name(name) and name not in held]:
            self._queues.drop(self._queues[name])
