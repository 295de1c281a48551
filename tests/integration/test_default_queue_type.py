"""Clients that name no queue type, in a vhost with a default type."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pika
import pytest

from broker.cli.control_client import Unanswered
from broker.server import BrokerServer
from tests.in_process import running_broker, told

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
EXPORTED: dict[str, Any] = {  # the text of RabbitMQ 4
    "vhosts": [
        {"name": "v", "description": "", "tags": [], "default_queue_type": "quorum",
         "metadata": {"description": "", "tags": [], "default_queue_type": "quorum"}},
    ],
    "permissions": [{"user": "guest", "vhost": "v", **EVERYTHING}],
    "queues": [
        {"name": "orders", "vhost": "v", "durable": True, "auto_delete": False, "type": "quorum",
         "arguments": {"x-queue-type": "quorum"}},
        {"name": "by hand", "vhost": "v"},
        {"name": "old", "vhost": "v", "type": "classic"},
        {"name": "short", "vhost": "v", "auto_delete": True},
    ],
}  # fmt: skip


async def types(broker: BrokerServer) -> dict[str, str | None]:
    """Return the type that each queue of the vhost was declared with."""
    return {row["name"]: row["arguments"].get("x-queue-type") for row in await told(broker, "list_queues", vhost="v")}


def declare(port: int, name: str, **fields: Any) -> None:
    """Declare a queue without a type."""
    where = pika.ConnectionParameters("127.0.0.1", port, "v")
    with pika.BlockingConnection(where) as connection:
        connection.channel().queue_declare(name, **fields)


async def test_default_of_imported_definitions_holds_for_clients_and_after_a_restart(tmp_path: Path) -> None:
    """Queues of the document and redeclares of its clients agree, before and after a restart."""
    async with running_broker(tmp_path) as broker:
        answer = await told(broker, "import_definitions", definitions=EXPORTED)
        assert answer["skipped"] == []
        assert await types(broker) == {"orders": "quorum", "by hand": "quorum", "old": None, "short": None}
        for name in ("orders", "by hand", "new"):
            await asyncio.to_thread(declare, broker.listener.port, name, durable=True)
    async with running_broker(tmp_path) as broker:
        for name in ("orders", "by hand", "new", "newer"):
            await asyncio.to_thread(declare, broker.listener.port, name, durable=True)
        await asyncio.to_thread(declare, broker.listener.port, "fleeting", exclusive=True)
        assert (await types(broker))["newer"] == "quorum"
        (exported,) = [v for v in (await told(broker, "export_definitions"))["vhosts"] if v["name"] == "v"]
        assert exported == EXPORTED["vhosts"][0]


async def test_default_of_a_vhost_that_is_there_is_replaced_by_the_documents(tmp_path: Path) -> None:
    """The document's default replaces the vhost's, and already applies to the document's own queues."""
    async with running_broker(tmp_path) as broker:
        await told(broker, "add_vhost", name="v", default_queue_type="classic")
        await told(broker, "import_definitions", definitions=EXPORTED)
        assert (await types(broker))["by hand"] == "quorum"
        await asyncio.to_thread(declare, broker.listener.port, "new", durable=True)
        assert (await types(broker))["new"] == "quorum"


async def test_vhost_is_added_with_a_default(tmp_path: Path) -> None:
    """An unknown default type is refused, and no vhost is created."""
    async with running_broker(tmp_path) as broker:
        with pytest.raises(Unanswered, match="default_queue_type cannot be 'stream': streams are not supported"):
            await told(broker, "add_vhost", name="v", default_queue_type="stream")
        await told(broker, "add_vhost", name="v", default_queue_type="quorum")
        await told(broker, "set_permission", user="guest", vhost="v", **EVERYTHING)
        await asyncio.to_thread(declare, broker.listener.port, "q", durable=True)
        assert await types(broker) == {"q": "quorum"}
        (row,) = await told(broker, "list_vhosts", vhost="v")
        assert row["default_queue_type"] == "quorum"


async def test_default_that_is_not_there_is_told_and_kept(tmp_path: Path) -> None:
    """A document with an unsupported default is accepted: its queues are classic, and an export keeps the default."""
    stream = {"vhosts": [{"name": "v", "default_queue_type": "stream"}], "permissions": EXPORTED["permissions"]}
    async with running_broker(tmp_path) as broker:
        answer = await told(broker, "import_definitions", definitions=stream)
        assert answer["skipped"] == ["vhosts[0]: default_queue_type 'stream' has no effect: streams are not supported"]
        await asyncio.to_thread(declare, broker.listener.port, "q", durable=True)
        assert await types(broker) == {"q": None}
        assert stream["vhosts"][0] in (await told(broker, "export_definitions"))["vhosts"]
