"""Counters of the whole broker under RabbitMQ's names, and the broker's identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from broker import __version__
from broker.core.statistics.publish_tally import SIZE_BOUNDS, SizeTally
from broker.core.statistics.vhost_tally import MessageCounts
from broker.manage.api.names import COMPATIBLE_VERSION, ERLANG_VERSION, PRODUCT
from broker.manage.managed_broker import ManagedBroker
from broker.manage.metrics.metric import COUNTER, GAUGE, Labels, by, histogram, metric

PROTOCOL: Final = (("protocol", "amqp091"),)
CLIENT: Final[Labels] = ()
QUEUE: Final[Labels] = (("queue_type", "rabbit_classic_queue"),)  # one implementation serves all queue types
AT_MOST_ONCE: Final = (("queue_type", "rabbit_classic_queue"), ("dead_letter_strategy", "at_most_once"))

# Source: RabbitMQ, rabbit_global_counters.
GLOBAL: Final[tuple[tuple[str, str, Labels, Callable[[MessageCounts], int]], ...]] = (
    ("received", "Messages published by clients", CLIENT, lambda c: c.publish),
    ("received_confirm", "Messages published by clients that expect confirms", CLIENT, lambda c: c.publish_confirm),
    ("routed", "Messages routed to queues, once for each queue", CLIENT, lambda c: c.routed),
    ("unroutable_dropped", "Messages that reached no queue", CLIENT, lambda c: c.drop_unroutable),
    ("unroutable_returned", "Mandatory messages that were returned", CLIENT, lambda c: c.return_unroutable),
    ("confirmed", "Messages confirmed to their publishers", CLIENT, lambda c: c.confirm),
    ("delivered", "Messages delivered or fetched", QUEUE, lambda c: c.deliver_get),
    ("delivered_consume_manual_ack", "Messages delivered, with acknowledgement", QUEUE, lambda c: c.deliver),
    ("delivered_consume_auto_ack", "Messages delivered, without acknowledgement", QUEUE, lambda c: c.deliver_no_ack),
    ("delivered_get_manual_ack", "Messages fetched, with acknowledgement", QUEUE, lambda c: c.get),
    ("delivered_get_auto_ack", "Messages fetched, without acknowledgement", QUEUE, lambda c: c.get_no_ack),
    ("get_empty", "Calls of basic.get that found no message", QUEUE, lambda c: c.get_empty),
    ("redelivered", "Messages delivered or fetched that had been delivered before", QUEUE, lambda c: c.redeliver),
    ("acknowledged", "Messages acknowledged", QUEUE, lambda c: c.ack),
)


def global_lines(by_protocol: Mapping[str, MessageCounts]) -> Iterator[str]:
    """Yield the message counters of each protocol."""
    for name, about, labels, value in GLOBAL:
        samples = [((("protocol", label_of(one)), *labels), value(counts)) for one, counts in by_protocol.items()]
        yield metric(f"rabbitmq_global_messages_{name}_total", COUNTER, about, samples)


def label_of(protocol: str) -> str:
    """Return the label of a protocol, such as `amqp091`."""
    return "".join([letter for letter in protocol.lower() if letter.isalnum()])


def dead_letter_lines(reasons: Mapping[str, int]) -> Iterator[str]:
    """Yield the counters of dead letters. Shapes: `reasons` maps a reason to a number of messages."""
    for reason, count in reasons.items():
        name = f"rabbitmq_global_messages_dead_lettered_{reason}_total"
        yield metric(name, COUNTER, f"Messages dead-lettered: {reason}", [(AT_MOST_ONCE, count)])


def size_text(sizes: SizeTally) -> str:
    """Return the histogram of message sizes."""
    about = "Sizes of the bodies of published messages"
    return histogram("rabbitmq_message_size_bytes", about, SIZE_BOUNDS, sizes.counts, sizes.total_bytes, PROTOCOL)


def gauge_line(name: str, about: str, value: float, labels: Labels = ()) -> str:
    """Return a gauge with one sample."""
    return metric(name, GAUGE, about, [(labels, value)])


def protocol_lines(name: str, about: str, counts: Mapping[str, int]) -> str:
    """Return a gauge with a sample for each protocol."""
    return metric(name, GAUGE, about, by("protocol", [(label_of(one), count) for one, count in sorted(counts.items())]))


def identity_lines(broker: ManagedBroker, endpoint: str) -> Iterator[str]:
    """Yield the metrics with the names and versions of the broker and its cluster, which dashboards join on."""
    node, named = broker.node_name, broker.administration.global_parameters.get("cluster_name")
    cluster = named if isinstance(named, str) else node
    build = {
        "rabbitmq_version": COMPATIBLE_VERSION,
        "prometheus_plugin_version": __version__,
        "prometheus_client_version": __version__,
        "erlang_version": ERLANG_VERSION,
        "product_name": PRODUCT,
        "product_version": __version__,
    }
    identity = {
        "rabbitmq_node": node,
        "rabbitmq_cluster": cluster,
        "rabbitmq_cluster_permanent_id": f"slotmq-{cluster}",
        "rabbitmq_endpoint": endpoint,
    }
    yield gauge_line("rabbitmq_build_info", "The version of the broker", 1, tuple(build.items()))
    yield gauge_line("rabbitmq_identity_info", "The names of the node and its cluster", 1, tuple(identity.items()))
