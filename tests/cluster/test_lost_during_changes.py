"""A node whose epoch ends while it changes vhosts, follows a change or stops: the broker does not end with it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aio_pika
import asyncpg
import pika
import pytest
from pika.exceptions import AMQPError

from broker.cli.control_client import Unanswered, ask
from broker.store.damage import CorruptStore
from tests.broker_process import BrokerProcess
from tests.cluster.members import CALM_MS, LEASE_MS, until
from tests.cluster.proxy import Point, Proxy, Then
from tests.cluster.test_defects import BREAK, MEND, execute
from tests.cluster.test_failing_database import CERTAIN, TABLES, raising
from tests.cluster.two_nodes import Nodes
from tests.deadline import DEADLINE_S, wait_until
from tests.in_process import client_of, running_broker
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


@pytest.fixture
def proxied(tmp_path: Path, shared_postgres: PostgresServer, schema: str) -> Iterator[tuple[Proxy, Nodes]]:
    """Provide two nodes that reach PostgreSQL through a proxy."""
    with Proxy(shared_postgres.url) as proxy, Nodes(tmp_path, proxy.url, schema, "a", "b", lease_ms=CALM_MS) as both:
        both.errors_expected("a", "node.lost")
        yield proxy, both


@contextmanager
def locked(nodes: Nodes, postgres: PostgresServer, table: str, mode: str = "ACCESS EXCLUSIVE") -> Iterator[None]:
    """Let statements wait for a lock of a table."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(postgres.url))
    loop.run_until_complete(connection.execute(f"BEGIN; LOCK TABLE {nodes.schema}.{table} IN {mode} MODE"))
    try:
        yield
    finally:
        loop.run_until_complete(connection.close())
        loop.close()


def waiting(nodes: Nodes, postgres: PostgresServer, table: str) -> int:
    """Count the statements that wait for a lock of a table."""
    found = f"SELECT count(*) FROM pg_locks WHERE relation = '{nodes.schema}.{table}'::regclass AND NOT granted"
    return int(postgres.sql(found))


@contextmanager
def committing(nodes: Nodes, postgres: PostgresServer, vhost: str = "/") -> Iterator[None]:
    """Let a call of node a wait in PostgreSQL, with a message that is gathered for the next one."""
    parameters = pika.URLParameters(nodes.by_name["a"].address.url)
    parameters.virtual_host = vhost
    client = pika.BlockingConnection(parameters)
    channel = client.channel()
    channel.queue_declare("q", durable=True)
    try:
        with locked(nodes, postgres, "batch"):
            channel.basic_publish("", "q", b"1", PERSISTENT)
            wait_until(lambda: waiting(nodes, postgres, "batch"), "the call waits")
            channel.basic_publish("", "q", b"2", PERSISTENT)
            channel.basic_qos(prefetch_count=1)  # its answer follows the message
            yield
    finally:
        with suppress(AMQPError):  # the node closes it
            client.close()


def end_epoch(nodes: Nodes, postgres: PostgresServer) -> None:
    """Let the next beat of node a find that it was counted out."""
    postgres.sql(f"DELETE FROM {nodes.schema}.beat WHERE node = 'a'")
    wait_until(lambda: happened(nodes, "node.lost"), "the epoch ends")


def stored(nodes: Nodes, postgres: PostgresServer) -> Any:
    """Return the definitions in PostgreSQL."""
    return json.loads(bytes.fromhex(postgres.sql(f"SELECT encode(body, 'hex') FROM {nodes.schema}.definitions")))


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


@pytest.mark.parametrize("waits", ["commit", "append"])
def test_an_import(own_nodes: Nodes, shared_postgres: PostgresServer, waits: str) -> None:
    """The node finishes it when it has joined again, so that no later start repeats it."""
    document = {"queues": [{"name": "i", "vhost": "/"}], "users": [{"name": "u", "password": "p", "tags": ""}]}
    folder = own_nodes.by_name["a"].folder
    imported = partial(ask, folder, "import_definitions", definitions=document)
    with ThreadPoolExecutor(1) as thread:
        if waits == "commit":
            with committing(own_nodes, shared_postgres):
                answer = thread.submit(imported)
                wait_until(lambda: "importing" in stored(own_nodes, shared_postgres), "the import has begun")
                end_epoch(own_nodes, shared_postgres)
        else:
            with locked(own_nodes, shared_postgres, "change", "SHARE"):
                answer = thread.submit(imported)
                wait_until(lambda: waiting(own_nodes, shared_postgres, "change"), "the append waits")
                end_epoch(own_nodes, shared_postgres)
        outcome: Any = answer.result()
        assert outcome["made"] == {"queues": 1, "users": 1}
    assert "importing" not in stored(own_nodes, shared_postgres)
    own_nodes.channel("b").queue_declare("q", durable=True)
    check_works(own_nodes)


def test_an_import_whose_begin_is_unknown(proxied: tuple[Proxy, Nodes], shared_postgres: PostgresServer) -> None:
    """The node sends the begin again, and so finds out that it was stored; no later start repeats the import."""
    proxy, nodes = proxied
    folders = {name: node.folder for name, node in nodes.by_name.items()}
    trap = proxy.trap(r"^SELECT \* FROM definitions_write\(", Point.DONE)
    document = {"vhosts": [{"name": "w"}], "queues": [{"name": "i", "vhost": "w"}]}
    outcome = ask(folders["a"], "import_definitions", definitions=document)
    assert trap.sprung.is_set()
    assert happened(nodes, "definitions.import_waits")
    assert outcome["made"] == {"vhosts": 1, "queues": 1}
    assert "importing" not in stored(nodes, shared_postgres)
    assert [row["name"] for row in ask(folders["b"], "list_queues", vhost="w")] == ["i"]


def test_an_import_that_postgresql_refuses(own_nodes: Nodes, shared_postgres: PostgresServer) -> None:
    """The import has ended, so that no later start repeats it."""
    own_nodes.errors_expected("a", "call.refused")
    document = {"queues": [{"name": "i", "vhost": "/"}]}
    with (
        raising(shared_postgres, own_nodes.schema, CERTAIN[0], *TABLES["append"]),
        pytest.raises(Unanswered, match="boom"),
    ):
        ask(own_nodes.by_name["a"].folder, "import_definitions", definitions=document)
    assert "importing" not in stored(own_nodes, shared_postgres)


@pytest.mark.parametrize("verb", ["declare_queue", "delete_queue"])
def test_a_command_whose_change_is_lost(own_nodes: Nodes, shared_postgres: PostgresServer, verb: str) -> None:
    """The operator is told, and does not wait for ever."""
    own_nodes.channel("b").queue_declare("q", durable=True)
    name = "q" if verb == "delete_queue" else "new"
    with ThreadPoolExecutor(1) as thread, locked(own_nodes, shared_postgres, "change", "SHARE"):
        answer = thread.submit(ask, own_nodes.by_name["a"].folder, verb, queue=name)
        wait_until(lambda: waiting(own_nodes, shared_postgres, "change"), "the append waits")
        end_epoch(own_nodes, shared_postgres)
        with pytest.raises(Unanswered, match="this node was lost to its cluster"):
            answer.result(DEADLINE_S)
    own_nodes.channel("b").queue_declare("q", durable=True)
    check_works(own_nodes)


@pytest.mark.parametrize(
    ("verb", "call", "arguments", "fenced"),
    [
        ("purge_queue", "purge", {}, False),
        ("purge_queue", "purge", {}, True),
        ("purge_queue", "lease", {"limit": 1}, False),
        ("delete_queue", "queue_counts", {}, False),
    ],
)
def test_a_command_whose_question_is_lost(
    proxied: tuple[Proxy, Nodes],
    shared_postgres: PostgresServer,
    verb: str,
    call: str,
    arguments: dict[str, Any],
    fenced: bool,
) -> None:
    """The operator is told, also if the question itself finds that the epoch has ended."""
    proxy, nodes = proxied
    nodes.channel("a").queue_declare("q", durable=True)

    def end() -> None:
        if fenced:
            for table in ("member", "beat"):
                shared_postgres.sql(f"DELETE FROM {nodes.schema}.{table} WHERE node = 'a'")
        else:
            end_epoch(nodes, shared_postgres)

    trap = proxy.trap(rf"^SELECT \* FROM {call}\(", Point.ASKED, Then.FORWARD, end)
    with pytest.raises(Unanswered, match="this node was lost to its cluster"):
        ask(nodes.by_name["a"].folder, verb, queue="q", **arguments)
    assert trap.sprung.is_set()
    check_works(nodes)


def test_a_list_while_the_node_is_lost(proxied: tuple[Proxy, Nodes], shared_postgres: PostgresServer) -> None:
    """The operator gets what the node knows."""
    proxy, nodes = proxied
    nodes.channel("a").queue_declare("q", durable=True)
    proxy.trap(r"^SELECT \* FROM queue_counts\(", Point.ASKED, Then.FORWARD, partial(end_epoch, nodes, shared_postgres))
    assert [row["name"] for row in ask(nodes.by_name["a"].folder, "list_queues")] == ["q"]
    check_works(nodes)


def test_a_change_in_a_vhost_that_is_deleted(proxied: tuple[Proxy, Nodes]) -> None:
    """The operator is told, and does not wait for ever."""
    proxy, nodes = proxied
    folders = {name: node.folder for name, node in nodes.by_name.items()}
    ask(folders["a"], "add_vhost", name="v")
    with ThreadPoolExecutor(1) as thread:

        def delete() -> None:
            thread.submit(ask, folders["b"], "delete_vhost", name="v")
            wait_until(lambda: happened(nodes, "vhost.deleted"), "the node follows")

        trap = proxy.trap(r"^SELECT \* FROM append\(", Point.DONE, Then.FORWARD, delete)
        with pytest.raises(Unanswered, match="vhost 'v' was deleted"):
            ask(folders["a"], "declare_queue", vhost="v", queue="q")
        assert trap.sprung.is_set()
    assert [row["name"] for row in ask(folders["b"], "list_vhosts")] == ["/"]


def test_a_fetch_from_a_queue_that_is_deleted(proxied: tuple[Proxy, Nodes]) -> None:
    """The operator is answered although the lease for the queue was never asked for."""
    proxy, nodes = proxied
    folder = nodes.by_name["a"].folder
    channel = nodes.channel("b")
    for name in ("q", "other"):
        channel.queue_declare(name, durable=True)
    fetch = partial(ask, folder, "purge_queue", limit=1)
    with ThreadPoolExecutor(1) as thread:
        answers = []

        def delete() -> None:
            answers.append(thread.submit(fetch, queue="q"))
            ask(folder, "list_vhosts")
            channel.queue_delete("q")

        proxy.trap(r"^SELECT \* FROM lease\(", Point.ASKED, Then.FORWARD, delete)
        assert fetch(queue="other") == {"messages": 0}
        assert answers[0].result() == {"messages": 0}


@pytest.mark.parametrize("away", [False, True], ids=["epoch", "postgresql"])
async def test_a_vhost_that_goes_offline(
    tmp_path: Path, shared_postgres: PostgresServer, schema: str, away: bool
) -> None:
    """What it has not committed is dropped, or waits for PostgreSQL; the other vhosts continue to work."""
    with Proxy(shared_postgres.url) as proxy:
        cluster = {"url": proxy.url, "node": "a", "schema_name": schema, "lease_ms": CALM_MS}
        async with running_broker(tmp_path, cluster=cluster) as broker, client_of(broker) as channel:
            node = broker.data.node
            assert node is not None
            await broker.administration.change(lambda draft: draft.add_vhost("v", {}))
            connection = await asyncpg.connect(shared_postgres.url)
            await connection.execute(f"BEGIN; LOCK TABLE {schema}.batch")
            queue = await channel.declare_queue("q", durable=True)
            send = partial(channel.default_exchange.publish, routing_key=queue.name)
            answers = [asyncio.ensure_future(send(aio_pika.Message(b"1")))]
            await until(lambda: node.data.levels.running)
            answers.append(asyncio.ensure_future(send(aio_pika.Message(b"1"))))
            await until(lambda: node.data.levels.batch.messages)
            broker.vhosts.take_offline("v", CorruptStore(tmp_path, 1, 0, "of the test"))
            if away:
                proxy.hold()
                proxy.cut()
            else:
                await execute(shared_postgres.url, schema, "DELETE FROM beat")
                await until(lambda: not node.database.epoch)
            assert "v" in broker.engines
            await connection.close()
            proxy.release()
            await until(lambda: "v" not in broker.engines and node.member.may_act())
            await asyncio.gather(*answers, return_exceptions=True)
            assert broker.failure is None
            async with client_of(broker) as again:
                await again.default_exchange.publish(aio_pika.Message(b"2"), "q")


@pytest.mark.parametrize("call", ["applied", "to_regproc", "definitions_read", "definitions_write"])
def test_a_start(tmp_path: Path, shared_postgres: PostgresServer, schema: str, call: str) -> None:
    """A node that loses PostgreSQL after it has joined says so in one line; a service manager starts it again."""
    with Proxy(shared_postgres.url) as proxy:
        environment = {"SLOTMQ_CLUSTER__SCHEMA_NAME": schema, "SLOTMQ_CLUSTER__LEASE_MS": str(LEASE_MS)}
        node = BrokerProcess(tmp_path / "a", "--cluster", proxy.url, "--node", "a", environment=environment)
        path = tmp_path / "definitions.json"
        path.write_text(json.dumps({"vhosts": [{"name": "v"}]}))
        node.start().terminate()  # makes the schema
        node.environment["SLOTMQ_SERVER__LOAD_DEFINITIONS"] = str(path)
        trap = proxy.trap(rf"^SELECT (\* FROM )?{call}\(", Point.ASKED)
        node.spawn()
        assert node.wait() == 1
        assert trap.sprung.is_set()
        last = node.stderr().splitlines()[-1]
        assert re.match(r"slotmq: (cannot join the cluster|cannot start: .*): ", last), last
        node.start()
        assert node.terminate() == 0


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
