"""Metrics of the node, such as those of its process, its disk and its alarms."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.delivery.committer import CommitTally
from broker.delivery.engine import Engine
from broker.manage.managed_broker import ManagedBroker
from broker.manage.metrics.metric import Family, Labels, counter, gauge
from broker.net.alarm_watch import watermarks
from broker.vhosts.broker_statistics import ChurnCounts


@dataclass(frozen=True, slots=True)
class NodeReading:
    """The node at the time of a scrape.

    Shapes: `facts` is the process's part of `slotmq status`; `limits` maps an alarm to its limit in bytes.
    """

    facts: Mapping[str, Any]
    churn: ChurnCounts
    limits: Mapping[str, int]
    disk_free_bytes: int
    commits: CommitTally
    syncs: int
    syncing_s: float
    cpu_s: float
    labels: Labels = ()

    @classmethod
    def of(cls, broker: ManagedBroker) -> NodeReading:
        """Read the node. Cost: O(vhosts + descriptors)."""
        settings = broker.settings()
        engines = list(broker.administration.vhosts.engines.values())
        return cls(
            facts=broker.facts(),
            churn=broker.statistics.churn(),
            limits={mark.kind: mark.limit_bytes for mark in watermarks(settings)},
            disk_free_bytes=broker.files.free_bytes(settings.server.data_dir),
            commits=commits_of(engines),
            syncs=sum([engine.store.log.syncs for engine in engines]),
            syncing_s=sum([engine.store.log.syncing_s for engine in engines]),
            cpu_s=time.process_time(),
        )

    def alarmed(self, kind: str) -> int:
        """Return 1 while an alarm of a kind is raised, else 0."""
        return int(any(alarm["kind"] == kind for alarm in self.facts["alarms"]))


def commits_of(engines: list[Engine]) -> CommitTally:
    """Add up the commits of all vhosts; the vhosts of a cluster node share one tally."""
    total = CommitTally()
    for tally in dict.fromkeys([engine.committer.tally for engine in engines]):
        total.add(tally)
    return total


NODE_FAMILIES: Final[tuple[Family[NodeReading], ...]] = (
    Family(
        "connection_churn_metrics",
        counter("connections_opened_total", "Connections opened", lambda r: r.churn.connections_opened),
        counter("connections_closed_total", "Connections closed", lambda r: r.churn.connections_closed),
        counter("channels_opened_total", "Channels opened", lambda r: r.churn.channels_opened),
        counter("channels_closed_total", "Channels closed", lambda r: r.churn.channels_closed),
        counter("queues_declared_total", "Queues declared, new or existing", lambda r: r.churn.queues_declared),
        counter("queues_created_total", "Queues created", lambda r: r.churn.queues_created),
        counter("queues_deleted_total", "Queues deleted", lambda r: r.churn.queues_deleted),
    ),
    Family(
        "node_coarse_metrics",
        gauge("process_open_fds", "Open descriptors", lambda r: r.facts["descriptors"]),
        gauge("process_open_tcp_sockets", "Connected clients", lambda r: r.facts["connections"]),
        gauge("process_resident_memory_bytes", "Memory in use", lambda r: r.facts["resident_bytes"]),
        gauge("disk_space_available_bytes", "Free disk space", lambda r: r.disk_free_bytes),
    ),
    Family(
        "node_metrics",
        gauge("process_max_fds", "Limit of open descriptors", lambda r: r.facts["descriptors_max"]),
        gauge("process_max_tcp_sockets", "Limit of open descriptors", lambda r: r.facts["descriptors_max"]),
        gauge("resident_memory_limit_bytes", "Limit of the memory alarm", lambda r: r.limits["memory"]),
        gauge("disk_space_available_limit_bytes", "Limit of the disk alarm", lambda r: r.limits["disk"]),
        gauge("erlang_uptime_seconds", "Time since the start of the broker", lambda r: r.facts["uptime_s"]),
    ),
    Family(
        "node_persister_metrics",
        counter("io_write_ops_total", "Commits written", lambda r: sum(r.commits.counts)),
        counter("io_write_bytes_total", "Bytes written by commits", lambda r: r.commits.total_bytes),
        counter("io_write_time_seconds_total", "Time of commits", lambda r: r.commits.total_s),
        counter("io_sync_ops_total", "Calls of fdatasync on the log", lambda r: r.syncs),
        counter("io_sync_time_seconds_total", "Time of fdatasync on the log", lambda r: r.syncing_s),
    ),
    Family(
        "alarms",
        gauge("alarms_memory_used_watermark", "1 while the memory alarm is on, else 0", lambda r: r.alarmed("memory")),
        gauge("alarms_free_disk_space_watermark", "1 while the disk alarm is on, else 0", lambda r: r.alarmed("disk")),
        gauge("alarms_file_descriptor_limit", "0: clients are refused before the limit", lambda _reading: 0),
    ),
)
