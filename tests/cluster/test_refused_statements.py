"""Statements that PostgreSQL refuses whenever they are sent, on one node: nobody waits for them for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from broker.cli.control_client import Unanswered, ask
from tests.cluster.members import CALM_MS
from tests.cluster.test_lost_during_changes import happened, stored
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until
from tests.mqtt.conftest import WITH_MQTT, mqtt_port
from tests.mqtt.raw_mqtt import CONNACK, PUBACK, SUBACK, RawMqtt, connect, publish, subscribe
from tools.postgres_server import PostgresServer

PERSISTENT = pika.BasicProperties(delivery_mode=2)
NUMBERED = pika.BasicProperties(delivery_mode=2, headers={"x-producer": "p", "x-seq": 1})
QUORUM = {"x-queue-type": "quorum"}
_SIGNATURE = """
SELECT pg_get_function_arguments(oid) || '|' || pg_get_function_identity_arguments(oid) || '|' ||
    pg_get_function_result(oid) || '|' || array_to_string(ARRAY(SELECT '$' || generate_series(1, pronargs)), ', ')
FROM pg_proc WHERE oid = (SELECT max(oid) FROM pg_proc WHERE proname = '{0}' AND pronamespace = '{1}'::regnamespace)
"""


@pytest.fixture
def both(tmp_path: Path, shared_postgres: PostgresServer, schema: str) -> Iterator[Nodes]:
    """Provide two nodes, the first of which logs the refusal."""
    with Nodes(tmp_path, shared_postgres.url, schema, "a", "b", lease_ms=CALM_MS) as nodes:
        nodes.errors_expected("a", "call.refused")
        yield nodes


@contextmanager
def refused(nodes: Nodes, postgres: PostgresServer, function: str, when: str = "true") -> Iterator[None]:
    """Let PostgreSQL refuse the calls of a function by node a to which a condition applies."""
    schema = nodes.schema
    arguments, named, result, places = postgres.sql(_SIGNATURE.format(function, schema)).split("|")
    postgres.sql(f"""
        CREATE OR REPLACE FUNCTION {schema}.refuse(p_when boolean) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
            IF p_when AND current_setting('application_name') LIKE 'slotmq a %' THEN
                RAISE EXCEPTION 'boom' USING ERRCODE = 'XX001';
            END IF;
        END $$;
        ALTER FUNCTION {schema}.{function} RENAME TO sound_{function};
        CREATE FUNCTION {schema}.{function}({arguments}) RETURNS {result} LANGUAGE sql AS
        $$ SELECT {schema}.refuse({when}); SELECT * FROM {schema}.sound_{function}({places}) $$;
    """)
    try:
        yield
    finally:
        postgres.sql(f"""
            DROP FUNCTION {schema}.{function}({named});
            ALTER FUNCTION {schema}.sound_{function} RENAME TO {function};
        """)


def refusals(nodes: Nodes, function: str) -> int:
    """Count the log lines of node a about a function."""
    told = nodes.by_name["a"].log_events()
    return sum(event["event"] == "call.refused" and event["function"] == function for event in told)


def level_of(postgres: PostgresServer, nodes: Nodes) -> int:
    """Return the level of the only queue that has messages."""
    return int(postgres.sql(f"SELECT DISTINCT level FROM {nodes.schema}.slot"))


def got(channel: BlockingChannel, queue: str) -> Any:
    """Return the body of a message of a queue, None if there is none."""
    return channel.basic_get(queue, auto_ack=True)[2]


@pytest.mark.parametrize(("function", "arguments"), [("levels_of", QUORUM), ("lease", {})])
def test_a_get_is_refused(
    both: Nodes, shared_postgres: PostgresServer, function: str, arguments: dict[str, Any]
) -> None:
    """The client is told the reason, and gets the message when PostgreSQL works again."""
    channel = both.channel("b", confirms=True)
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.basic_publish("", "q", b"1", PERSISTENT)
    with refused(both, shared_postgres, function), pytest.raises(ChannelClosedByBroker, match=r"406.*boom"):
        got(both.channel("a"), "q")
    assert got(both.channel("a"), "q") == b"1"


def test_a_listing_keeps_the_last_counts(both: Nodes, shared_postgres: PostgresServer) -> None:
    """An operator sees the queues without waiting until PostgreSQL counts them again."""
    channel = both.channel("b", confirms=True)
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"1", PERSISTENT)

    def listed() -> list[tuple[str, int]]:
        return [(row["name"], row["messages"]) for row in ask(both.by_name["a"].folder, "list_queues")]

    assert listed() == [("q", 1)]
    with refused(both, shared_postgres, "queue_counts"):
        channel.basic_publish("", "q", b"2", PERSISTENT)
        assert listed() == [("q", 1)]
        assert refusals(both, "queue_counts")
    assert listed() == [("q", 2)]


def test_other_queues_are_leased(both: Nodes, shared_postgres: PostgresServer) -> None:
    """A lease of several queues is repeated for each of them; only the refused one waits."""
    publisher, consumer = both.channel("b"), both.channel("a")
    publisher.tx_select()
    bodies: list[bytes] = []
    for queue in ("bad", "good"):
        publisher.queue_declare(queue, durable=True)
    publisher.basic_publish("", "bad", b"first", PERSISTENT)
    publisher.tx_commit()
    bad = f"$3 @> ARRAY[{level_of(shared_postgres, both)}::bigint]"
    for queue in ("bad", "good"):
        consumer.basic_consume(queue, lambda *told: bodies.append(told[3]), auto_ack=True)
    wait_until(lambda: consumer.connection.process_data_events(0.01) or bodies, "both consumers wait")
    with refused(both, shared_postgres, "lease", bad):
        for queue in ("bad", "good"):  # one hint tells of both
            publisher.basic_publish("", queue, queue.encode(), PERSISTENT)
        publisher.tx_commit()
        wait_until(lambda: consumer.connection.process_data_events(0.01) or b"good" in bodies, "the good one")
        assert refusals(both, "lease")
    wait_until(lambda: consumer.connection.process_data_events(0.01) or b"bad" in bodies, "the other one")


def test_other_returns_are_made(both: Nodes, shared_postgres: PostgresServer) -> None:
    """A return of several slots is repeated for each of them, and an operator's walk ends."""
    publisher, consumer = both.channel("b", confirms=True), both.channel("a")
    consumer.basic_qos(prefetch_count=1)
    for queue in ("bad", "good"):
        publisher.queue_declare(queue, durable=True)
        consumer.basic_consume(queue, lambda *_: None, consumer_tag=queue)
    publisher.basic_publish("", "bad", b"bad", PERSISTENT)
    bad = f"$3 @> ARRAY[{level_of(shared_postgres, both)}::bigint]"
    publisher.basic_publish("", "good", b"good", PERSISTENT)
    leased = f"SELECT count(*) FROM {both.schema}.slot WHERE holder = 'a'"
    wait_until(lambda: consumer.connection.process_data_events(0.01) or shared_postgres.sql(leased) == "2", "both")
    with refused(both, shared_postgres, "give_back", bad):
        consumer.connection.close()
        wait_until(lambda: got(publisher, "good") == b"good", "the good one is free")
        assert list(ask(both.by_name["a"].folder, "peek", queue="good")) == []
        assert refusals(both, "give_back")


def leaves(nodes: Nodes, _channel: BlockingChannel) -> None:
    """Let a consumer leave."""
    channel = nodes.channel("a")
    channel.basic_consume("q", lambda *_: None, consumer_tag="t")
    channel.basic_cancel("t")


def deletes_itself(nodes: Nodes, _channel: BlockingChannel) -> None:
    """Let the last consumer of an auto-delete queue with a message leave."""
    channel = nodes.channel("a", confirms=True)
    channel.queue_declare("auto", auto_delete=True)
    channel.basic_publish("", "auto", b"1")
    channel.basic_consume("auto", lambda *_: None, consumer_tag="t")
    channel.basic_cancel("t")


def node_dies(nodes: Nodes, channel: BlockingChannel) -> None:
    """Let the node of the last consumer of an auto-delete queue die."""
    channel.queue_declare("auto", auto_delete=True)
    channel.basic_consume("auto", lambda *_: None)
    nodes.by_name["b"].kill()


@pytest.mark.parametrize(
    ("function", "act"),
    [
        ("consumer_remove", leaves),
        ("drop_levels", deletes_itself),
        pytest.param("orphans", node_dies, marks=pytest.mark.slow),
    ],
)
def test_others_are_served(
    both: Nodes, shared_postgres: PostgresServer, function: str, act: Callable[[Nodes, BlockingChannel], None]
) -> None:
    """What nobody waits for is done once PostgreSQL works, and later methods of the node are answered before."""
    channel = both.channel("b")
    channel.queue_declare("q", durable=True)
    with refused(both, shared_postgres, function):
        act(both, channel)
        wait_until(lambda: refusals(both, function), "it is refused")
        later = both.channel("a")
        later.queue_declare("later", durable=True)
        later.basic_consume("later", lambda *_: None)
        slots = f"SELECT count(*) FROM {both.schema}.slot"
        assert function != "drop_levels" or shared_postgres.sql(slots) == "1"
    if function == "consumer_remove":
        wait_until(lambda: channel.queue_declare("q", passive=True).method.consumer_count == 0, "it is removed later")
    if function == "drop_levels":
        wait_until(lambda: shared_postgres.sql(slots) == "0", "the message of the deleted queue is deleted")
    if function == "orphans":
        names = ["later", "q"]
        listed = partial(ask, both.by_name["a"].folder, "list_queues")
        wait_until(lambda: sorted(row["name"] for row in listed()) == names, "the queue without consumers is deleted")


@pytest.mark.parametrize("function", ["producer_own", "producer_runs"])
def test_a_producer_is_refused(both: Nodes, shared_postgres: PostgresServer, function: str) -> None:
    """The client is told the reason."""
    channel = both.channel("a", confirms=True)
    channel.queue_declare("q", durable=True)
    with refused(both, shared_postgres, function), pytest.raises(ChannelClosedByBroker, match=r"406.*boom"):
        channel.basic_publish("", "q", b"1", NUMBERED)


def test_a_producer_moves_later(both: Nodes, shared_postgres: PostgresServer) -> None:
    """Its release to another node is repeated until PostgreSQL works; it is the same producer there."""
    channel, other = both.channel("a", confirms=True), both.channel("b")
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"1", NUMBERED)
    with refused(both, shared_postgres, "producer_release"):
        other.basic_publish("", "q", b"again", NUMBERED)
        wait_until(lambda: refusals(both, "producer_release"), "it is refused")
    other.confirm_delivery()
    other.basic_publish("", "q", b"2", PERSISTENT)
    assert [got(other, "q") for _ in range(3)] == [b"1", b"2", None]


def test_a_waiting_consumer_becomes_active_later(both: Nodes, shared_postgres: PostgresServer) -> None:
    """Its node cannot find out that the active one has left before PostgreSQL works."""
    active, waiting = both.channel("b", confirms=True), both.channel("a")
    active.queue_declare("q", durable=True, arguments={"x-single-active-consumer": True})
    active.basic_consume("q", lambda *_: None, consumer_tag="t")
    bodies: list[bytes] = []
    with refused(both, shared_postgres, "consumers"):
        waiting.basic_consume("q", lambda *told: bodies.append(told[3]), auto_ack=True)
        active.basic_cancel("t")
        wait_until(lambda: refusals(both, "consumers"), "it is refused")
        active.basic_publish("", "q", b"1", PERSISTENT)
    wait_until(lambda: waiting.connection.process_data_events(0.01) or bodies == [b"1"], "it is active")


def test_an_mqtt_client_waits_for_no_refused_statement(
    tmp_path: Path, shared_postgres: PostgresServer, schema: str
) -> None:
    """Its subscription is acknowledged without retained messages, and its id is released once PostgreSQL works."""
    with Nodes(tmp_path, shared_postgres.url, schema, "a", "b", lease_ms=CALM_MS, environment=WITH_MQTT) as nodes:
        nodes.errors_expected("a", "call.refused")
        first, second = (RawMqtt(mqtt_port(nodes.by_name[node])) for node in "ab")
        first.send(connect("c")).expect(CONNACK)
        first.send(publish("t", b"kept", 1, flags=1)).expect(PUBACK)
        with refused(nodes, shared_postgres, "retained_of"):
            first.send(subscribe(2, ("t", 1))).expect(SUBACK)
            assert first.silent(0.1)
        with refused(nodes, shared_postgres, "claim_clients"):
            first.close()
            wait_until(lambda: refusals(nodes, "claim_clients"), "it is refused")
        second.send(connect("c")).expect(CONNACK)
        second.close()


def test_an_unused_queue_expires_later(both: Nodes, shared_postgres: PostgresServer) -> None:
    """Its expiry is asked for again, and the queue is deleted once PostgreSQL works."""
    channel = both.channel("a")
    with refused(both, shared_postgres, "queue_unused"):
        channel.queue_declare("q", durable=True, arguments={"x-expires": 100})
        wait_until(lambda: refusals(both, "queue_unused"), "it is refused")
        assert ask(both.by_name["a"].folder, "list_queues")
    wait_until(lambda: not list(ask(both.by_name["a"].folder, "list_queues")), "it expires")


def test_a_node_that_cannot_follow_is_no_member(both: Nodes, shared_postgres: PostgresServer) -> None:
    """The others do not wait for it, and it joins again when it can read the log."""
    both.errors_expected("a", "node.lost")
    both.errors_expected("a", "node.defect")
    channel = both.channel("b")
    with refused(both, shared_postgres, "changes_since"):
        channel.queue_declare("q", durable=True)
        wait_until(lambda: happened(both, "node.lost"), "the epoch ends")
        channel.queue_declare("r", durable=True)
    wait_until(lambda: happened(both, "node.joined") > 1, "a new epoch")
    assert both.channel("a").queue_declare("r", passive=True)


def test_one_entry_of_an_import_is_refused(both: Nodes, shared_postgres: PostgresServer) -> None:
    """The import is refused by its name, and what was made beside it is removed again."""
    folder = both.by_name["a"].folder
    document = {"queues": [{"name": name, "vhost": "/"} for name in ("good", "bad")]}
    has_bad = f"array_to_string($5, '') LIKE '%{b'bad'.hex()}%'"
    with refused(both, shared_postgres, "append", has_bad), pytest.raises(Unanswered, match=r"queues\[1\]: boom"):
        ask(folder, "import_definitions", definitions=document)
    assert "importing" not in stored(both, shared_postgres)
    assert list(ask(folder, "list_queues")) == []
