"""Programs in other languages that read the management API or AMQP's counts: their requests, and the fields they read.

The requests and fields are those of KEDA's RabbitMQ scaler, Datadog's check, kbudde's rabbitmq_exporter and
celery-exporter, as their sources name them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import kombu
import pika
import pytest

from tests.deadline import wait_until
from tests.http_talk import Web
from tests.manage.tools.conftest import Managed

RATED = ("ack", "confirm", "deliver_get", "publish", "drop_unroutable", "return_unroutable", "redeliver")
"""The counts of `message_stats` that Datadog reads of the broker, each with its rate."""
DATADOG = {
    "overview": (
        *(f"object_totals/{noun}" for noun in ("connections", "channels", "queues", "consumers")),
        *(f"queue_totals/{count}" for count in ("messages", "messages_ready", "messages_unacknowledged")),
        *(f"queue_totals/{count}_details/rate" for count in ("messages", "messages_ready", "messages_unacknowledged")),
        *(f"message_stats/{count}" for count in RATED),
        *(f"message_stats/{count}_details/rate" for count in RATED),
        "rabbitmq_version", "cluster_name",
    ),
    "queues": (
        "name", "vhost", "node", "consumers", "memory", "messages", "messages_details/rate", "messages_ready",
        "messages_ready_details/rate", "message_bytes", "messages_unacknowledged",
        "messages_unacknowledged_details/rate",
        *(f"message_stats/{count}" for count in ("ack", "deliver", "deliver_get", "publish", "redeliver")),
        *(f"message_stats/{count}_details/rate" for count in ("ack", "deliver", "deliver_get", "publish", "redeliver")),
    ),
    "nodes": (
        "name", "fd_used", "disk_free", "mem_used", "mem_limit", "run_queue", "sockets_used", "partitions", "running",
        "mem_alarm", "disk_free_alarm",
    ),
    "exchanges": ("name", "vhost"),
    "connections": ("vhost", "state"),
}  # fmt: skip
EXPORTER = {
    "overview": (
        "node", "erlang_version", "rabbitmq_version", "cluster_name",
        *(f"object_totals/{noun}" for noun in ("channels", "connections", "consumers", "queues", "exchanges")),
        *(f"queue_totals/{count}" for count in ("messages", "messages_ready", "messages_unacknowledged")),
        *(f"message_stats/{count}_details/rate" for count in ("publish", "deliver_no_ack", "deliver")),
    ),
    "queues": (
        "vhost", "name", "durable", "state", "node", "messages_ready", "messages_unacknowledged", "messages",
        "messages_ready_ram", "messages_unacknowledged_ram", "messages_ram", "messages_persistent", "message_bytes",
        "message_bytes_ready", "message_bytes_unacknowledged", "message_bytes_ram", "message_bytes_persistent",
        "consumers", "consumer_utilisation", "memory", "garbage_collection/min_heap_size", "reductions",
    ),
    "exchanges": ("name", "vhost", "type"),
    "nodes": (
        "name", "running", "uptime", "mem_used", "mem_limit", "mem_alarm", "disk_free", "disk_free_alarm",
        "disk_free_limit", "fd_used", "fd_total", "sockets_used", "sockets_total", "partitions",
    ),
    "connections": ("vhost", "node", "peer_host", "user", "channels", "recv_oct", "send_oct", "state"),
}  # fmt: skip


@pytest.fixture
def web(managed: Managed) -> Iterator[Web]:
    """Provide an HTTP connection."""
    web = Web(managed.port)
    yield web
    web.close()


@pytest.fixture
def busy(managed: Managed, web: Web) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    """Provide a channel whose publishes and deliveries are counted, of a queue "work" with three messages."""
    connection = pika.BlockingConnection(pika.URLParameters(managed.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("work", durable=True)
    for _ in range(4):
        channel.basic_publish("", "work", b"{}")
    channel.basic_ack(channel.basic_get("work")[0].delivery_tag)
    path = f"/api/queues/{quote(managed.vhost, safe='')}/work"
    wait_until(lambda: web.get(path).json.get("messages") == 3, "the messages are counted")
    wait_until(lambda: "publish_details" in web.get(path).json.get("message_stats", ()), "and their rates")
    yield channel
    connection.close()


def value_at(row: Any, path: str) -> Any:
    """Return a nested value. Raises: AssertionError when it is absent."""
    for word in path.split("/"):
        assert isinstance(row, dict) and word in row, f"no {path} in {row}"
        row = row[word]
    return row


@pytest.mark.usefixtures("busy")
class TestKeda:
    """KEDA's scaler over HTTP: the depth and the rates of one queue, or of all that an expression finds."""

    def test_one_queue(self, web: Web, managed: Managed) -> None:
        """`GET /api/queues/{vhost}/{queue}`; a queue that is missing is 404."""
        vhost = quote(managed.vhost, safe="")
        row = web.get(f"/api/queues/{vhost}/work").json
        assert (row["name"], row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == (
            "work",
            3,
            3,
            0,
        )
        for rate in ("publish_details", "deliver_get_details"):
            assert isinstance(row["message_stats"][rate]["rate"], (int, float))
        assert web.get(f"/api/queues/{vhost}/none").status == 404

    def test_an_expression(self, web: Web, managed: Managed) -> None:
        """Queues whose names match an expression, without pages or with them, of one vhost and of all."""
        vhost = quote(managed.vhost, safe="")
        common = "page=1&use_regex=true&pagination=false&name=%5Ework%24&page_size=100"
        for path in (f"/api/queues/{vhost}?{common}", f"/api/queues?{common}"):
            found = web.get(path).json
            assert found["page_count"] == 1, path
            rows = [row for row in found["items"] if row["vhost"] == managed.vhost]
            assert [(row["name"], row["messages"]) for row in rows] == [("work", 3)]
            assert isinstance(rows[0]["message_stats"]["publish_details"]["rate"], (int, float))

    def test_amqp(self, busy: Any) -> None:
        """The other protocol of the scaler: a passive declaration."""
        assert busy.queue_declare("work", passive=True).method.message_count == 3


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("paths", [DATADOG, EXPORTER], ids=["datadog", "exporter"])
def test_fields_of_scrapers(web: Web, managed: Managed, paths: dict[str, tuple[str, ...]]) -> None:
    """Every field that a scraper reads is there, and every number is a number."""
    wait_until(lambda: web.get("/api/connections").json, "the connection is listed")
    for noun, fields in paths.items():
        said = web.get(f"/api/{noun}?sort=")
        assert said.status == 200, noun
        found = [said.json] if noun == "overview" else said.json
        assert found, noun
        for row in found:
            if noun == "queues" and (row["vhost"], row["name"]) != (managed.vhost, "work"):
                continue
            for field in fields:
                value = value_at(row, field)
                if field.endswith("rate") or field.startswith(("message", "queue_totals", "object_totals")):
                    assert isinstance(value, (int, float)) and value >= 0, f"{noun} {field}: {value!r}"
    assert isinstance(web.get("/api/nodes").json[0]["partitions"], list)


def test_erlang_terms_are_not_offered(web: Web) -> None:
    """The exporter prefers Erlang's binary terms, and takes JSON when the answer says that it is JSON."""
    said = web.get("/api/overview", Accept="application/bert, application/json;q=0.1")
    assert said.json["node"]


def test_aliveness(web: Web, managed: Managed) -> None:
    """Datadog and the exporter send this request for each vhost."""
    assert web.get(f"/api/aliveness-test/{quote_plus(managed.vhost)}").json == {"status": "ok"}
    assert managed.vhost in [row["name"] for row in web.get("/api/vhosts").json]


@pytest.mark.usefixtures("busy")
def test_celery_exporter(managed: Managed) -> None:
    """celery-exporter reads lengths and consumers of queues by passive declarations, and events of the workers."""
    with kombu.Connection(managed.amqp_url) as connection:
        channel = connection.default_channel
        declared = channel.queue_declare(queue="work", passive=True)
        assert (declared.message_count, declared.consumer_count) == (3, 0)
        with pytest.raises(connection.connection.channel_errors):
            channel.queue_declare(queue="none", passive=True)
