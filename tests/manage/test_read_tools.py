"""The fields that tools read: each of them breaks when one is absent or has another type. Nothing happens before."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import aio_pika
import pytest

from broker.server import BrokerServer
from tests.http_talk import Web
from tests.in_process import client_of
from tests.manage.shop import get, managed_broker, shop

NUMBER = (int, float)
RATES = {f"message_stats.{name}_details.rate": NUMBER for name in ("publish", "deliver_get", "ack", "redeliver")}
QUEUE: dict[str, Any] = {
    "name": str, "vhost": str, "type": str, "durable": bool, "auto_delete": bool, "exclusive": bool, "arguments": dict,
}  # fmt: skip
LENGTHS = {"messages": int, "messages_ready": int, "messages_unacknowledged": int}

CONTRACTS: dict[str, dict[str, dict[str, Any]]] = {
    "keda": {
        "queues/shop/work": {"name": str, **LENGTHS, **RATES},
        "queues/shop?page=1&use_regex=true&pagination=false&name=%5Ework%24&page_size=100": {
            "page_count": int, "items": list, "items.name": str, "items.messages": int, "items.messages_ready": int,
            "items.message_stats.publish_details.rate": NUMBER, "items.message_stats.deliver_get_details.rate": NUMBER,
        },
    },
    "flower": {"queues/shop": {"name": str, **LENGTHS, "consumers": int, "idle_since": str}},
    "datadog": {
        "overview": {
            "cluster_name": str, "rabbitmq_version": str, "management_version": str,
            **{f"object_totals.{name}": int for name in ("channels", "connections", "consumers", "queues")},
            **{f"queue_totals.{name}": int for name in LENGTHS},
            **{f"queue_totals.{name}_details.rate": NUMBER for name in LENGTHS},
            **{
                f"message_stats.{name}{suffix}": NUMBER
                for name in (
                    "ack", "confirm", "deliver", "deliver_get", "deliver_no_ack", "get", "get_no_ack", "publish",
                    "redeliver", "return_unroutable", "drop_unroutable", "disk_reads", "disk_writes",
                )
                for suffix in ("", "_details.rate")
            },
        },
        "nodes": {
            "name": str, "fd_used": int, "fd_total": int, "sockets_used": int, "sockets_total": int, "mem_used": int,
            "mem_limit": int, "mem_alarm": bool, "disk_free": int, "disk_free_limit": int, "disk_free_alarm": bool,
            "run_queue": int, "running": bool, "partitions": list, "proc_used": int, "proc_total": int,
        },
        "queues?page=1&page_size=100": {
            "page_count": int, "items.name": str, "items.vhost": str, "items.consumers": int, "items.state": str,
            "items.consumer_utilisation": NUMBER, "items.memory": int, "items.message_bytes": int,
            "items.messages_details.rate": NUMBER, "items.messages_ready_details.rate": NUMBER,
            "items.message_stats.publish_details.rate": NUMBER,
        },
        "exchanges": {
            "name": str, "vhost": str, "type": str, "message_stats.publish_in": int, "message_stats.publish_out": int,
            "message_stats.publish_in_details.rate": NUMBER,
        },
        "connections": {
            "name": str, "state": str, "channels": int, "recv_oct": int, "send_oct": int,
            "recv_oct_details.rate": NUMBER, "vhost": str, "user": str,
        },
        "vhosts": {"name": str},
    },
    "exporter": {
        "nodes": {"uptime": int, "mem_used": int, "fd_used": int, "disk_free": int, "running": bool, "mem_alarm": bool},
        "queues": {
            **LENGTHS, "messages_ready_ram": int, "messages_unacknowledged_ram": int, "messages_ram": int,
            "messages_persistent": int, "message_bytes": int, "message_bytes_ready": int, "message_bytes_ram": int,
            "message_bytes_unacknowledged": int, "message_bytes_persistent": int, "consumers": int, "memory": int,
            "consumer_utilisation": NUMBER, "message_stats.publish": int, "message_stats.deliver": int,
            "message_stats.deliver_no_ack": int, "message_stats.get": int, "message_stats.redeliver": int,
        },
        "channels": {
            "number": int, "prefetch_count": int, "messages_unacknowledged": int, "messages_unconfirmed": int,
            "consumer_count": int, "connection_details.name": str, "acks_uncommitted": int, "messages_uncommitted": int,
        },
    },
    "rabbitmqadmin": {
        "queues": QUEUE,
        "connections": {
            "name": str, "node": str, "protocol": str, "user": str, "connected_at": int, "client_properties": dict,
            "vhost": str, "host": str, "port": int, "peer_host": str, "peer_port": int, "channel_max": int,
            "frame_max": int, "timeout": int, "ssl": bool, "type": str, "auth_mechanism": str,
        },
        "nodes": {
            "name": str, "uptime": int, "run_queue": int, "processors": int, "os_pid": str, "fd_total": int,
            "proc_total": int, "mem_limit": int, "mem_alarm": bool, "disk_free_limit": int, "disk_free_alarm": bool,
            "rates_mode": str, "enabled_plugins": list, "being_drained": bool,
        },
        "overview": {
            "listeners.node": str, "listeners.protocol": str, "listeners.port": int, "listeners.ip_address": str,
            "node": str, "cluster_name": str, "erlang_version": str, "product_name": str, "product_version": str,
            "statistics_db_event_queue": int, "churn_rates.connection_created": int,
            "exchange_types.name": str, "contexts.port": str,
        },
        "bindings": {
            "vhost": str, "source": str, "destination": str, "destination_type": str, "routing_key": str,
            "arguments": dict, "properties_key": str,
        },
        "exchanges": {
            "name": str, "vhost": str, "type": str, "durable": bool, "auto_delete": bool, "internal": bool,
            "arguments": dict,
        },
        "consumers": {
            "consumer_tag": str, "active": bool, "ack_required": bool, "prefetch_count": int, "exclusive": bool,
            "arguments": dict, "queue.name": str, "queue.vhost": str, "channel_details.name": str,
            "channel_details.connection_name": str, "channel_details.number": int, "channel_details.peer_host": str,
            "channel_details.peer_port": int, "channel_details.user": str, "channel_details.node": str,
        },
        "channels": {"name": str, "number": int, "confirm": bool, "transactional": bool, "state": str, "user": str},
        "vhosts": {"name": str, "tags": list, "description": str, "tracing": bool, "cluster_state": dict},
        "feature-flags": {"name": str, "state": str, "stability": str, "provided_by": str, "desc": str},
    },
}  # fmt: skip


def values_at(value: Any, path: list[str]) -> list[Any]:
    """Return the values of a dotted field, in each row of a list. Raises: KeyError."""
    if isinstance(value, list) and path:
        return [found for row in value for found in values_at(row, path)]
    return values_at(value[path[0]], path[1:]) if path else [value]


async def check(broker: BrokerServer, tool: str) -> None:
    """Check that every row has every field that a tool reads."""
    for path, fields in CONTRACTS[tool].items():
        answer = await get(broker, path.replace("/shop", "/%2F") if "shop" not in broker.vhosts else path)
        for field, kind in fields.items():
            found = values_at(answer, field.split("."))
            assert found or not answer, (path, field)
            wrong = [
                value for value in found if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool)
            ]
            assert not wrong, (path, field, wrong)


async def test_tools_find_their_fields(tmp_path: Path) -> None:
    """Every tool finds its fields in a broker at work; twice, because rates are there only the second time."""
    async with shop(tmp_path / "data") as broker:
        for _ in range(2):
            for tool in CONTRACTS:
                await check(broker, tool)


async def test_tools_find_their_fields_in_an_idle_broker(tmp_path: Path) -> None:
    """A broker where nothing ever happened has all fields too, as zeros."""
    async with managed_broker(tmp_path / "data") as broker:
        broker.vhosts["/"].queues.declare("work")
        for tool in CONTRACTS:
            await check(broker, tool)


async def test_rates_are_of_the_time_between_two_questions(tmp_path: Path) -> None:
    """KEDA scales by these rates: published and delivered messages per second."""
    async with managed_broker(tmp_path / "data") as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("work")
        before = await get(broker, "queues/%2F/work")
        for _ in range(10):
            await channel.default_exchange.publish(aio_pika.Message(b"x"), "work")
        for _ in range(4):
            await (await queue.get()).ack()
        after = await get(broker, "queues/%2F/work")
        stats = after["message_stats"]
        assert before["message_stats"]["publish_details"] == {"rate": 0.0}
        assert (stats["publish"], stats["get"], stats["ack"], stats["deliver_get"]) == (10, 4, 4, 4)
        assert stats["publish_details"]["rate"] > stats["deliver_get_details"]["rate"] > 0
        assert after["messages_details"]["rate"] > 0
        overview = await get(broker, "overview")
        assert overview["message_stats"]["publish"] == 10
        assert "idle_since" in before
        assert "idle_since" not in after


async def test_samples_of_an_hour(tmp_path: Path) -> None:
    """The page of RabbitMQ asks for samples; the newest has what was counted last."""
    asked = "lengths_age=3600&lengths_incr=60&msg_rates_age=60&msg_rates_incr=5"
    async with (
        managed_broker(tmp_path / "data", http={"sample_interval_ms": 500}) as broker,
        client_of(broker) as channel,
    ):
        await channel.declare_queue("work")
        await channel.default_exchange.publish(aio_pika.Message(b"x"), "work")
        samples = broker.entrance.managed.samples
        while not any(values[0] for _at, values in samples.totals.last(1)):
            await samples.sample()
        overview = await get(broker, f"overview?{asked}")
        assert len(overview["queue_totals"]["messages_details"]["samples"]) == 61
        assert len(overview["message_stats"]["publish_details"]["samples"]) == 13
        queue = await get(broker, f"queues/%2F/work?{asked}")
        assert set(queue["messages_ready_details"]) == {"avg", "avg_rate", "rate", "samples"}
        assert len(queue["message_stats"]["publish_details"]["samples"]) == 13
        exchange = await get(broker, f"exchanges/%2F/amq.default?{asked}")
        assert len(exchange["message_stats"]["publish_in_details"]["samples"]) == 13
        for kind, count in (("connections", 61), ("channels", 13)):
            name = quote((await get(broker, kind))[0]["name"], safe="")
            row = await get(broker, f"{kind}/{name}?{asked}&data_rates_age=3600&data_rates_incr=60")
            details = row["recv_oct_details"] if kind == "connections" else row["message_stats"]["publish_details"]
            assert len(details["samples"]) == count


@pytest.mark.parametrize("path", ["queues", "queues?page=1", "overview", "queues/%2F/work", "bindings", "nodes"])
async def test_head_has_no_body(tmp_path: Path, path: str) -> None:
    """HEAD is answered as GET, without a body."""
    async with managed_broker(tmp_path / "data") as broker:
        broker.vhosts["/"].queues.declare("work")
        web = Web(broker.manage.port())
        said = await web.later("HEAD", f"/api/{path}")
        web.close()
        assert (said.status, said.body, said.headers["content-type"]) == (200, b"", "application/json")
