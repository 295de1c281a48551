"""Forward messages from an exchange to ØMQ subscribers; their subscriptions become bindings."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any, Final

import zmq
from pamqp import commands
from pamqp.common import FieldTable

from broker.amqp.client import Received
from broker.amqp.lenient_methods import BindAny, UnbindAny
from broker.client.link import CallRefused, ClientLink
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.event_log import get_logger
from broker.operations.rows import properties_row
from broker.settings.zmq import ZmqPublish
from broker.zeromq.bridge import BINDINGS, DATA, SUBSCRIBE, UNLIMITED, UNSUBSCRIBE, Bridge, BridgeContext
from broker.zeromq.interest import DerivedInterest, ExchangeWatch

_log = get_logger()

NOT_FOUND: Final = 404
PREFETCH: Final = 1000
PREFETCH_WAITING: Final = 50  # for a bridge that waits for slow subscribers
RETRY_S: Final = 0.005  # between two attempts to send to a slow subscriber
DRAIN_S: Final = 0.01
TYPES: Final = ("topic", "fanout", "headers")
"""The types of exchanges whose bindings can ask for everything."""


class PublishBridge(Bridge):
    """Send the messages of an exchange through an XPUB socket, which forwards each to the subscribed peers.

    Units: `sent` counts messages; `full` how often a message was dropped for subscribers whose queues were full;
        `dropped` the messages that the bridge's own queue dropped; `refused` the subscriptions that the broker refused.
    Invariant: messages are sent in the order in which they were routed.
    """

    kind = "publish"
    lingers = True

    def __init__(self, settings: ZmqPublish, context: BridgeContext) -> None:
        super().__init__(settings, context, zmq.XPUB)
        self._waits = settings.slow == "wait"
        self._queue_max = settings.queue_max_messages
        self.interest: DerivedInterest[bytes, str] = DerivedInterest(self._binding_key, "#", settings.subscriptions_max)
        self._by_words = True
        self._refused: set[str] = set()
        self._queue: Queue | None = None
        self._stream: Level
        self._waiting: deque[tuple[int, list[bytes]]] = deque()  # delivered messages that wait for a slow subscriber
        self._handled = self._acked = self._first = self._lost = 0
        self._retry: asyncio.TimerHandle | None = None
        self._watched: Vhost | None = None
        self._renewed = False
        self.sent = self.full = self.dropped = self.refused = 0
        self._logged = (0, 0)
        # Receive every subscription, and let a send fail if a subscriber's queue is full.
        self.open({zmq.RCVHWM: UNLIMITED, zmq.SNDHWM: settings.high_water_messages, zmq.XPUB_NODROP: 1})

    def _binding_key(self, prefix: bytes) -> str:
        return self.form.binding_key(prefix) if self._by_words else "#"

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def received(self, frames: list[bytes]) -> None:
        """Process a subscription. For each prefix, ØMQ reports the first subscription and the last unsubscription."""
        head = frames[0][:1]
        if len(frames) == 1 and head == SUBSCRIBE:
            self.interest.add(frames[0][1:])
        elif len(frames) == 1 and head == UNSUBSCRIBE:
            self.interest.remove(frames[0][1:])
        self.changed.set()

    async def set_up(self, connection: ClientLink) -> None:
        """Declare the queue of the bridge and consume from it. Raises: CallRefused."""
        vhost, exchange = self.find()
        self._by_words = exchange.kind_of_patterns == "topic"
        if exchange.type not in TYPES:
            raise CallRefused(
                0, f"'{exchange.name}' is a {exchange.type} exchange: it should be one of {', '.join(TYPES)}"
            )
        if self._watched is not vhost:
            self._watched = vhost
            ExchangeWatch(vhost, exchange.name, renewed=self._renew)
        arguments: FieldTable = {"x-max-length": self._queue_max}
        declare = commands.Queue.Declare(exclusive=True, arguments=arguments)
        name = (await connection.call(DATA, declare)).queue
        self._queue = vhost.queues[name]
        self._stream = self._queue.level  # still needed for its counts after the queue was deleted
        self._first = self._stream.manager.next_id
        self._handled = self._acked = self._lost = 0
        await connection.call(DATA, commands.Basic.Qos(prefetch_count=PREFETCH_WAITING if self._waits else PREFETCH))
        await connection.call(DATA, commands.Basic.Consume(queue=name))
        self._refused.clear()
        self._renewed = False
        self.interest.restart()
        self.socket.resume()

    def _renew(self) -> None:
        """Reconnect, because the exchange was declared again, perhaps with another type."""
        self._renewed = True
        self.changed.set()

    async def apply(self, connection: ClientLink) -> None:
        """Add new bindings, then remove unwanted ones. Raises: CallRefused."""
        if self._renewed:
            raise CallRefused(0, "the exchange was declared again")
        added, removed = self.interest.take()
        assert self._queue is not None
        queue, exchange = self._queue.name, self.settings.exchange
        while added:
            calls = [
                connection.call(BINDINGS, BindAny(queue=queue, exchange=exchange, routing_key=key)) for key in added
            ]
            results = await asyncio.gather(*calls, return_exceptions=True)
            failed = [result for result in results if isinstance(result, CallRefused)]
            if not failed:
                break
            if connection.ended.done() or failed[0].code in (0, NOT_FOUND):
                raise failed[0]
            index = results.index(failed[0])
            self._refuse(added[index], failed[0])
            added = added[index + 1 :]
            await connection.call(BINDINGS, commands.Channel.Open())
        if self.interest.is_everything and "#" in self._refused:
            self.interest.lift_limit()
            self.changed.set()
            return
        calls = [
            connection.call(BINDINGS, UnbindAny(queue=queue, exchange=exchange, routing_key=key))
            for key in removed
            if key not in self._refused
        ]
        self._refused.difference_update(removed)
        await asyncio.gather(*calls)

    def _refuse(self, key: str, error: CallRefused) -> None:
        self.refused += 1
        self._refused.add(key)
        _log.warning("zmq.subscription_refused", **self.facts_of_log, key=key, code=error.code, reason=str(error))

    # -- messages -----------------------------------------------------------------------------------------------------

    def delivered(self, message: Received) -> None:
        """Send a delivered message to its subscribers, or keep it until a slow subscriber has room."""
        tag = message.method.delivery_tag
        frames = [self.form.topic(message.method.routing_key), message.body]
        if self.settings.properties:
            frames.append(json.dumps(properties_row(message.header)).encode())
        if self._waiting:
            self._waiting.append((tag, frames))
        elif not self._send(tag, frames):
            self._waiting.append((tag, frames))
            self._retry_later()

    def read(self) -> None:
        """Acknowledge the sent messages."""
        if self._handled > self._acked and self.connection is not None:
            self._acked = self._handled
            self.connection.cast(DATA, commands.Basic.Ack(self._handled, multiple=True))

    def _send(self, tag: int, frames: list[bytes]) -> bool:
        """Send a message and return True, or return False if it must wait for a slow subscriber."""
        if not self.socket.send(frames):
            if self._waits:
                return False
            self.full += 1
            self.socket.set(zmq.XPUB_NODROP, 0)
            self.socket.send(frames)
            self.socket.set(zmq.XPUB_NODROP, 1)
        self.sent += 1
        self._handled = tag
        return True

    def _retry_later(self) -> None:
        self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._send_waiting)

    def _send_waiting(self) -> None:
        self._retry = None
        while self._waiting and self._send(*self._waiting[0]):
            self._waiting.popleft()
        self.read()
        if self._waiting:
            self._retry_later()

    def detached(self) -> None:
        """Discard deliveries that can no longer be acknowledged."""
        self._count_dropped()
        self._queue = None
        self._waiting.clear()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    async def drain(self) -> None:
        """Wait until all messages routed so far are sent or dropped, or until the connection ends."""
        queue = self._queue
        if queue is not None:
            goal = self._stream.manager.next_id
            while self._first + self._handled + self._count_dropped() < goal and self._queue is queue:  # noqa: ASYNC110
                await asyncio.sleep(DRAIN_S)  # the queue does not report acks

    # -- counts -------------------------------------------------------------------------------------------------------

    def _count_dropped(self) -> int:
        """Count and return the messages that the queue has dropped since it was declared.

        Each message of the queue was acknowledged, is unacked or ready, or was dropped.
        """
        queue = self._queue
        if queue is not None:
            lost = self._stream.manager.next_id - self._first - queue.ready - queue.unacked - self._acked
            if lost > self._lost:  # while acks are in flight, `lost` is too low
                self.dropped += lost - self._lost
                self._lost = lost
        return self._lost

    def tick(self) -> None:
        """Log what subscribers have missed since the last call."""
        self._count_dropped()
        full, dropped = self._logged
        if self.full > full:
            _log.warning("zmq.subscriber_slow", **self.facts_of_log, times=self.full - full)
        if self.dropped > dropped:
            _log.warning("zmq.messages_dropped", **self.facts_of_log, messages=self.dropped - dropped)
        self._logged = (self.full, self.dropped)

    def facts(self) -> dict[str, Any]:
        return {
            **super().facts(),
            "refused": self.refused,
            "messages": self.sent,
            "waiting": 0 if self._queue is None else self._queue.ready,
            "full": self.full,
            "lost": self.dropped,
        }
