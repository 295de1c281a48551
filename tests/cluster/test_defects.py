"""A defect in a part of a node: the node gives its epoch up and joins again, and no one waits for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pika
import pytest
from pika.exceptions import AMQPError, ConnectionClosedByBroker

from broker.cli.control_client import ask
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until
from tests.http_talk import Web
from tools.postgres_server import PostgresServer

PERSISTENT = pika.BasicProperties(delivery_mode=2)
DEFECTS_MAX = 3  # within a minute

# A commit answers the node with a share that the call does not have. The real one waits under another name.
BREAK = """
ALTER FUNCTION commit RENAME TO sound_commit;
CREATE FUNCTION commit(
    text, bigint, bigint, boolean, boolean, bytea[], bigint[], int[], bigint[], varbit[], varbit[], bigint[], bytea[],
    bigint[], bigint[], varbit[], text[], bigint[], bigint[], bigint[], bigint[], varbit[],
    OUT number bigint, OUT ring int, OUT refused jsonb
) LANGUAGE sql AS $$ SELECT nextval('number_of_call'), 0, '[[99, "1", false]]'::jsonb WHERE $1 = 'a'
    UNION ALL SELECT s.* FROM sound_commit(
        $1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,$22) s WHERE $1 <> 'a' $$
"""
MEND = "DROP FUNCTION commit; ALTER FUNCTION sound_commit RENAME TO commit"


async def execute(url: str, schema: str, statements: str) -> None:
    """Carry out statements in the schema of the nodes."""
    connection = await asyncpg.connect(url, server_settings={"search_path": schema})
    await connection.execute(statements)
    await connection.close()


def logged(nodes: Nodes, name: str) -> int:
    """Count an event in the log of node a."""
    return sum(event["event"] == name for event in nodes.by_name["a"].log_events())


def publish_into_defect(nodes: Nodes, queue: str) -> None:
    """Publish through node a, whose commit has a defect: the client gets 320, not an answer, and not silence."""
    # A client that connects before the node has joined again is closed because of the defect before.
    wait_until(lambda: logged(nodes, "node.joined") > logged(nodes, "node.defect"), "the node has joined again")
    channel = nodes.channel("a", confirms=True)
    with pytest.raises(ConnectionClosedByBroker, match="a defect, see the log: IndexError") as closed:
        channel.basic_publish("", queue, b"lost", PERSISTENT)
    assert closed.value.reply_code == 320


def test_a_node_with_a_defect_joins_again(own_nodes: Nodes, postgres: PostgresServer) -> None:
    """Declares and publishes work afterwards through both nodes; the fourth defect within a minute ends the broker."""
    own_nodes.channel("b").queue_declare("q", durable=True)
    for event in ("node.defect", "node.lost", "server.crashed"):
        own_nodes.errors_expected("a", event)
    asyncio.run(execute(postgres.url, "slotmq", BREAK))
    publish_into_defect(own_nodes, "q")
    asyncio.run(execute(postgres.url, "slotmq", MEND))
    for name in own_nodes.by_name:
        channel = own_nodes.channel(name, confirms=True)
        channel.queue_declare(f"of-{name}", durable=True)
        channel.basic_publish("", "q", name.encode(), PERSISTENT)
    assert own_nodes.channel("a").queue_declare("q", passive=True).method.message_count == 2
    asyncio.run(execute(postgres.url, "slotmq", BREAK))
    for number in range(2, DEFECTS_MAX + 1):
        publish_into_defect(own_nodes, "q")
        assert logged(own_nodes, "node.defect") == number
    with pytest.raises(AMQPError):
        own_nodes.channel("a", confirms=True).basic_publish("", "q", b"last", PERSISTENT)
    assert own_nodes.by_name["a"].wait() == 1
    channel = own_nodes.channel("b", confirms=True)
    channel.basic_publish("", "q", b"more", PERSISTENT)


def test_a_node_whose_call_waits_is_not_ready(tmp_path: Path, postgres: PostgresServer) -> None:
    """Its beats are answered, and a foreign lock holds its commit up."""
    http = {"SLOTMQ_HTTP__ENABLED": "true", "SLOTMQ_HTTP__PORT": "0"}
    with Nodes(tmp_path, postgres.url, "slotmq", "a", environment=http) as nodes:
        status: Any = ask(nodes.by_name["a"].folder, "status")
        web = Web(urlsplit(status["http_url"]).port or 0)
        channel = nodes.channel("a")
        channel.queue_declare("q", durable=True)
        assert web.ask("GET", "/readyz").status == 200

        async def wait_behind_a_lock() -> None:
            connection = await asyncpg.connect(postgres.url)
            async with connection.transaction():
                await connection.execute("LOCK TABLE slotmq.batch")
                channel.basic_publish("", "q", b"1", PERSISTENT)
                await asyncio.to_thread(wait_until, lambda: web.ask("GET", "/readyz").status == 503, "503")
                (reason,) = web.ask("GET", "/readyz").json["reasons"]
                assert reason.startswith("PostgreSQL has not answered a call for ")
            await connection.close()

        asyncio.run(wait_behind_a_lock())
        wait_until(lambda: web.ask("GET", "/readyz").status == 200, "200")
        wait_until(lambda: channel.queue_declare("q", passive=True).method.message_count == 1, "the message")
        web.close()
