"""A PostgreSQL that answers, and what it answers is an error: no node ends, and all continues when it works again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pika
import pytest

from broker.cli.control_client import ask
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until
from tools.postgres_server import PostgresServer

PERSISTENT = pika.BasicProperties(delivery_mode=2)
OWN = ["58030", "42501", "0A000", "XX000", "53100", "P0001"]
"""States of SQL that an operator has to see to."""
CERTAIN = ["22003", "23505", "54000", "XX001"]
"""States of SQL that every attempt would bring again."""
TABLES = {"commit": ("batch", "INSERT"), "consumer_add": ("consumer", "INSERT"), "append": ("change", "INSERT")}
"""By function: a statement of it that is to fail."""


@contextmanager
def raising(postgres: PostgresServer, schema: str, state: str, table: str, event: str) -> Iterator[None]:
    """Let every statement that changes a table fail."""
    postgres.sql(f"""
        CREATE OR REPLACE FUNCTION "{schema}".boom() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'boom' USING ERRCODE = '{state}'; END $$;
    """)
    trigger = f'ON "{schema}".{table} FOR EACH STATEMENT EXECUTE FUNCTION "{schema}".boom()'
    postgres.sql(f"CREATE TRIGGER boom BEFORE {event} {trigger}")
    try:
        yield
    finally:
        postgres.sql(f'DROP TRIGGER boom ON "{schema}".{table}')


def alarms(nodes: Nodes, name: str) -> list[dict[str, Any]]:
    """Return the alarms of a node."""
    found: Any = ask(nodes.by_name[name].folder, "status")
    return list(found["alarms"])


def functions(nodes: Nodes, name: str, event: str) -> set[str]:
    """Return the functions of which the log of a node tells."""
    return {told["function"] for told in nodes.by_name[name].errors() if told["event"] == event}


@pytest.mark.parametrize("state", OWN)
def test_what_postgres_cannot_do_now_waits(nodes: Nodes, shared_postgres: PostgresServer, state: str) -> None:
    """A commit, a consumer and a declare wait, with an alarm and a line in the log; then all are answered."""
    nodes.errors_expected("a", "database.failing")
    channel = nodes.channel("a", confirms=True)
    channel.queue_declare("q", durable=True)
    got: list[bytes] = []
    steps = {
        "commit": lambda: channel.basic_publish("", "q", b"x", PERSISTENT),
        "consumer_add": lambda: channel.basic_consume("q", lambda *told: got.append(told[3]), auto_ack=True),
        "append": lambda: channel.queue_declare("other", durable=True),
    }
    with ThreadPoolExecutor(1) as thread:
        for function, (table, event) in TABLES.items():
            with raising(shared_postgres, nodes.schema, state, table, event):
                step = thread.submit(steps[function])
                told = wait_until(lambda: alarms(nodes, "a"), "an alarm")
                assert "boom" in told[0]["reason"]
                assert not step.done()
            step.result()
            wait_until(lambda: not alarms(nodes, "a"), "the alarm is cleared")
    channel.connection.process_data_events(time_limit=0)
    wait_until(lambda: channel.connection.process_data_events(time_limit=0.01) or got == [b"x"], "it is delivered")
    assert functions(nodes, "a", "database.failing") >= TABLES.keys()


@pytest.mark.parametrize("state", CERTAIN)
def test_what_would_never_be_done_is_refused(nodes: Nodes, shared_postgres: PostgresServer, state: str) -> None:
    """A publish is nacked; a transaction, a consumer and a declare end their channel; what was acked comes again."""
    nodes.errors_expected("a", "call.refused")
    channel, acking = nodes.channel("a", confirms=True), nodes.channel("a")
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"first", PERSISTENT)
    tag = acking.basic_get("q")[0].delivery_tag
    reader = nodes.channel("b")

    def messages() -> int:
        return int(reader.queue_declare("q", passive=True).method.message_count)

    with raising(shared_postgres, nodes.schema, state, *TABLES["commit"]):
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"x", PERSISTENT)
        transaction = nodes.channel("a")
        transaction.tx_select()
        transaction.basic_publish("", "q", b"y", PERSISTENT)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="406"):
            transaction.tx_commit()
        acking.basic_ack(tag)
        wait_until(lambda: messages() == 1, "what was acked is back in the queue")
    with (
        raising(shared_postgres, nodes.schema, state, *TABLES["consumer_add"]),
        pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"406.*boom"),
    ):
        nodes.channel("a").basic_consume("q", lambda *_: None)
    with (
        raising(shared_postgres, nodes.schema, state, *TABLES["append"]),
        pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"406.*boom"),
    ):
        nodes.channel("a").queue_declare("other", durable=True)
    assert not alarms(nodes, "a")
    method, _, body = _got(reader)
    assert (method.redelivered, body) == (True, b"first")
    reader.basic_ack(method.delivery_tag)
    channel.basic_publish("", "q", b"last", PERSISTENT)
    assert _got(reader)[2] == b"last"
    assert functions(nodes, "a", "call.refused") == TABLES.keys()


def test_a_refused_publish_leaves_nothing_behind(nodes: Nodes, shared_postgres: PostgresServer) -> None:
    """A node delivers to its own consumers while the call runs. What it did not deliver by then is forgotten."""
    nodes.errors_expected("a", "call.refused")
    channel, consuming = nodes.channel("a", confirms=True), nodes.channel("a")
    channel.queue_declare("q", durable=True)
    consuming.basic_qos(prefetch_count=1)
    got: list[tuple[int, bytes]] = []
    consuming.basic_consume("q", lambda _channel, method, _properties, body: got.append((method.delivery_tag, body)))
    publishing = nodes.channel("a")
    with raising(shared_postgres, nodes.schema, CERTAIN[0], *TABLES["commit"]):
        for place in range(5):  # without waiting: one of them is delivered, the others are ready here
            publishing.basic_publish("", "q", b"refused %d" % place, PERSISTENT)
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"refused", PERSISTENT)
    channel.basic_publish("", "q", b"taken", PERSISTENT)
    assert nodes.channel("b").queue_declare("q", passive=True).method.consumer_count == 1

    def taken() -> bool:
        consuming.connection.process_data_events(0.01)
        bodies = [body for _, body in got]
        for tag, _ in got:
            consuming.basic_ack(tag)
        got.clear()
        return bodies[-1:] == [b"taken"]

    wait_until(taken, "the message that was taken")
    wait_until(lambda: nodes.channel("b").queue_declare("q", passive=True).method.message_count == 0, "an empty queue")


def _got(channel: Any) -> Any:
    """Return a message of the queue, None if there is none."""
    got = channel.basic_get("q")
    return got if got[0] is not None else None
