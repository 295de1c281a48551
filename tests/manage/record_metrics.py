"""Records RabbitMQ's metrics again: `.venv/bin/python -m tests.manage.record_metrics`.

Needs an installed RabbitMQ. Writes `tests/manage/recorded/metrics.json`: the types and labels of each endpoint's
metrics, and the values that depend only on the client's operations.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.differential.oracle import own_oracle
from tests.http_talk import Web
from tests.manage.metrics_scene import FAMILIES, busy_client, described, samples
from tests.manage.record import free_port

RECORDED = Path(__file__).with_name("recorded") / "metrics.json"
STATISTICS_S = 8  # until RabbitMQ has counted everything
COUNTED = (
    "rabbitmq_global_messages_", "rabbitmq_global_consumers", "rabbitmq_global_publishers", "rabbitmq_connections",
    "rabbitmq_channels", "rabbitmq_queues", "rabbitmq_consumers", "rabbitmq_channel_", "rabbitmq_consumer_prefetch",
    "rabbitmq_connection_channels", "rabbitmq_queue_messages_published_total",
)  # fmt: skip
LENGTHS = ("rabbitmq_queue_messages", "rabbitmq_queue_messages_ready", "rabbitmq_queue_messages_unacked")
OTHERS = ("dead_lettered", "reductions", "connections_closed")
"""Parts of metrics that RabbitMQ counts differently, that only it has, or that the start of the oracle changes."""


def main() -> None:
    """Write the recording."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        settings = [
            "prometheus.tcp.ip = 127.0.0.1",
            f"prometheus.tcp.port = {port}",
            "collect_statistics_interval = 1000",
        ]
        oracle = own_oracle(Path(folder) / "rabbitmq", "rabbitmq_prometheus", settings=settings)
        with oracle as (address, _control), busy_client(address.port):
            time.sleep(STATISTICS_S)
            web = Web(port, None)
            recorded: dict[str, Any] = {
                name: own(described(web.ask("GET", path).body.decode())) for name, path in paths().items()
            }
            recorded["values"] = values(web.ask("GET", "/metrics").body.decode())
    RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


def paths() -> dict[str, str]:
    """Return the path of each endpoint by its name."""
    families = "&".join(f"family={family}" for family in FAMILIES)
    return {
        "aggregated": "/metrics",
        "per-object": "/metrics/per-object",
        "detailed": f"/metrics/detailed?{families}",
    }


def own(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return RabbitMQ's metrics without Erlang's."""
    return {name: one for name, one in metrics.items() if name.startswith("rabbitmq_")}


def values(text: str) -> dict[str, float]:
    """Return the values that depend only on the client; with the label `queue_type`, those of classic queues."""
    found: dict[str, float] = {}
    for name, those in samples(text).items():
        if name not in LENGTHS and (not name.startswith(COUNTED) or any(part in name for part in OTHERS)):
            continue
        for one in those:
            if one.labels.get("queue_type", "rabbit_classic_queue") == "rabbit_classic_queue":
                found[name] = one.value
    return found


if __name__ == "__main__":
    main()
