"""Rates and samples of the API, and answers to HEAD."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import aio_pika
import pytest

from tests.http_talk import Web
from tests.in_process import client_of
from tests.manage.shop import get, managed_broker


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
