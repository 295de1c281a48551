"""Flower's broker tab: its own class, which asks for the queues of a vhost with a timeout of two seconds."""

from __future__ import annotations

from urllib.parse import quote

import kombu
import pika
import pytest

pytest.importorskip("flower", reason="Flower is not installed")

from flower.utils.broker import RabbitMQ

from tests.deadline import wait_until_async
from tests.manage.tools.conftest import Managed

COLUMNS = ("name", "messages", "messages_unacknowledged", "messages_ready", "consumers", "idle_since")
"""What templates/broker.html shows of a queue."""


@pytest.mark.parametrize("vhost", [None, "/"])
async def test_broker_tab(managed: Managed, vhost: str | None, name: str) -> None:
    """The tab lists the queues of Celery's vhost that were asked for: of any vhost, and of "/" by default."""
    address = pika.URLParameters(managed.amqp_url)
    address.virtual_host = vhost or managed.vhost
    connection = pika.BlockingConnection(address)
    channel = connection.channel()
    channel.queue_declare(name)
    channel.queue_declare(f"{name}-other")
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", name, b"{}")
    channel.basic_get(name)  # one is unacked
    quoted = quote(address.virtual_host, safe="")
    with kombu.Connection(f"amqp://guest:guest@127.0.0.1:{managed.amqp_port}/{quoted}") as celery:
        url = celery.as_uri(include_password=True)  # as Celery's application tells Flower
    broker = RabbitMQ(url, managed.url.replace("http://", "http://guest:guest@") + "/api/")

    async def counted() -> bool:
        rows = await broker.queues([name])
        return [(row.get("messages"), row.get("messages_ready")) for row in rows] == [(3, 2)]

    await wait_until_async(counted, "the messages are counted")
    [row] = await broker.queues([name])
    assert {column: row.get(column) for column in COLUMNS} | {"idle_since": None} == {
        "name": name,
        "messages": 3,
        "messages_unacknowledged": 1,
        "messages_ready": 2,
        "consumers": 0,
        "idle_since": None,
    }
    channel.queue_delete(name)
    channel.queue_delete(f"{name}-other")
    connection.close()


async def test_wrong_password_is_an_empty_tab(managed: Managed, caplog: pytest.LogCaptureFixture) -> None:
    """Flower logs the refusal and shows no queues."""
    broker = RabbitMQ(managed.amqp_url, managed.url.replace("http://", "http://guest:wrong@") + "/api/")
    assert await broker.queues(["any"]) == []
    assert "HTTP 401" in caplog.text
