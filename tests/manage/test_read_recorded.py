"""The answers of the API beside those that RabbitMQ gave in the same scene."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.http_talk import ask
from tests.manage.record import RECORDED, trimmed
from tests.manage.shop import get, managed_broker, shop

IDLE = {
    "nodes": "nodes",
    "overview": "overview",
    "vhosts/shop": "vhosts/%2F",
    "queues/shop/work": "queues/%2F/work",
    "exchanges/shop/orders": "exchanges/%2F/amq.topic",
    "bindings/shop": "bindings/%2F",
    "feature-flags": "feature-flags",
}
"""Paths that were recorded, and those to the same kind of row in a broker that has a queue `work` and nothing else."""
NAMED = (".arguments.", ".consumer_details[", ".effective_policy_definition.", ".policy: ", ".cluster_state.")
"""Where the names or the values of fields depend on the queue or the node."""
LEFT_OUT = frozenset(
    {
        "backing_queue_status",  # of RabbitMQ 3's own way to keep messages
        "cowboy_opts",  # of RabbitMQ's web server
        "socket_opts",
        "metrics_gc_queue_length",  # of Erlang's machine
        "ra_open_file_metrics",
        "io_reopen_count_details",
    }
)
"""Fields that an answer need not have, or only with another value."""
OURS = frozenset(
    {
        "cluster_name",
        "erlang_version",
        "memory",
        "messages_ram",  # RabbitMQ counts none of a quorum queue
        "message_bytes_ram",
        "name",  # compared by their places in the lists
        "product_name",
        "retention",
        "sample_retention_policies",
        "state",  # "live" while nothing is known
        "user_who_performed_action",
        "vm_memory_calculation_strategy",
    }
)
EXPECTED = (
    ".churn_rates",  # has no samples
    ".message_stats.disk_",
    "msg_rates_incr=5.queue_totals",  # RabbitMQ counts as of the last sample
    "feature-flags",  # are those of RabbitMQ 4
    ".message_stats: {'publish': 0}, not []",  # RabbitMQ leaves a queue without messages out
    "enable_queue_totals=true[safe",  # exclusive is null there
    ".properties_key: '~",  # the digest of arguments is another one
    "nodes/none@nowhere",  # RabbitMQ fails
    "connections/*.peer_cert_",  # without TLS null, in RabbitMQ an empty text
    "connections/*.ssl_",
    "Pagination parameters are invalid: name is not a regular expression",
)
"""Where an answer differs from RabbitMQ's, as the lines of `differences` begin or go on."""
ORDERED = ("name", "consumer_tag", "source", "destination", "routing_key", "number", "protocol")


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Return what RabbitMQ's answer has and ours has not, or has with another type or value."""
    if theirs is None:
        return []
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found = []
        for name, value in theirs.items():
            if name in LEFT_OUT:
                continue
            if name not in ours:
                found.append(f"{path}.{name} is missing: {value}")
            elif name in OURS:
                found += [] if type(ours[name]) is type(value) else [f"{path}.{name}: {ours[name]!r}, not {value!r}"]
            else:
                found += differences(ours[name], value, f"{path}.{name}")
        return found
    if isinstance(theirs, list) and isinstance(ours, list):
        named = theirs and isinstance(theirs[0], dict) and any(name in theirs[0] for name in ORDERED)
        if named:
            ours, theirs = by_name(ours), by_name(theirs)
            return [f"{path}[{key}] is missing" for key in theirs if key not in ours] + [
                line for key in theirs if key in ours for line in differences(ours[key], theirs[key], f"{path}[{key}]")
            ]
        return [line for one, other in zip(ours, theirs, strict=False) for line in differences(one, other, f"{path}[]")]
    numbers = isinstance(ours, int | float) and isinstance(theirs, int | float) and not isinstance(theirs, bool)
    if type(ours) is not type(theirs) and not numbers:
        return [f"{path}: {ours!r}, not {theirs!r}"]
    return [] if ours == theirs else [f"{path}: {ours!r}, not {theirs!r}"]


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return rows by what names them."""
    return {"|".join(str(row.get(name)) for name in ORDERED): row for row in rows}


async def test_the_api_has_the_fields_and_numbers_of_rabbitmq(tmp_path: Path) -> None:
    """Each recorded path gets its status, and each recorded field its type and, except for measurements, its value."""
    recorded = json.loads(RECORDED.read_text())
    found: list[str] = []
    async with shop(tmp_path / "data") as broker:
        node = (await get(broker, "nodes"))[0]["name"]
        connection, channel = [
            quote((await get(broker, kind))[-1]["name"], safe="") for kind in ("connections", "channels")
        ]
        for path, answer in recorded.items():
            asked = path.replace("connections/*", f"connections/{connection}")
            asked = asked.replace("channels/*", f"channels/{channel}")
            said = await ask(broker, "GET", f"/api/{asked}")
            if said.status != answer["status"]:
                found.append(f"{path}: {said.status}, not {answer['status']}")
            else:
                found += differences(trimmed(json.loads(said.body), node), answer["body"], path)
    found = [line for line in found if not any(expected in line for expected in EXPECTED)]
    assert not found, "\n".join(found)


async def test_an_idle_broker_has_these_fields_too(tmp_path: Path) -> None:
    """Monitoring tools read all of them, also where nothing ever happened: as zeros, of the same types."""
    recorded = json.loads(RECORDED.read_text())
    found: list[str] = []
    async with managed_broker(tmp_path / "data") as broker:
        broker.vhosts["/"].queues.declare("work", durable=True)
        for path, own in IDLE.items():
            ours, theirs = await get(broker, own), recorded[path]["body"]
            found += differences(trimmed(ours, "NODE", varies=True), trimmed(theirs, "NODE", varies=True), path)
        assert (await get(broker, "nodes"))[0]["being_drained"] is False  # which only RabbitMQ 4 has
    found = [line for line in found if not any(name in line for name in NAMED)]
    assert not found, "\n".join(found)
