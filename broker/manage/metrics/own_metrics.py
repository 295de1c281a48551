"""Metrics that RabbitMQ does not have, such as those of commits, taps, the cluster and the overlay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from broker.core.vhost import Vhost
from broker.delivery.committer import COMMIT_BOUNDS_S, CommitTally
from broker.delivery.engine import Engine
from broker.manage.managed_broker import ManagedBroker
from broker.manage.metrics.global_metrics import gauge_line, protocol_lines
from broker.manage.metrics.metric import COUNTER, GAUGE, Labels, Sample, by, histogram, metric
from broker.manage.metrics.node_metrics import NodeReading

ALARMS: Final = ("memory", "disk", "database")


def own_lines(broker: ManagedBroker, node: NodeReading) -> Iterator[str]:
    """Yield the text of the metrics. Cost: O(vhosts + connections), plus the listings of taps and the overlay."""
    yield from commit_lines(node.commits)
    blocked = node.facts["connections_blocked"]
    yield gauge_line("slotmq_blocked_connections", "Publishers that an alarm blocks", blocked)
    alarms = by("kind", [(kind, node.alarmed(kind)) for kind in ALARMS])
    yield metric("slotmq_alarm", GAUGE, "1 while an alarm is raised, else 0", alarms)
    yield from vhost_lines(list(broker.administration.vhosts.engines.values()))
    connected = Counter([session.connection.protocol for session in broker.listener.sessions()])
    yield protocol_lines("slotmq_connections", "Connected clients", connected)
    if broker.settings().mqtt.enabled:
        yield from retained_lines(list(broker.administration.vhosts.values()))
    yield from tap_lines(broker.taps.listing())
    if broker.cluster is not None:
        yield from cluster_lines(broker.cluster.facts())
    if broker.overlay.is_on:
        yield from overlay_lines(broker.overlay.flows())


def commit_lines(commits: CommitTally) -> Iterator[str]:
    """Yield the durations and bytes of commits."""
    about = "Durations of commits: write, sync and the way to the thread and back"
    yield histogram("slotmq_commit_seconds", about, COMMIT_BOUNDS_S, commits.counts, commits.total_s)
    yield metric("slotmq_commit_bytes_total", COUNTER, "Bytes written by commits", [((), commits.total_bytes)])


def vhost_lines(engines: list[Engine]) -> Iterator[str]:
    """Yield the metrics of the vhosts' stores."""
    names = [engine.vhost.name for engine in engines]

    def each(name: str, kind: str, about: str, values: Iterable[float]) -> str:
        return metric(name, kind, about, by("vhost", zip(names, values, strict=True)))

    logs = [engine.store.log for engine in engines]
    pagers = [engine.pager for engine in engines]
    yield each("slotmq_log_bytes", GAUGE, "Size of the log", [sum(log.segments.values()) for log in logs])
    yield each("slotmq_log_segments", GAUGE, "Segments of the log", [len(log.segments) for log in logs])
    yield each("slotmq_log_pending_bytes", GAUGE, "Bytes since the last commit", [log.pending_bytes for log in logs])
    yield each("slotmq_fsync_total", COUNTER, "Calls of fdatasync on the log", [log.syncs for log in logs])
    yield each("slotmq_fsync_seconds_total", COUNTER, "Time of fdatasync on the log", [log.syncing_s for log in logs])
    yield each("slotmq_resident_bytes", GAUGE, "Messages in memory", [pager.resident_bytes for pager in pagers])
    yield each("slotmq_resident_limit_bytes", GAUGE, "Memory for messages", [pager.budget_bytes for pager in pagers])
    yield each("slotmq_slots_paged_out_total", COUNTER, "Slots moved to disk", [pager.paged_out for pager in pagers])
    yield each("slotmq_messages_spilled_total", COUNTER, "Messages written to page", [one.spilled for one in pagers])
    lost = [engine.vhost.tally.publishes_lost for engine in engines]
    yield each("slotmq_publishes_lost_total", COUNTER, "Messages refused to publishers without confirms", lost)
    yield each("slotmq_slot_reads_total", COUNTER, "Slots read back", [engine.reader.reads for engine in engines])


def retained_lines(vhosts: list[Vhost]) -> Iterator[str]:
    """Yield the numbers and sizes of retained messages."""
    found = [(one.name, one.retainer) for one in vhosts if one.retainer is not None]
    messages = by("vhost", [(name, len(retainer)) for name, retainer in found])
    size_bytes = by("vhost", [(name, retainer.size_bytes) for name, retainer in found])
    yield metric("slotmq_retained_messages", GAUGE, "Retained messages", messages)
    yield metric("slotmq_retained_bytes", GAUGE, "Size of the retained messages", size_bytes)


def tap_lines(taps: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the sizes of taps and the lags of cursors."""
    if not taps:
        return
    of_taps: list[tuple[Labels, dict[str, Any]]] = [
        ((("vhost", tap["vhost"]), ("tap", tap["name"])), tap) for tap in taps
    ]
    for key, name, about in (
        ("waiting", "slotmq_tap_waiting_messages", "Messages of a tap that are in no slot file"),
        ("messages", "slotmq_tap_messages", "Messages of a tap in slot files"),
        ("slots", "slotmq_tap_slots", "Slot files of a tap"),
        ("bytes", "slotmq_tap_bytes", "Size of the slot files of a tap"),
    ):
        yield metric(name, GAUGE, about, [(labels, tap[key]) for labels, tap in of_taps])
    cursors: list[tuple[Labels, dict[str, Any]]] = [
        ((*labels, ("cursor", cursor["name"])), cursor) for labels, tap in of_taps for cursor in tap["cursors"]
    ]
    if not cursors:
        return
    for key, name, about in (
        ("lag_messages", "slotmq_cursor_lag_messages", "Messages in slot files that a cursor has not passed"),
        ("lag_bytes", "slotmq_cursor_lag_bytes", "Size of the slot files that a cursor has not passed"),
    ):
        yield metric(name, GAUGE, about, [(labels, cursor[key]) for labels, cursor in cursors])


def cluster_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield this node's metrics about its cluster. Units: times in `facts` are in milliseconds."""
    round_trip_ms, beat_ms = facts["database_ms"], facts["beat_age_ms"]
    about = "1 while the database answers without errors, else 0"
    yield gauge_line("slotmq_cluster_database_up", about, int(not facts["database_trouble"]))
    about = "Statements that the database answered with an error of its own"
    yield metric("slotmq_cluster_database_failures_total", COUNTER, about, [((), facts["database_failures"])])
    for name, about, value_ms in (
        ("slotmq_cluster_database_seconds", "Time of the last call of the database", round_trip_ms),
        ("slotmq_cluster_beat_age_seconds", "Age of the node's last answered heartbeat", beat_ms),
        ("slotmq_cluster_lease_seconds", "How long the node may act after a heartbeat", facts["lease_ms"]),
    ):
        yield metric(name, GAUGE, about, [((), None if value_ms is None else value_ms / 1000)])
    nodes = by("node", [(row["node"], int(row["state"] == "alive")) for row in facts["nodes"]])
    yield metric("slotmq_cluster_node_up", GAUGE, "1 for a node that is alive, else 0", nodes)


def overlay_lines(brokers: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the metrics of the links and streams of the overlay's brokers in this process."""
    links: list[tuple[Labels, dict[str, Any]]] = [
        ((("broker", broker["broker"]), ("peer", link["peer"])), link) for broker in brokers for link in broker["links"]
    ]
    up = [(labels, int(link["state"] != "down")) for labels, link in links]
    yield metric("slotmq_overlay_link_up", GAUGE, "1 while a link is up, else 0", up)
    for direction in ("sent", "received"):
        size_bytes = [(labels, link[f"{direction}_bytes"]) for labels, link in links]
        about = f"Bytes {direction} in the session of a link"
        yield metric(f"slotmq_overlay_link_{direction}_bytes", GAUGE, about, size_bytes)
    leaves = [broker for broker in brokers if broker["leaf"]]
    streams: list[Sample] = [
        ((("vhost", stream["vhost"]), ("exchange", stream["exchange"])), stream["lag"])
        for leaf in leaves
        for stream in leaf["streams"]
    ]
    yield metric("slotmq_overlay_stream_lag_messages", GAUGE, "Messages that at least one leaf still needs", streams)
    sinks: list[Sample] = [
        ((("leaf", sink["leaf"]), ("vhost", sink["vhost"]), ("exchange", sink["exchange"])), sink["lag"])
        for leaf in leaves
        for sink in leaf["received"]
    ]
    yield metric("slotmq_overlay_received_lag_messages", GAUGE, "Messages of a leaf that have not arrived", sinks)
    for key, about in (
        ("delivered", "Messages of other leaves that were published here"),
        ("gaps", "Gaps in the streams of other leaves"),
        ("forced_out", "Messages dropped that a leaf still needed"),
    ):
        if leaves:
            yield metric(f"slotmq_overlay_{key}_total", COUNTER, about, [((), leaf[key]) for leaf in leaves])
