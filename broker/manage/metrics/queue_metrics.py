"""Metrics of queues, exchanges and vhosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from broker.administration.administration import Administration
from broker.core.message.message import Message
from broker.core.queue.queue import Queue
from broker.core.queue.rules import queue_type
from broker.core.statistics.vhost_tally import MessageCounts
from broker.core.vhost import Vhost
from broker.manage.metrics.metric import DELIVERIES, Family, Labels, Reading, counter, gauge, message_counters
from broker.operations.rows import slot_count
from broker.routing.exchange import Exchange
from broker.vhosts.broker_statistics import BrokerStatistics

SESSION_PREFIX: Final = "mqtt-subscription-"


class QueueReading:
    """A queue at the time of a scrape. Expensive values are read when a metric needs them."""

    __slots__ = ("_counts", "_now_ms", "_resident", "_statistics", "queue", "vhost")

    def __init__(self, vhost: Vhost, queue: Queue, statistics: BrokerStatistics) -> None:
        self.vhost = vhost.name
        self.queue = queue
        self._now_ms = vhost.ports.clock.now_ms
        self._statistics = statistics
        self._counts: MessageCounts | None = None
        self._resident: tuple[int, int] | None = None

    @property
    def labels(self) -> Labels:
        return (("vhost", self.vhost), ("queue", self.queue.name))

    @property
    def session(self) -> str:
        """The client identifier of the disconnected MQTT session that owns the queue, or empty."""
        name = self.queue.name
        if not name.startswith(SESSION_PREFIX) or self.queue.consumers:
            return ""
        return name[len(SESSION_PREFIX) : -len("qos0")]

    @property
    def counts(self) -> MessageCounts:
        """The counters of messages published into the queue and delivered from it."""
        if self._counts is None:
            self._counts = self._statistics.queue(self.queue)
        return self._counts

    @property
    def resident(self) -> tuple[int, int]:
        """The number of messages in memory, and their bytes there. Cost: O(slots), once."""
        if self._resident is None:
            messages = size_bytes = 0
            for level in self.queue.all_levels:
                for slot in level.manager.slots.values():
                    if slot.contents is not None:
                        messages += slot.unsettled
                        size_bytes += slot.bytes
            self._resident = messages, size_bytes
        return self._resident

    @property
    def slots(self) -> int:
        return slot_count(self.queue)

    @property
    def head_age_s(self) -> float | None:
        """The age of the oldest message at the head of a level: 0 without messages, or None if a head is on disk."""
        oldest_ms = self._now_ms
        for level in self.queue.levels:
            slot = level.manager.front()
            if slot is None:
                continue
            message: Message | None = None if slot.contents is None else slot.contents[slot.front(1)[0]]
            if message is None:
                return None
            oldest_ms = min(oldest_ms, message.timestamp_ms)
        return (self._now_ms - oldest_ms) / 1000


def queue_readings(vhosts: Iterable[Vhost], statistics: BrokerStatistics) -> Iterator[QueueReading]:
    """Yield the queues of vhosts, except internal ones."""
    for vhost in vhosts:
        for queue in list(vhost.queues.values()):
            if not queue.is_internal:
                yield QueueReading(vhost, queue, statistics)


def queue_infos(vhosts: Iterable[Vhost]) -> Iterator[Reading[Queue]]:
    """Yield the queues of vhosts, except internal ones, with labels for their types."""
    for vhost in vhosts:
        for queue in list(vhost.queues.values()):
            if not queue.is_internal:
                kind = ("queue_type", f"rabbit_{queue_type(queue.arguments)}_queue")
                yield Reading(queue, ("vhost", vhost.name), ("queue", queue.name), kind, ("membership", "leader"))


OWN_QUEUE_FAMILIES: Final[tuple[Family[QueueReading], ...]] = (
    Family(
        "slotmq_queue_metrics",
        gauge("queue_slots", "Slots of a queue", lambda r: r.slots),
        gauge(
            "queue_head_age_seconds",
            "Age of the message at the head of a queue, not a number while it is on disk",
            lambda r: r.head_age_s,
        ),
    ),
)
INFO_FAMILIES: Final[tuple[Family[Reading[Queue]], ...]] = (
    Family("queue_info", gauge("queue_info", "1 for each queue, with its type", lambda _info: 1)),
)

PUBLISHED: Final = (
    ("channel_queue_exchange_metrics", "queue"),
    ("queue_exchange_metrics", "queue_exchange"),
)  # two families with the same numbers
_CAPACITY: Final = "1 if a consumer can receive a message now, else 0"

QUEUE_FAMILIES: Final[tuple[Family[QueueReading], ...]] = (
    Family(
        "queue_coarse_metrics",
        gauge("queue_messages_ready", "Messages ready to be delivered to consumers", lambda r: r.queue.ready),
        gauge("queue_messages_unacked", "Messages delivered, not yet acknowledged", lambda r: r.queue.unacked),
        gauge(
            "queue_messages", "Ready, unacknowledged and delayed messages", lambda r: r.queue.waiting + r.queue.unacked
        ),
    ),
    Family("queue_consumer_count", gauge("queue_consumers", "Consumers on a queue", lambda r: len(r.queue.consumers))),
    Family(
        "queue_metrics",
        gauge("queue_consumers", "Consumers on a queue", lambda r: len(r.queue.consumers)),
        gauge("queue_consumer_capacity", _CAPACITY, lambda r: int(r.queue.consumers.able())),
        gauge("queue_consumer_utilisation", _CAPACITY, lambda r: int(r.queue.consumers.able())),
        gauge("queue_messages_ram", "Messages in memory, which may also be on disk", lambda r: r.resident[0]),
        gauge("queue_messages_ram_bytes", "Memory of the messages of a queue", lambda r: r.resident[1]),
        gauge(
            "queue_messages_paged_out",
            "Messages that are only on disk",
            lambda r: r.queue.waiting + r.queue.unacked - r.resident[0],
        ),
        gauge("queue_process_memory_bytes", "Memory of the messages of a queue", lambda r: r.resident[1]),
    ),
    Family("queue_delivery_metrics", *message_counters("queue", DELIVERIES)),
    *[
        Family(
            of,
            counter(
                f"{name}_messages_published_total",
                "Messages that entered a queue, from any exchange",
                lambda r: r.counts.publish,
                lambda whole: whole.messages.routed,
            ),
        )
        for of, name in PUBLISHED
    ],
)


def exchange_readings(vhosts: Iterable[Vhost]) -> Iterator[Reading[Exchange]]:
    """Yield the exchanges of vhosts."""
    for vhost in vhosts:
        for exchange in list(vhost.exchanges.values()):
            yield Reading(exchange, ("vhost", vhost.name), ("exchange", exchange.name))


def named_exchanges(vhosts: Iterable[Vhost]) -> Iterator[Reading[Exchange]]:
    """Yield the exchanges that have a name and are not internal, with labels for their types."""
    for reading in exchange_readings(vhosts):
        if reading.of.name and not reading.of.internal:
            yield Reading(reading.of, *reading.labels, ("type", reading.of.type))


def vhost_readings(administration: Administration) -> list[Reading[bool]]:
    """Return whether each vhost is running."""
    down = administration.vhosts.offline
    return [Reading(name not in down, ("vhost", name)) for name in administration.vhost_names]


EXCHANGE_FAMILIES: Final[tuple[Family[Reading[Exchange]], ...]] = (
    Family(
        "exchange_metrics",
        counter(
            "exchange_messages_published_total",
            "Messages published to an exchange",
            lambda r: r.of.tally.publish_in,
            lambda whole: whole.messages.publish,
        ),
    ),
)
BINDING_FAMILIES: Final[tuple[Family[Reading[Exchange]], ...]] = (
    Family("exchange_bindings", gauge("exchange_bindings", "Bindings of an exchange", lambda r: r.of.binding_count)),
    Family("exchange_names", gauge("exchange_name", "1 for each exchange", lambda _reading: 1)),
)
VHOST_FAMILIES: Final[tuple[Family[Reading[bool]], ...]] = (
    Family("vhost_status", gauge("vhost_status", "1 if a vhost is running, else 0", lambda r: int(r.of))),
)
