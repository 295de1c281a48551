"""Two nodes over a PostgreSQL with a streaming standby, which is promoted when the primary dies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from tests.cluster.postgres import new_server
from tests.cluster.two_nodes import Nodes
from tests.deadline import DEADLINE_S, wait_until
from tools.postgres_server import PostgresServer

pytestmark = [pytest.mark.fault, pytest.mark.slow]

PERSISTENT = pika.BasicProperties(delivery_mode=2)
LEASE_MS = 3000  # a node that connects again late is not to be counted out
WAITING = """
SELECT pid FROM pg_stat_activity
WHERE wait_event = 'SyncRep' AND application_name = 'slotmq a' AND query LIKE '%FROM commit(%'
"""


class Pair:
    """A primary and its standby."""

    def __init__(self) -> None:
        self.primary = new_server()
        try:
            self.standby = PostgresServer(primary=self.primary).start()
        except BaseException:
            self.primary.close()
            raise

    @property
    def url(self) -> str:
        """Both servers, the primary first."""
        port = self.primary.port
        return self.primary.url.replace(f":{port}/", f":{port},127.0.0.1:{self.standby.port}/")

    def synchronize(self) -> None:
        """Let every commit wait for the standby."""
        self.primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.primary.sql("SELECT pg_reload_conf()")
        wait_until(
            lambda: self.primary.sql("SELECT sync_state FROM pg_stat_replication") == "sync", "the synchronous standby"
        )

    def wait_until_same(self) -> None:
        """Return when the standby has everything."""
        behind = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()"
        wait_until(lambda: self.primary.sql(behind) == "1", "the standby has everything")

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        self.primary.kill()
        self.standby.promote()

    def close(self) -> None:
        """Stop both."""
        self.standby.close()
        self.primary.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Provide a primary and an asynchronous standby."""
    made = Pair()
    yield made
    made.close()


@pytest.fixture
def nodes(tmp_path: Path, pair: Pair) -> Iterator[Nodes]:
    """Provide two nodes whose URL names both servers."""
    with Nodes(tmp_path, pair.url, "slotmq", "a", "b", lease_ms=LEASE_MS) as both:
        yield both


class Publishing(threading.Thread):
    """Publishes numbers, one after the other, each when the one before is confirmed."""

    def __init__(self, nodes: Nodes, queue: str) -> None:
        super().__init__(daemon=True)
        self._channel = nodes.channel("a", confirms=True)
        self._queue = queue
        self._ends = threading.Event()
        self.confirmed = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Publish until `finish` is called."""
        try:
            while not self._ends.is_set():
                self._channel.basic_publish("", self._queue, b"%d" % self.confirmed, PERSISTENT)
                self.confirmed += 1
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def wait_for(self, count: int) -> None:
        """Return when this many are confirmed."""
        wait_until(lambda: self.error or self.confirmed >= count, f"{count} confirms")
        if self.error is not None:
            raise self.error

    def finish(self) -> int:
        """Stop, and return how many were confirmed."""
        self._ends.set()
        self.join()
        self.wait_for(0)
        return self.confirmed


def received(nodes: Nodes, name: str, queue: str, last: bytes) -> list[tuple[bytes, bool]]:
    """Return body and redelivered of the messages that a new consumer of a node gets, up to this one."""
    channel = nodes.channel(name)
    found: list[tuple[bytes, bool]] = []
    for method, _properties, body in channel.consume(queue, inactivity_timeout=DEADLINE_S):
        assert method is not None, f"{last!r} did not come, {len(found)} others did"
        found.append((body, method.redelivered))
        channel.basic_ack(method.delivery_tag)
        if body == last:
            break
    return found


def events(nodes: Nodes, name: str) -> list[str]:
    """Return the names of what a node has logged."""
    return [event["event"] for event in nodes.by_name[name].log_events()]


def has_rejoined(nodes: Nodes, name: str) -> bool:
    """Tell whether a node has joined a second time."""
    return events(nodes, name).count("node.joined") == 2


def has_moved(nodes: Nodes, name: str) -> bool:
    """Tell whether a node has connected again."""
    return "database.restored" in events(nodes, name)


def declared(nodes: Nodes, queue: str) -> None:
    """Declare a durable queue."""
    nodes.channel("a").queue_declare(queue, durable=True)


def test_a_synchronous_standby_has_everything_that_was_confirmed(nodes: Nodes, pair: Pair) -> None:
    """Connections stay, the publisher continues, nothing is lost, and no node joins again."""
    declared(nodes, "q")
    pair.synchronize()
    publishing = Publishing(nodes, "q")
    publishing.start()
    publishing.wait_for(50)
    pair.fail_over()
    publishing.wait_for(publishing.confirmed + 50)
    count = publishing.finish()
    nodes.channel("a", confirms=True).basic_publish("", "q", b"last", PERSISTENT)
    found = received(nodes, "b", "q", b"last")
    assert [body for body, _ in found] == [*(b"%d" % number for number in range(count)), b"last"]
    for name in ("a", "b"):
        logged = events(nodes, name)
        assert "database.changed" in logged
        assert not {"database.went_back", "node.lost"} & set(logged)
    assert pair.standby.sql("SELECT count(*) FROM slotmq.member") == "2"


def test_what_an_asynchronous_standby_lacks_is_told_and_the_rest_is_redelivered(nodes: Nodes, pair: Pair) -> None:
    """Confirmed messages are lost. A node says so, and every node closes its clients and joins again."""
    declared(nodes, "q")
    publisher = nodes.channel("a", confirms=True)
    for number in range(5):
        publisher.basic_publish("", "q", b"%d" % number, PERSISTENT)
    pair.wait_until_same()
    pair.standby.stop()
    publisher.basic_publish("", "q", b"lost", PERSISTENT)
    idle = nodes.connect("b")
    pair.primary.kill()
    pair.standby.start().promote()
    wait_until(lambda: "database.went_back" in events(nodes, "a"), "a misses its newest call")
    for connection in (publisher.connection, idle):
        with pytest.raises(ConnectionClosedByBroker, match="the database went back in time") as closed:
            connection.process_data_events(20)
        assert closed.value.reply_code == 320
    for name in ("a", "b"):
        nodes.errors_expected(name, "node.lost")
        nodes.errors_expected(name, "database.went_back")
        wait_until(partial(has_rejoined, nodes, name), f"{name} joins again")
    nodes.channel("a", confirms=True).basic_publish("", "q", b"last", PERSISTENT)
    found = received(nodes, "b", "q", b"last")
    assert found == [*((b"%d" % number, True) for number in range(5)), (b"last", False)]
    assert pair.standby.sql("SELECT generation FROM slotmq.cluster") == "2"


def test_nodes_leave_an_old_primary_that_goes_on(nodes: Nodes, pair: Pair) -> None:
    """Two servers take writes: all nodes go to the one that was promoted, and tell of it."""
    declared(nodes, "q")
    publisher = nodes.channel("a", confirms=True)
    publisher.basic_publish("", "q", b"first", PERSISTENT)
    pair.wait_until_same()
    pair.standby.promote()
    for name in ("a", "b"):
        for event in ("database.split", "database.went_back", "node.lost"):
            nodes.errors_expected(name, event)
        wait_until(partial(has_moved, nodes, name), f"{name} has another server")
        assert "database.split" in events(nodes, name)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'slotmq %'"
    wait_until(lambda: pair.primary.sql(sessions) == "0", "no node is at the old primary")
    wait_until(lambda: pair.standby.sql("SELECT count(*) FROM slotmq.member") == "2", "both nodes are at the new one")
    nodes.channel("a", confirms=True).basic_publish("", "q", b"last", PERSISTENT)
    assert [body for body, _ in received(nodes, "b", "q", b"last")] == [b"first", b"last"]


def test_a_commit_whose_wait_for_the_standby_is_cancelled_is_not_confirmed(nodes: Nodes, pair: Pair) -> None:
    """The node sends the call again, and confirms it when a standby has it: once."""
    declared(nodes, "q")
    pair.synchronize()
    pair.standby.stop()
    connection = nodes.connect("a")
    channel = connection.channel()
    confirms: list[Any] = []
    channel.confirm_delivery()
    impl = channel._impl  # the blocking channel would wait for the confirm
    impl.add_callback(confirms.append, [pika.spec.Basic.Ack], one_shot=False)
    impl.basic_publish("", "q", b"m", PERSISTENT)
    waiting = wait_until(lambda: pumped(connection) or pair.primary.sql(WAITING), "the commit waits for the standby")
    pair.primary.sql(f"SELECT pg_cancel_backend({waiting})")
    wait_until(lambda: "call.repeated" in events(nodes, "a"), "the call is sent again")
    wait_until(lambda: pair.primary.sql(WAITING), "it waits again")
    connection.process_data_events(0)
    assert not confirms
    pair.standby.start()
    wait_until(lambda: pumped(connection) or confirms, "the confirm")
    pair.fail_over()
    nodes.channel("a", confirms=True).basic_publish("", "q", b"last", PERSISTENT)
    assert received(nodes, "b", "q", b"last") == [(b"m", False), (b"last", False)]


def pumped(connection: Any) -> bool:
    """Read and write what there is, and return False."""
    connection.process_data_events(0)
    return False
