"""The command line of nodes: what it shows of the cluster, what it refuses there, and a node that cannot start."""

from __future__ import annotations

import json
import signal
import socket
from functools import partial
from pathlib import Path

import pika
import pytest

from broker.cli.main import main
from tests.broker_process import BrokerProcess
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until
from tools.postgres_server import PostgresServer


def said(capsys: pytest.CaptureFixture[str], folder: Path, *words: str, code: int = 0) -> str:
    """Return what a command says to standard output, or to standard error if it ends with 1."""
    assert main([*words, "--data-dir", str(folder)]) == code
    read = capsys.readouterr()
    return read.err if code else read.out


def test_each_node_shows_all_nodes(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    """Both nodes name both, with what each holds; the status of the broker has a line."""
    channel = nodes.channel("a", confirms=True)
    channel.queue_declare("held", durable=True)
    channel.basic_publish("", "held", b"1")
    channel.basic_consume("held", lambda *_: None)

    def rows(name: str) -> dict[str, dict[str, object]]:
        found = json.loads(said(capsys, nodes.by_name[name].folder, "cluster", "nodes", "--json"))
        return {row["node"]: row for row in found}

    def sees_both(name: str) -> bool:
        return len(rows(name)) == 2

    for name in ("a", "b"):
        wait_until(partial(sees_both, name), f"{name} sees both")
        seen = rows(name)
        assert {row["state"] for row in seen.values()} == {"alive"}
        assert seen["a"]["url"] == f"amqp://127.0.0.1:{nodes.by_name['a'].address.port}/"
    wait_until(lambda: rows("b")["a"].get("held") == 1, "b knows what a holds")
    wait_until(lambda: rows("b")["a"]["topology_lag"] == 0, "a has applied what was declared")
    assert "node a joined, 2 nodes" in said(capsys, nodes.by_name["a"].folder, "status")
    assert "a, joined, epoch" in said(capsys, nodes.by_name["a"].folder, "cluster", "status")


def test_what_needs_a_log_of_its_own_is_refused(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Taps, backups of the data folder, and what remembers messages are refused with a reason."""
    nodes.channel("a").queue_declare("q", durable=True)
    folder = nodes.by_name["a"].folder
    assert "not available in a cluster" in said(capsys, folder, "tap", "add", "amq.topic", "#", code=1)
    assert "use slotmq cluster backup" in said(capsys, folder, "backup", str(tmp_path / "copy"), code=1)
    assert not (tmp_path / "copy").exists()
    twice = ("declare", "queue", "p", "--argument", "x-message-deduplication=true")
    assert "a cluster has no x-message-deduplication" in said(capsys, folder, *twice, code=1)
    for kind, argument in (
        ("x-message-deduplication", "x-cache-size=1"),
        ("x-recent-history", "x-recent-history-length=1"),
    ):
        words = ("declare", "exchange", "x", "--type", kind, "--argument", argument)
        assert f"a cluster has no exchange type '{kind}'" in said(capsys, folder, *words, code=1)


def test_messages_are_those_of_all_nodes(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    """A node gets, counts, purges and deletes what was published on another one and is held by none."""

    def listed() -> list[str]:
        return said(capsys, b, "list", "queues", "--columns", "name,messages_ready,consumers").splitlines()

    a, b = (nodes.by_name[name].folder for name in ("a", "b"))
    assert said(capsys, a, "declare", "queue", "orders") == "queue 'orders' declared\n"
    said(capsys, a, "publish", "orders", "one")
    said(capsys, a, "publish", "orders", "two")
    assert listed() == ["orders\t2\t0"]
    assert said(capsys, b, "get", "orders", "--body", "--requeue") == "one"
    assert said(capsys, b, "get", "orders", "--body", "--count", "5").split() == ["one", "two"]
    for body in ("three", "four", "five"):
        said(capsys, a, "publish", "orders", body)
    assert said(capsys, b, "purge", "orders") == "3 messages purged\n"
    assert listed() == ["orders\t0\t0"]
    said(capsys, b, "publish", "orders", "six")
    assert said(capsys, a, "peek", "orders").splitlines()[-1].strip().endswith("six")
    said(capsys, a, "declare", "queue", "other")
    assert said(capsys, a, "move", "orders", "--to", "other") == "1 message moved to queue 'other'\n"
    assert said(capsys, b, "move", "other", "--to", "orders") == "1 message moved to queue 'orders'\n"
    said(capsys, a, "delete", "queue", "other")
    assert "not empty" in said(capsys, a, "delete", "queue", "orders", "--if-empty", code=1)
    said(capsys, a, "delete", "queue", "orders")
    assert listed() == []


def test_a_node_finds_the_levels_that_others_were_the_first_to_use(
    nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that was away counts, shows, fetches and consumes the messages of all levels, the highest first."""
    a, b = nodes.by_name["a"], nodes.by_name["b"]
    channel = nodes.channel("a", confirms=True)
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    b.kill()
    for priority in (3, 9, 1, 20, 0):
        channel.basic_publish("", "q", b"%d" % priority, pika.BasicProperties(priority=priority))
    b.start()
    assert said(capsys, b.folder, "peek", "q", "--count", "1").splitlines()[-1].strip() == "20"
    (row,) = json.loads(said(capsys, b.folder, "list", "queues", "--json"))
    assert row["messages_by_priority"] == {"0": 1, "1": 1, "3": 1, "9": 1, "20": 1}
    for folder, body in ((b.folder, "20"), (a.folder, "9")):
        assert said(capsys, folder, "get", "q", "--body") == body
    b.kill()
    b.start()
    got: list[bytes] = []
    consumer = nodes.channel("b")
    consumer.basic_consume("q", lambda _channel, _method, _properties, body: got.append(body), auto_ack=True)

    def has_all() -> bool:
        consumer.connection.process_data_events(time_limit=0.01)
        return len(got) == 3

    wait_until(has_all, "the other levels")
    assert sorted(got) == [b"0", b"1", b"3"]
    channel.basic_publish("", "q", b"", pika.BasicProperties(priority=30))
    wait_until(
        lambda: consumer.connection.process_data_events(time_limit=0.01) is None and len(got) == 4, "a new level"
    )


def test_a_dead_node_is_counted_out_by_command(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    """A node that lives is refused; a killed one is gone when the command returns."""
    folder = nodes.by_name["a"].folder

    def names() -> set[str]:
        return {row["node"] for row in json.loads(said(capsys, folder, "cluster", "nodes", "--json"))}

    wait_until(lambda: names() == {"a", "b"}, "a sees b")
    assert "node 'b' is alive" in said(capsys, folder, "cluster", "leave", "b", code=1)
    nodes.by_name["b"].kill()
    main(["cluster", "leave", "b", "--data-dir", str(folder)])
    capsys.readouterr()  # a may have counted b out by itself meanwhile: the lease of these nodes is short
    wait_until(lambda: names() == {"a"}, "b is gone")


def test_what_a_node_says_of_the_others_is_what_it_sees(
    postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A frozen node is silent before it is counted out. Without the database no one knows of the others."""
    nodes = Nodes(tmp_path, postgres.url, "slotmq", "a", "b", lease_ms=2000)
    folder = tmp_path / "a"

    def states() -> dict[str, str]:
        rows = json.loads(said(capsys, folder, "cluster", "nodes", "--json"))
        return {row["node"]: row["state"] for row in rows}

    with nodes:
        wait_until(lambda: states() == {"a": "alive", "b": "alive"}, "both live")
        process = nodes.by_name["b"].running
        process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: states() == {"a": "alive", "b": "silent"}, "b is silent")
            wait_until(lambda: states() == {"a": "alive"}, "b is counted out")
        finally:
            process.send_signal(signal.SIGCONT)
        nodes.errors_expected("b", "node.lost")
        wait_until(lambda: states() == {"a": "alive", "b": "alive"}, "b has joined again")
        postgres.stop()
        wait_until(lambda: states() == {"a": "paused", "b": "unknown"}, "a sees nobody")
        status = said(capsys, folder, "cluster", "status")
        assert "a, paused, epoch" in status
        assert "does not answer" in status
        assert "database away" in said(capsys, folder, "status")
        assert "cannot be reached: " in said(capsys, folder, "purge", "q", code=1)
        assert "node 'b' cannot be counted out now: " in said(capsys, folder, "cluster", "leave", "b", code=1)
        postgres.start()
        wait_until(lambda: states() == {"a": "alive", "b": "alive"}, "both live again")


def test_a_node_leaves_when_it_is_stopped(
    tmp_path: Path, postgres_url: str, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cluster leave` stops the broker in order, and says what it waits for."""
    with Nodes(tmp_path, postgres_url, schema, "b") as nodes:
        lines = said(capsys, tmp_path / "b", "cluster", "leave").splitlines()
        assert lines[-2:] == ["waiting for PostgreSQL", "stopped"]
        assert nodes.by_name["b"].wait() == 0
        assert any(event["event"] == "node.left" for event in nodes.by_name["b"].log_events())


def test_a_database_that_is_not_there_is_one_line(tmp_path: Path, shared_postgres: PostgresServer) -> None:
    """A wrong password ends the start with one line and exit code 2."""
    wrong = shared_postgres.url.replace(shared_postgres.password, "wrong-password")
    node = BrokerProcess(tmp_path / "a", "--cluster", wrong, "--node", "a")
    node.spawn()
    assert node.wait() == 2
    (line,) = node.stderr().splitlines()
    assert "password authentication failed" in line
    assert "wrong-password" not in line


def test_a_broker_that_waits_for_its_database_can_be_stopped(tmp_path: Path) -> None:
    """SIGTERM ends it in order: with 0, without a line that it is ready, and without a traceback."""
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))  # and never listens
        url = f"postgresql://slotmq@127.0.0.1:{refusing.getsockname()[1]}/slotmq"
        node = BrokerProcess(tmp_path / "a", "--cluster", url, "--node", "a")
        node.spawn()
        try:
            wait_until(lambda: "database.unreachable" in node.stderr(), "it waits")
            assert node.terminate() == 0
        finally:
            node.kill()
    assert node.stdout() == ""
    assert node.log_events()[-1]["event"] == "server.stopped"


def test_a_name_that_another_node_has_is_refused(tmp_path: Path, shared_postgres: PostgresServer, schema: str) -> None:
    """The second broker of a name does not start, and the first continues."""
    with Nodes(tmp_path, shared_postgres.url, schema, "a") as nodes:
        second = BrokerProcess(tmp_path / "second", *nodes.by_name["a"].options)
        second.environment = nodes.by_name["a"].environment
        second.spawn()
        assert second.wait() == 2
        assert "another broker is the node a" in second.stderr()
        nodes.channel("a", confirms=True).queue_declare("q")


def test_queues_that_would_hold_messages_are_refused(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    """Policies and arguments of delayed retry, and hold-until-header: nothing is dropped silently, nothing changes."""
    folder = nodes.by_name["a"].folder
    reason = "is not available in a cluster: its queues hold no messages until they are due"
    retry = '{"delayed-retry-type": "all", "delayed-retry-min": 1000}'
    for options, key in (((retry,), "delayed-retry-type"), ((retry, "--operator"), "delayed-retry-type"),
                         (('{"hold-until-header": "eta"}',), "hold-until-header")):  # fmt: skip
        said_ = said(capsys, folder, "policy", "set", "p", "^held$", *options, code=1)
        assert f"'{key}' of policy 'p' {reason}" in said_
    said(capsys, folder, "policy", "set", "p", "^held$", '{"delayed-retry-type": "disabled", "max-length": 5}')
    channel = nodes.channel("a")
    arguments = {"x-queue-type": "quorum", "x-delayed-retry-type": "all", "x-delayed-retry-min": 1000}
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-delayed-retry-type") as caught:
        channel.queue_declare("held", durable=True, arguments=arguments)
    assert caught.value.reply_code == 406
    assert reason in caught.value.reply_text
    nodes.channel("b").queue_declare("held", durable=True, arguments={**arguments, "x-delayed-retry-type": "disabled"})
    assert "cannot be released" in said(capsys, folder, "release", "held", code=1)
