"""A node whose epoch ends while it changes vhosts, follows a change or stops: the broker does not end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncpg
import pika
import pytest
from pika.exceptions import AMQPError

from broker.cli.control_client import Unanswered, ask
from tests.cluster.members import CALM_MS
from tests.cluster.test_defects import BREAK, MEND, execute
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until
from tools.postgres_server import PostgresServer

PERSISTENT = pika.BasicProperties(delivery_mode=2)
FENCED = """
ALTER FUNCTION definitions_write RENAME TO sound_write;
CREATE FUNCTION definitions_write(text, bigint, bigint, bytea, bytea[], bytea[], boolean) RETURNS bigint
LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'counted out' USING ERRCODE = 'SQ001'; END $$
"""
SOUND = "DROP FUNCTION definitions_write; ALTER FUNCTION sound_write RENAME TO definitions_write"


@pytest.fixture
def own_nodes(tmp_path: Path, shared_postgres: PostgresServer, schema: str) -> Iterator[Nodes]:
    """Provide two nodes, the first of which may lose its epoch."""
    with Nodes(tmp_path, shared_postgres.url, schema, "a", "b", lease_ms=CALM_MS) as both:
        both.errors_expected("a", "node.lost")
        yield both


@contextmanager
def committing(nodes: Nodes, postgres: PostgresServer, vhost: str = "/") -> Iterator[None]:
    """Let a call of node a wait in PostgreSQL, with a message that is gathered for the next one."""
    parameters = pika.URLParameters(nodes.by_name["a"].address.url)
    parameters.virtual_host = vhost
    client = pika.BlockingConnection(parameters)
    channel = client.channel()
    channel.queue_declare("q", durable=True)
    waiting = f"SELECT count(*) FROM pg_locks WHERE relation = '{nodes.schema}.batch'::regclass AND NOT granted"
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(postgres.url))
    loop.run_until_complete(connection.execute(f"BEGIN; LOCK TABLE {nodes.schema}.batch"))
    try:
        channel.basic_publish("", "q", b"1", PERSISTENT)
        wait_until(lambda: int(postgres.sql(waiting)), "the call waits")
        channel.basic_publish("", "q", b"2", PERSISTENT)
        channel.basic_qos(prefetch_count=1)  # its answer follows the message
        yield
    finally:
        loop.run_until_complete(connection.close())
        loop.close()
        with suppress(AMQPError):  # the node closes it
            client.close()


def end_epoch(nodes: Nodes, postgres: PostgresServer) -> None:
    """Let the next beat of node a find that it was counted out."""
    postgres.sql(f"DELETE FROM {nodes.schema}.beat WHERE node = 'a'")
    wait_until(lambda: happened(nodes, "node.lost"), "the epoch ends")


def happened(nodes: Nodes, event: str) -> int:
    """Count an event in the log of node a."""
    return sum(told["event"] == event for told in nodes.by_name["a"].log_events())


def check_works(nodes: Nodes) -> None:
    """Let node a join again, and both nodes agree on a new vhost."""
    node = nodes.by_name["a"]
    wait_until(lambda: happened(nodes, "node.joined") > 1 or not node.alive, "a new epoch")
    assert node.alive
    ask(nodes.by_name["a"].folder, "add_vhost", name="after")
    for node in nodes.by_name.values():
        assert [row["name"] for row in ask(node.folder, "list_vhosts")] == ["/", "after"]
    nodes.channel("a", confirms=True).basic_publish("", "q", b"3", PERSISTENT)


def test_a_vhost_that_is_not_added(own_nodes: Nodes, shared_postgres: PostgresServer) -> None:
    """The operator gets the reason, and nothing of the vhost is left."""
    with committing(own_nodes, shared_postgres):
        asyncio.run(execute(shared_postgres.url, own_nodes.schema, FENCED))
        with pytest.raises(Unanswered, match="nothing was changed: this node is joining the cluster again"):
            ask(own_nodes.by_name["a"].folder, "add_vhost", name="v")
        asyncio.run(execute(shared_postgres.url, own_nodes.schema, SOUND))
    check_works(own_nodes)


def test_a_vhost_that_another_node_deletes(own_nodes: Nodes, shared_postgres: PostgresServer) -> None:
    """The node has deleted it when it has joined again, and the operator is answered."""
    folders = {name: node.folder for name, node in own_nodes.by_name.items()}
    ask(folders["a"], "add_vhost", name="v")
    ask(folders["a"], "set_permission", user="guest", vhost="v", configure=".*", write=".*", read=".*")
    own_nodes.channel("a").queue_declare("q", durable=True)
    with ThreadPoolExecutor(1) as thread:
        with committing(own_nodes, shared_postgres, "v"):
            deletion = thread.submit(ask, folders["b"], "delete_vhost", name="v")
            wait_until(lambda: len(list(ask(folders["a"], "list_vhosts"))) == 1, "the node follows")
            end_epoch(own_nodes, shared_postgres)
        deletion.result()
    check_works(own_nodes)


def test_a_defect_while_a_change_is_followed(own_nodes: Nodes, shared_postgres: PostgresServer) -> None:
    """The defect ends the epoch. The change that waits for the call with the defect is followed in the next one."""
    own_nodes.errors_expected("a", "node.defect")
    folders = {name: node.folder for name, node in own_nodes.by_name.items()}
    with ThreadPoolExecutor(1) as thread:
        with committing(own_nodes, shared_postgres):
            change = thread.submit(ask, folders["b"], "add_user", name="u", password="p", tags=[])
            wait_until(lambda: len(list(ask(folders["a"], "list_users"))) == 2, "the node follows")
            asyncio.run(execute(shared_postgres.url, own_nodes.schema, BREAK))
        wait_until(lambda: happened(own_nodes, "node.lost"), "the epoch ends")
        asyncio.run(execute(shared_postgres.url, own_nodes.schema, MEND))
        change.result()
    assert happened(own_nodes, "node.defect") == 1
    check_works(own_nodes)


def test_a_stop(own_nodes: Nodes, shared_postgres: PostgresServer) -> None:
    """What was never confirmed is dropped, and the node stops cleanly."""
    with ThreadPoolExecutor(1) as thread, committing(own_nodes, shared_postgres):
        stop = thread.submit(own_nodes.by_name["a"].terminate)
        wait_until(lambda: happened(own_nodes, "server.stopping"), "the node stops")
        end_epoch(own_nodes, shared_postgres)
        assert stop.result() == 0
    assert happened(own_nodes, "server.stopped")
