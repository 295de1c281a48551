"""One scrape: read the broker in slices, and yield the text.

The loop does other work between two slices, so that a scrape of thousands of queues does not delay deliveries.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from broker.core.statistics.vhost_tally import AMQP
from broker.core.vhost import Vhost
from broker.manage.managed_broker import ManagedBroker
from broker.manage.metrics.channel_metrics import (
    CHANNEL_FAMILIES,
    CONNECTION_FAMILIES,
    LOGIN_FAMILIES,
    channel_readings,
    connection_readings,
    login_readings,
)
from broker.manage.metrics.global_metrics import (
    dead_letter_lines,
    gauge_line,
    global_lines,
    identity_lines,
    protocol_lines,
    size_text,
)
from broker.manage.metrics.metric import Family, Labelled, Metric, Whole, head, label_text, sample
from broker.manage.metrics.node_metrics import NODE_FAMILIES, NodeReading
from broker.manage.metrics.own_metrics import own_lines
from broker.manage.metrics.queue_metrics import (
    BINDING_FAMILIES,
    EXCHANGE_FAMILIES,
    INFO_FAMILIES,
    OWN_QUEUE_FAMILIES,
    QUEUE_FAMILIES,
    VHOST_FAMILIES,
    QueueReading,
    exchange_readings,
    named_exchanges,
    queue_infos,
    queue_readings,
    vhost_readings,
)

READINGS_AT_ONCE: Final = 200  # objects that are read in one turn of the loop
SLOTS_PER_READING: Final = 10  # reading this many slots takes as long as reading one object
RABBITMQ: Final = "rabbitmq_"
DETAILED: Final = "rabbitmq_detailed_"
CLUSTER: Final = "rabbitmq_cluster_"
OWN: Final = "slotmq_"
OF_QUEUES: Final = frozenset({"queue_coarse_metrics", "queue_consumer_count", "queue_metrics"})
QUEUE_METRICS: Final = "queue_metrics"
QUEUE_CONSUMERS: Final = "queue_consumer_count"  # included in queue_metrics
OBJECT_FAMILIES: Final[tuple[Sequence[Family[Any]], ...]] = (
    *(NODE_FAMILIES, LOGIN_FAMILIES, QUEUE_FAMILIES, OWN_QUEUE_FAMILIES, EXCHANGE_FAMILIES),
    *(CHANNEL_FAMILIES, CONNECTION_FAMILIES, BINDING_FAMILIES, VHOST_FAMILIES),
)
FAMILY_NAMES: Final = frozenset(family.name for families in OBJECT_FAMILIES for family in families) | OF_QUEUES

R = TypeVar("R", bound=Labelled)
Pieces = AsyncGenerator[str, None]


class Scrape:
    """Read a broker once."""

    def __init__(self, broker: ManagedBroker) -> None:
        self._broker = broker
        self._node = NodeReading.of(broker)
        self._vhosts = list(broker.administration.vhosts.values())
        sessions = self._sessions = broker.listener.sessions()
        self._whole = Whole(
            broker.statistics.totals(),
            broker.listener.received_before + sum([session.connection.received for session in sessions]),
            broker.listener.sent_before + sum([session.connection.sent for session in sessions]),
        )

    async def aggregated(self) -> Pieces:
        """Yield the metrics of the whole broker, with sums over objects such as queues."""
        yield "".join(self._of_broker("aggregated"))
        async for piece in written(RABBITMQ, NODE_FAMILIES, [self._node]):
            yield piece
        async for piece in written(RABBITMQ, LOGIN_FAMILIES, login_readings(self._broker.logins)):
            yield piece
        vhosts = self._vhosts
        queues, slots = Sums(QUEUE_FAMILIES), 0
        disconnected: set[tuple[str, str]] = set()  # the vhost and client of MQTT sessions
        async for queue in gradually(queue_readings(vhosts, self._broker.statistics), slots_cost):
            queues.add(queue)
            slots += queue.slots
            if queue.session:
                disconnected.add((queue.vhost, queue.session))
        channels = Sums(CHANNEL_FAMILIES)
        async for channel in gradually(channel_readings(self._sessions)):
            channels.add(channel)
        connections = Sums(CONNECTION_FAMILIES)
        async for connection in gradually(connection_readings(self._sessions)):
            connections.add(connection)
        exchanges, bindings = Sums(EXCHANGE_FAMILIES), 0
        async for exchange in gradually(exchange_readings(vhosts)):
            exchanges.add(exchange)
            bindings += exchange.of.binding_count
        yield "".join([sums.text(self._whole) for sums in (queues, channels, connections, exchanges)])
        yield gauge_line("slotmq_slots", "Slots of all queues", slots)
        if self._broker.settings().mqtt.enabled:
            yield gauge_line("slotmq_mqtt_sessions_disconnected", "Sessions without a client", len(disconnected))
        yield gauge_line("slotmq_bindings", "Bindings, without those to the default exchange", bindings)
        async for piece in self._totals():
            yield piece

    async def per_object(self) -> Pieces:
        """Yield the metrics of the whole broker, with a sample for each object, such as a queue."""
        yield "".join(self._of_broker("per-object"))
        async for piece in self._of_objects(RABBITMQ, None, self._vhosts):
            yield piece
        async for piece in self._totals():
            yield piece

    async def detailed(self, families: Collection[str], vhosts: Collection[str] | None) -> Pieces:
        """Yield the requested families; queues and exchanges are those of `vhosts`, or all if `vhosts` is None. Unknown
        families are ignored, as in RabbitMQ.
        """
        yield "".join(identity_lines(self._broker, "detailed"))
        chosen = [vhost for vhost in self._vhosts if vhosts is None or vhost.name in vhosts]
        async for piece in self._of_objects(DETAILED, families, chosen):
            yield piece
        async for piece in written(CLUSTER, families_named(BINDING_FAMILIES, families), named_exchanges(chosen)):
            yield piece
        vhosts_up = vhost_readings(self._broker.administration)
        async for piece in written(CLUSTER, families_named(VHOST_FAMILIES, families), vhosts_up):
            yield piece

    def _of_broker(self, endpoint: str) -> Iterator[str]:
        """Yield the metrics that the broker has only as a whole, such as its identity."""
        statistics = self._broker.statistics
        yield from identity_lines(self._broker, endpoint)
        yield from global_lines(self._broker.statistics.by_protocol())
        yield from dead_letter_lines(statistics.dead_letters())
        yield size_text(statistics.sizes())
        yield from own_lines(self._broker, self._node)

    async def _totals(self) -> Pieces:
        channels = 0
        consumers, publishers = Counter({AMQP: 0}), Counter({AMQP: 0})
        async for channel in gradually(channel_readings(self._sessions)):
            channels += 1
            consumers[channel.protocol] += channel.row["consumer_count"]
            publishers[channel.protocol] += channel.counts.publish > 0
        queues = sum([vhost.queues.declared_count for vhost in self._vhosts])
        for name, about, count in (
            ("rabbitmq_connections", "Open connections", len(self._sessions)),
            ("rabbitmq_channels", "Open channels", channels),
            ("rabbitmq_consumers", "Consumers", consumers.total()),
            ("rabbitmq_queues", "Queues", queues),
            ("slotmq_exchanges", "Exchanges", sum([len(vhost.exchanges) for vhost in self._vhosts])),
        ):
            yield gauge_line(name, about, count)
        yield protocol_lines("rabbitmq_global_consumers", "Consumers", consumers)
        yield protocol_lines("rabbitmq_global_publishers", "Channels that have published", publishers)

    async def _of_objects(self, prefix: str, families: Collection[str] | None, vhosts: Sequence[Vhost]) -> Pieces:
        """Yield the named families of objects, or all if `families` is None."""
        statistics, sessions = self._broker.statistics, self._sessions
        infos = INFO_FAMILIES if families is None or OF_QUEUES & set(families) else ()
        parts: tuple[tuple[str, Sequence[Family[Any]], Iterable[Any], Callable[[Any], int]], ...] = (
            (prefix, families_named(NODE_FAMILIES, families), [self._node], one),
            (prefix, families_named(LOGIN_FAMILIES, families), login_readings(self._broker.logins), one),
            (prefix, families_named(QUEUE_FAMILIES, families), queue_readings(vhosts, statistics), slots_cost),
            (OWN, families_named(OWN_QUEUE_FAMILIES, families), queue_readings(vhosts, statistics), one),
            (prefix, infos, queue_infos(vhosts), one),
            (prefix, families_named(EXCHANGE_FAMILIES, families), exchange_readings(vhosts), one),
            (prefix, families_named(CHANNEL_FAMILIES, families), channel_readings(sessions), one),
            (prefix, families_named(CONNECTION_FAMILIES, families), connection_readings(sessions), one),
        )
        for part in parts:
            async for piece in written(*part):
                yield piece


class Sums(Generic[R]):
    """Add up the metrics of many objects."""

    def __init__(self, families: Iterable[Family[R]]) -> None:
        self._metrics = [metric for family in families_named(families, None) for metric in family.metrics]
        self._sums: list[float] = [0] * len(self._metrics)

    def add(self, reading: R) -> None:
        """Add the values of one object, except those of metrics with a total of the whole broker."""
        for place, metric in enumerate(self._metrics):
            if metric.total is None:
                self._sums[place] += metric.value(reading) or 0

    def text(self, whole: Whole) -> str:
        lines = []
        for place, metric in enumerate(self._metrics):
            value = self._sums[place] if metric.total is None else metric.total(whole)
            name = RABBITMQ + metric.name
            lines.append(head(name, metric.kind, metric.about) + sample(name, "", value))
        return "".join(lines)


def families_named(families: Iterable[Family[R]], names: Collection[str] | None) -> list[Family[R]]:
    """Return the families with these names, or all if `names` is None, without a family that another one includes."""
    found = [family for family in families if names is None or family.name in names]
    whole = any(family.name == QUEUE_METRICS for family in found)
    return [family for family in found if not (whole and family.name == QUEUE_CONSUMERS)]


def slots_cost(reading: QueueReading) -> int:
    """Return the cost of reading a queue and its slots. Units: objects."""
    return 1 + reading.slots // SLOTS_PER_READING


def one(_reading: Labelled) -> int:
    """Return 1, the cost of an object."""
    return 1


async def gradually(readings: Iterable[R], cost: Callable[[R], int] = one) -> AsyncGenerator[R, None]:
    """Yield readings, and let the loop do other work after each slice of `READINGS_AT_ONCE`."""
    spent = 0
    for reading in readings:
        yield reading
        spent += cost(reading)
        if spent >= READINGS_AT_ONCE:
            spent = 0
            await asyncio.sleep(0)


async def written(
    prefix: str, families: Sequence[Family[R]], readings: Iterable[R], cost: Callable[[R], int] = one
) -> Pieces:
    """Yield the text of families, metric by metric."""
    if not families:
        return
    labelled = [(label_text(reading.labels), reading) async for reading in gradually(readings, cost)]
    for family in families:
        for metric in family.metrics:
            yield head(prefix + metric.name, metric.kind, metric.about)
            async for piece in lines(prefix + metric.name, metric, labelled):
                yield piece


async def lines(name: str, metric: Metric[R], labelled: Sequence[tuple[str, R]]) -> Pieces:
    """Yield the samples of one metric in slices."""
    for at in range(0, len(labelled), READINGS_AT_ONCE):
        piece = labelled[at : at + READINGS_AT_ONCE]
        yield "".join([sample(name, labels, metric.value(reading)) for labels, reading in piece])
        await asyncio.sleep(0)
