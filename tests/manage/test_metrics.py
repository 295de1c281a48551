"""The metrics: RabbitMQ's names, types and numbers, complete for its dashboard; nothing falls, the loop continues."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aio_pika import Message

from broker.manage.metrics import scrape
from broker.server import BrokerServer
from tests.http_talk import Response, Web
from tests.in_process import client_of, running_broker
from tests.manage.metrics_scene import FAMILIES, busy_client, described, samples
from tests.manage.record_metrics import paths, values

RECORDED: dict[str, Any] = json.loads((Path(__file__).with_name("recorded") / "metrics.json").read_text())

# What this broker does not have: numbers of Erlang's processes and of RabbitMQ's own store, and what would cost a walk
# over all messages.
WITHOUT = re.compile(
    r"rabbitmq_(detailed_)?(erlang_(?!uptime)|raft_|schema_db_|msg_store_|queue_index_|io_(read|seek|reopen)_"
    r"|.*_process_reductions_total|connection_(incoming|outgoing)_packets_total|connection_pending_packets"
    r"|queue_messages_(ready_ram|unacked_ram|persistent|persistent_bytes|bytes|ready_bytes|unacked_bytes|paged_out_bytes)$"
    r"|queue_head_message_timestamp|queue_disk_|global_messages_dead_lettered_confirmed)"
)
# Labels of RabbitMQ that are finer, or name an Erlang process.
COARSER = {"channel", "exchange", "exchange_vhost", "queue", "queue_vhost", "vhost"}

DASHBOARD = (
    "rabbitmq_build_info rabbitmq_identity_info rabbitmq_connections rabbitmq_channels rabbitmq_queues "
    "rabbitmq_global_publishers rabbitmq_global_consumers rabbitmq_queue_messages_ready "
    "rabbitmq_queue_messages_unacked rabbitmq_process_open_fds rabbitmq_process_max_fds "
    "rabbitmq_resident_memory_limit_bytes rabbitmq_process_resident_memory_bytes rabbitmq_disk_space_available_bytes "
    "rabbitmq_disk_space_available_limit_bytes rabbitmq_erlang_uptime_seconds rabbitmq_connections_opened_total "
    "rabbitmq_connections_closed_total rabbitmq_channels_opened_total rabbitmq_channels_closed_total "
    "rabbitmq_queues_declared_total rabbitmq_queues_created_total rabbitmq_queues_deleted_total "
    "rabbitmq_global_messages_received_total rabbitmq_global_messages_received_confirm_total "
    "rabbitmq_global_messages_routed_total rabbitmq_global_messages_confirmed_total "
    "rabbitmq_global_messages_delivered_total rabbitmq_global_messages_delivered_consume_auto_ack_total "
    "rabbitmq_global_messages_delivered_consume_manual_ack_total rabbitmq_global_messages_delivered_get_auto_ack_total "
    "rabbitmq_global_messages_delivered_get_manual_ack_total rabbitmq_global_messages_get_empty_total "
    "rabbitmq_global_messages_redelivered_total rabbitmq_global_messages_acknowledged_total "
    "rabbitmq_global_messages_unroutable_dropped_total rabbitmq_global_messages_unroutable_returned_total "
    "rabbitmq_message_size_bytes_bucket rabbitmq_message_size_bytes_sum rabbitmq_message_size_bytes_count"
).split()
"""What Grafana's dashboard 10991 reads."""


@asynccontextmanager
async def measured_broker(folder: Path) -> AsyncIterator[BrokerServer]:
    """Yield a broker that serves metrics."""
    async with running_broker(folder, metrics={"enabled": True, "port": 0, "shared_ms": 0}) as broker:
        yield broker


async def scraped(broker: BrokerServer, path: str = "/metrics") -> str:
    """Return the text of a scrape."""

    def ask() -> Response:
        web = Web(broker.manage.port("metrics"), None)
        try:
            return web.ask("GET", path)
        finally:
            web.connection.close()

    said = await asyncio.to_thread(ask)
    assert said.status == 200, said.body
    assert said.headers["content-type"].startswith("text/plain; version=0.0.4")
    return said.body.decode()


async def total(broker: BrokerServer, name: str) -> float:
    """Return the only sample of a metric of the whole broker."""
    (one,) = samples(await scraped(broker))[name]
    return one.value


async def test_the_metrics_are_those_of_rabbitmq(tmp_path: Path) -> None:
    """Each name that RabbitMQ has is there, with its type and labels, and has its number after the same scene."""
    async with measured_broker(tmp_path) as broker:
        client = busy_client(broker.listener.port)
        await asyncio.to_thread(client.__enter__)
        try:
            texts = {name: await scraped(broker, path) for name, path in paths().items()}
        finally:
            await asyncio.to_thread(client.__exit__, None, None, None)
    for endpoint, text in texts.items():
        ours, theirs = described(text), RECORDED[endpoint]
        missing = {name for name in theirs if name not in ours and not WITHOUT.match(name)}
        assert missing == set(), endpoint
        assert [name for name in theirs if name in ours and WITHOUT.match(name)] == [], endpoint
        for name in theirs.keys() & ours.keys():
            kinds = ours[name]["type"], theirs[name]["type"]
            assert kinds[0] == kinds[1] or kinds == ("gauge", "unknown"), name
            lacking = set(theirs[name]["labels"]) - set(ours[name]["labels"])
            assert lacking <= (COARSER if endpoint != "aggregated" else set()), name
    assert values(texts["aggregated"]) == RECORDED["values"]


async def test_dashboard_10991_is_complete(tmp_path: Path) -> None:
    """An idle broker has each series of the dashboard, and the two that all others are joined on, once."""
    async with measured_broker(tmp_path) as broker:
        found = samples(await scraped(broker))
    assert [name for name in DASHBOARD if name not in found] == []
    (identity,), (build,) = found["rabbitmq_identity_info"], found["rabbitmq_build_info"]
    assert {"rabbitmq_node", "rabbitmq_cluster", "rabbitmq_endpoint"} <= identity.labels.keys()
    assert {"rabbitmq_version", "erlang_version"} <= build.labels.keys()
    assert (identity.value, build.value) == (1, 1)
    bounds = [one.labels["le"] for one in found["rabbitmq_message_size_bytes_bucket"]]
    assert [float(bound) for bound in bounds] == [1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 5e7, 1e8, float("inf")]


async def test_each_name_is_introduced_once(tmp_path: Path) -> None:
    """Prometheus refuses a scrape in which a name is introduced twice, or a series is there twice."""
    async with measured_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        everything = "&".join(
            f"family={name}" for name in (*FAMILIES, "vhost_status", "exchange_names", "queue_consumer_count")
        )
        for path in ("/metrics", "/metrics/per-object", f"/metrics/detailed?{everything}&family=exchange_bindings"):
            text = await scraped(broker, path)
            introduced = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
            assert len(introduced) == len(set(introduced)), path
            assert introduced == re.findall(r"^# HELP (\S+) ", text, re.MULTILINE), path
            series = re.findall(r"^([^#\s]\S*(?:\{.*\})?) \S+$", text, re.MULTILINE)
            assert len(series) == len(set(series)), path


NAMES = ('a"b', "back\\slash", "new\nline", "ünïcode {}", "x" * 200)


async def test_labels_are_escaped(tmp_path: Path) -> None:
    """Whatever a queue is called, its samples are read back under this name."""
    async with measured_broker(tmp_path) as broker:
        for name in NAMES:
            broker.vhosts["/"].queues.declare(name)
        found = samples(await scraped(broker, "/metrics/detailed?family=queue_coarse_metrics"))
    queues = {one.labels["queue"] for one in found["rabbitmq_detailed_queue_messages_ready"]}
    assert queues == set(NAMES)


async def test_families_and_vhosts_are_chosen(tmp_path: Path) -> None:
    """Only what was asked for is there, with who the broker is; a family that no one knows adds nothing."""
    identity = {"rabbitmq_build_info", "rabbitmq_identity_info"}
    async with measured_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")

        async def names(query: str) -> set[str]:
            return set(samples(await scraped(broker, f"/metrics/detailed{query}")))

        assert await names("") == identity
        assert await names("?family=nonsense") == identity
        assert await names("?family=queue_consumer_count") == identity | {
            "rabbitmq_detailed_queue_consumers",
            "rabbitmq_detailed_queue_info",
        }
        assert await names("?family=queue_coarse_metrics&vhost=elsewhere") == identity
        assert await names("?family=queue_coarse_metrics&vhost=elsewhere&vhost=%2F") == identity | {
            "rabbitmq_detailed_queue_messages",
            "rabbitmq_detailed_queue_messages_ready",
            "rabbitmq_detailed_queue_messages_unacked",
            "rabbitmq_detailed_queue_info",
        }
        assert await names("?family=vhost_status") == identity | {"rabbitmq_cluster_vhost_status"}


async def test_no_counter_falls_when_its_object_ends(tmp_path: Path) -> None:
    """A queue, a channel and a connection end; every counter of the whole broker is as high as before."""
    async with measured_broker(tmp_path) as broker:
        before: dict[str, float] = {}
        for _ in range(3):
            async with client_of(broker) as channel:
                queue = await channel.declare_queue("q")
                await channel.default_exchange.publish(Message(b"x"), "q")
                await (await queue.get()).ack()
                await queue.delete(if_empty=False)
            text = await scraped(broker)
            counters = {
                name: one.value
                for name, those in samples(text).items()
                for one in those
                if name.endswith("_total") and not one.labels.get("vhost")
            }
            assert [name for name, value in before.items() if counters[name] < value] == []
            before = counters
        assert before["rabbitmq_queue_messages_acked_total"] == before["rabbitmq_channel_messages_acked_total"] == 3
        assert before["rabbitmq_connection_incoming_bytes_total"] > 3 * 300


async def test_a_scrape_of_many_queues_lets_the_loop_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pieces of a bounded number of samples other work of the loop has its turn."""
    monkeypatch.setattr(scrape, "READINGS_AT_ONCE", 50)
    async with measured_broker(tmp_path) as broker:
        queues = broker.vhosts["/"].queues
        for number in range(500):
            queues.declare(f"q{number}")
        turns = 0
        sizes: list[int] = []

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        asyncio.get_running_loop().call_soon(turn)
        managed = broker.entrance.managed
        for text, least in (
            (scrape.Scrape(managed).aggregated(), 10),
            (scrape.Scrape(managed).detailed(["queue_coarse_metrics", "queue_metrics"], None), 10 * 12),
        ):
            began = turns
            sizes += [piece.count("\n") async for piece in text]
            assert turns - began >= least
        assert max(sizes) <= 150
