"""The internal queues in which exchanges remember a history for new bindings, or the ids of the messages seen."""

from __future__ import annotations

from functools import partial

from broker.amqp.content_header import HeaderFields
from broker.core.message.message import Message, new_message
from broker.core.postponed import Awaited
from broker.core.publishing.posting import Poster
from broker.core.queue.kinds import HistoryQueue, SeenQueue
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.topology.exchanges import Exchanges
from broker.core.topology.queues import Queues
from broker.routing.exchange import Exchange
from broker.routing.fanout_exchange import MemoryExchange
from broker.slots.slot import Slot


class ExchangeMemories:
    """Create and delete the memory queues of a vhost's exchanges, and replay their history."""

    def __init__(self, exchanges: Exchanges, queues: Queues, poster: Poster, ports: QueuePorts[Level, Queue]) -> None:
        self._exchanges = exchanges
        self._queues = queues
        self._poster = poster
        self._ports = ports

    def open(self, exchange: MemoryExchange) -> None:
        """Set the memory queue of an exchange; create the queue if it does not exist."""
        name, durable = exchange.memory_prefix + exchange.name, exchange.durable and exchange.lasts
        queue = self._queues.own(name, durable=durable, arguments=dict(exchange.memory_arguments))
        exchange.remember_in(queue, queue.stops if isinstance(queue, SeenQueue) else None)

    def close(self, exchange: MemoryExchange) -> None:
        if isinstance(exchange.memory, Queue):
            self._queues.drop(exchange.memory)

    def restored(self) -> None:
        """Set all memory queues after recovery, and drop those without an exchange."""
        for exchange in list(self._exchanges.values()):
            if isinstance(exchange, MemoryExchange):
                self.open(exchange)
        known = {exchange.memory for exchange in self._exchanges.values() if isinstance(exchange, MemoryExchange)}
        for queue in list(self._queues.values()):
            if isinstance(queue, (HistoryQueue, SeenQueue)) and queue not in known:
                self._queues.drop(queue)

    def prepare(self, source: Exchange) -> None:
        """Before adding a binding to an exchange, check that its history is in memory. Raises: Postponed."""
        queue = source.memory if isinstance(source, MemoryExchange) else None
        if isinstance(queue, HistoryQueue):
            for slot in queue.level.manager.slots.values():
                if slot.contents is None:
                    raise Awaited(partial(self._read, queue.level, slot))

    def _read(self, level: Level, slot: Slot, bind: Awaited) -> None:
        self._ports.read(level, slot, bind.answered)

    def replay(self, source: Exchange, destination: Queue | Exchange) -> None:
        """Post the history of an exchange to the destination of a new binding."""
        queue = source.memory if isinstance(source, MemoryExchange) else None
        if not isinstance(queue, HistoryQueue):
            return
        now_ms = self._ports.clock.now_ms
        history: list[Message] = []
        for slot in queue.level.manager.slots.values():
            assert slot.contents is not None
            history += [slot.contents[index] for index in slot.ready_indexes()]
        if isinstance(destination, Queue):
            self._poster.post_run([_copy(message, 1, now_ms) for message in history], destination)
            return
        for message in history:
            keys, header = [message.envelope.key], HeaderFields(message.header)
            if queues := self._exchanges.router.queues(destination, keys, header):
                self._poster.post(_copy(message, len(queues), now_ms), queues)


def _copy(message: Message, queues: int, now_ms: int) -> Message:
    """Return a copy of a message, published now to a number of queues."""
    return new_message(message.envelope, message.header, message.body, message.facts, now_ms, queues)
