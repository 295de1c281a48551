"""GET /api/nodes: this broker's process and machine, and the other nodes of its cluster."""

from __future__ import annotations

import gc
import os
import resource
import threading
from pathlib import Path
from typing import Any, Final

from broker import __version__
from broker.manage.answers import Response, json_answer
from broker.manage.api.names import ENABLED_PLUGINS, EXCHANGE_TYPE_ROWS, auth_mechanism_rows
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.counts import with_rates
from broker.manage.listing import Listing, listed, row_answer
from broker.manage.managed_broker import ManagedBroker
from broker.manage.refusal import not_found
from broker.net.alarm_watch import watermarks
from broker.operations.rows import Row

CHURN_NAMES: Final = (
    *("connection_created", "connection_closed", "channel_created", "channel_closed"),
    *("queue_declared", "queue_created", "queue_deleted"),
)
MEASURED: Final = ("mem_used", "fd_used", "sockets_used", "proc_used", "disk_free", "gc_num", "context_switches")
ALWAYS_ZERO: Final = (
    *("gc_bytes_reclaimed", "io_read_avg_time", "io_read_bytes", "io_read_count", "io_seek_avg_time", "io_seek_count"),
    *("io_sync_avg_time", "io_sync_count", "io_write_avg_time", "io_write_bytes", "io_write_count"),
    *("mnesia_disk_tx_count", "mnesia_ram_tx_count", "msg_store_read_count", "msg_store_write_count"),
    *("queue_index_read_count", "queue_index_write_count"),
)
"""Counters that only RabbitMQ has; tools expect their fields."""
PROCESSES_MAX: Final = 1 << 20  # reported if the system has no limit


async def list_nodes(call: Call) -> Response:
    """Answer with the nodes."""
    return await listed(
        call.query,
        Listing(node_rows(call.broker), names=lambda row: (row["name"],), whole=dict, order=lambda row: row["name"]),
    )


async def show_node(call: Call) -> Response:
    """Answer with one node."""
    return row_answer(call, _row_of(call))


async def show_memory(call: Call) -> Response:
    """Answer with the memory that a node uses, without a breakdown."""
    used = _row_of(call)["mem_used"]
    total = {"erlang": 0, "rss": used, "allocated": used}
    return json_answer({"memory": {"other_system": used, "strategy": "rss", "total": total}})


def _row_of(call: Call) -> Row:
    name = call.words["node"]
    rows = node_rows(call.broker)
    for row in rows:
        if row["name"] == name:
            return row
    if call.broker.is_named(name):
        return rows[0]
    raise not_found()


def node_rows(broker: ManagedBroker) -> list[Row]:
    """Return the rows of the nodes, this one first."""
    rows = [node_row(broker)]
    if broker.cluster is not None:
        own = broker.node_name
        rows += [other_row(node, rows[0]) for node in broker.cluster.facts()["nodes"] if node["node"] != own]
    return rows


def node_row(broker: ManagedBroker) -> Row:
    """Return the row of this node. Cost: O(descriptors)."""
    facts, settings = broker.facts(), broker.settings()
    limits = {one.kind: one.limit_bytes for one in watermarks(settings)}
    alarms = {alarm["kind"] for alarm in facts["alarms"]}
    folder = Path(settings.server.data_dir).absolute()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    measured = (
        facts["resident_bytes"],
        facts["descriptors"] or 0,
        facts["connections"],
        threading.active_count(),
        broker.files.free_bytes(folder),
        sum([generation["collections"] for generation in gc.get_stats()]),
        usage.ru_nvcsw + usage.ru_nivcsw,
    )
    churn = tuple(broker.statistics.churn())
    numbers = (*churn, *measured)
    rates = broker.samples.rates.of(("node", broker.node_name), numbers, len(churn))
    row = with_rates((*CHURN_NAMES, *MEASURED), numbers, rates) | with_rates(ALWAYS_ZERO, [0] * len(ALWAYS_ZERO), None)
    return row | {
        "applications": [{"name": "slotmq", "description": "SlotMQ", "version": __version__}],
        "auth_mechanisms": auth_mechanism_rows(settings),
        "being_drained": False,
        "cluster_links": [],
        "config_files": [],
        "contexts": contexts_of(broker),
        "db_dir": str(folder),
        "disk_free_alarm": "disk" in alarms,
        "disk_free_limit": limits["disk"],
        "enabled_plugins": list(ENABLED_PLUGINS),
        "exchange_types": EXCHANGE_TYPE_ROWS,
        "fd_total": facts["descriptors_max"],
        "io_reopen_count": 0,
        "log_files": ["<stderr>"],
        "mem_alarm": "memory" in alarms,
        "mem_calculation_strategy": "rss",
        "mem_limit": limits["memory"],
        "metrics_gc_queue_length": {},
        "name": broker.node_name,
        "net_ticktime": 60,
        "os_pid": str(facts["pid"]),
        "partitions": [],
        "proc_total": _processes_max(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "ra_open_file_metrics": {},
        "rates_mode": "basic",
        "run_queue": round(os.getloadavg()[0]),
        "running": True,
        "sockets_total": settings.server.connections_max,
        "type": "disc",
        "uptime": facts["uptime_s"] * 1000,
    }


def other_row(node: dict[str, Any], own: Row) -> Row:
    """Return the row of another node of the cluster; unknown values are 0 or empty."""
    row = {name: _zero(value) for name, value in own.items()}
    return row | {
        "applications": [{"name": "slotmq", "description": "SlotMQ", "version": str(node.get("version", ""))}],
        "name": node["node"],
        "os_pid": "",
        "rates_mode": "basic",
        "running": node["state"] == "alive",
        "sockets_used": node.get("clients", 0),
        "type": "disc",
    }


def _zero(value: Any) -> Any:
    """Return 0 or an empty value of the same type; in a table, replace each value."""
    if isinstance(value, dict):
        return {name: _zero(inner) for name, inner in value.items()}
    return type(value)()


def _processes_max() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return PROCESSES_MAX if soft == resource.RLIM_INFINITY else soft


async def accept(_call: Call) -> None:
    """Accept a request for something that this broker does not need, and do nothing."""


def listeners_of(broker: ManagedBroker) -> list[dict[str, Any]]:
    """Return a row for each protocol and port on which the broker listens."""
    settings, listener, http = broker.settings(), broker.listener, _http_ports(broker)
    server, hosts = settings.server, {"mqtt": settings.mqtt.host}
    ports = [
        *[(name, hosts.get(name.partition("/")[0]) or server.host, port) for name, port in listener.ports.items()],
        *http,
        *[(f"{protocol}/web-mqtt", host, port) for protocol, host, port in http[:1] if settings.mqtt.enabled],
    ]
    return [
        {
            "ip_address": host,
            "node": broker.node_name,
            "port": port,
            "protocol": protocol,
            "socket_opts": {"backlog": server.backlog, "nodelay": True},
        }
        for protocol, host, port in ports
        if port
    ]


def contexts_of(broker: ManagedBroker) -> list[dict[str, Any]]:
    """Return a row for each HTTP port."""
    texts = {"http": "SlotMQ Management", "https": "SlotMQ Management"}
    return [
        {
            "description": texts.get(protocol, "SlotMQ Prometheus"),
            "ip": host,
            "node": broker.node_name,
            "path": "/",
            "port": str(port),
            "ssl_opts": [],
        }
        for protocol, host, port in _http_ports(broker)
        if port
    ]


def _http_ports(broker: ManagedBroker) -> list[tuple[str, str, int]]:
    settings, ports = broker.settings(), broker.ports()
    http, metrics = settings.http, settings.metrics
    return [
        ("https" if http.tls else "http", settings.host_of(http), ports["http_port"] or 0),
        (
            "https/prometheus" if metrics.tls else "http/prometheus",
            settings.host_of(metrics),
            ports["metrics_port"] or 0,
        ),
    ]


ROUTES: Final = (
    ApiRoute("GET", "/api/nodes", Needs.MONITORING, list_nodes),
    ApiRoute("GET", "/api/nodes/{node}", Needs.MONITORING, show_node),
    ApiRoute("GET", "/api/nodes/{node}/memory", Needs.MONITORING, show_memory),
    ApiRoute("POST", "/api/rebalance/queues", Needs.ADMINISTRATOR, accept),
    ApiRoute("DELETE", "/api/reset", Needs.ADMINISTRATOR, accept),
    ApiRoute("DELETE", "/api/reset/{node}", Needs.ADMINISTRATOR, accept),
    ApiRoute("PUT", "/api/feature-flags/{flag}/enable", Needs.ADMINISTRATOR, accept),
)
