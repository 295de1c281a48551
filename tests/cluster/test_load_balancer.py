"""The nodes and the load balancer of the compose file, as processes: clients connect through a real HAProxy."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPConnectionError, AMQPError

from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S, wait_until
from tests.unit.test_docker import environment
from tests.unit.test_docker_cluster import balancer, compose
from tools.postgres_server import PostgresServer

pytestmark = [
    pytest.mark.fault,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
]

NODES = ("a", "b", "c")
USER, PASSWORD = "alice", "wonderland"
PERSISTENT = pika.BasicProperties(delivery_mode=2)
STATUS, SESSIONS = 17, 4  # columns of `show stat`


def free_port() -> int:
    """Return a port that no one listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def node(folder: Path, name: str, postgres: PostgresServer) -> BrokerProcess:
    """Return a node with the variables of its service and of the image, but for addresses."""
    given = {**environment(), **compose()["services"][f"node-{name}"]["environment"]}
    given |= {"RABBITMQ_DEFAULT_USER": USER, "RABBITMQ_DEFAULT_PASS": PASSWORD}
    given |= {"SLOTMQ_CLUSTER__URL": postgres.url, "SLOTMQ_HTTP__PORT": "0", "SLOTMQ_METRICS__PORT": "0"}
    del given["SLOTMQ_SERVER__DATA_DIR"], given["PATH"]
    return BrokerProcess(folder / name, environment=given)


class Balancer:
    """HAProxy with the settings of the compose file, but for addresses."""

    def __init__(self, folder: Path, nodes: dict[str, BrokerProcess]) -> None:
        self._connections: list[BlockingConnection] = []
        self.port, self._admin = free_port(), free_port()
        text = balancer().replace("bind :5672", f"bind 127.0.0.1:{self.port}")
        text = text.replace("global\n", f"global\n  stats socket ipv4@127.0.0.1:{self._admin} level admin\n")
        for name, one in nodes.items():
            found = re.search(r"HTTP at http://[\d.]+:(\d+)", one.stdout())
            assert found is not None
            text = text.replace(f"node-{name}:5672", f"127.0.0.1:{one.address.port} port {found[1]}")
        file = folder / "haproxy.cfg"
        file.write_text(text)
        with (folder / "haproxy.log").open("wb") as log:
            self._process = subprocess.Popen(["haproxy", "-db", "-f", str(file)], stdout=log, stderr=log)
        wait_until(self._is_listening, "HAProxy listens")

    def column(self, number: int) -> dict[str, str]:
        """Return a column of the statistics, by node."""
        with socket.create_connection(("127.0.0.1", self._admin)) as admin:
            admin.sendall(b"show stat\n")
            text = b"".join(iter(lambda: admin.recv(1 << 16), b"")).decode()
        rows = [line.split(",") for line in text.splitlines() if line.startswith("nodes,")]
        return {row[1]: row[number] for row in rows if row[1] in NODES}

    def wait_for(self, *statuses: str) -> None:
        """Return when the nodes have these states."""
        wait_until(lambda: list(self.column(STATUS).values()) == list(statuses), f"{statuses}")

    def connect(self) -> BlockingConnection:
        """Return a connection of a client that tries until it gets one."""
        login = pika.PlainCredentials(USER, PASSWORD)
        parameters = pika.ConnectionParameters(
            "127.0.0.1", self.port, credentials=login, connection_attempts=100, retry_delay=0.1
        )
        self._connections.append(BlockingConnection(parameters))
        return self._connections[-1]

    def connect_to(self) -> tuple[str, BlockingConnection]:
        """Return a new connection and the node that it leads to."""
        before = self.column(SESSIONS)
        connection = self.connect()
        after = self.column(SESSIONS)
        [name] = [name for name in NODES if int(after[name]) > int(before[name])]
        return name, connection

    def stop(self) -> None:
        """End it, and the clients' connections before."""
        for connection in self._connections:
            with suppress(AMQPError):  # its node may have been killed
                connection.close()
        self._process.kill()
        self._process.wait()

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._admin)) == 0


@pytest.fixture
def nodes(tmp_path: Path, postgres: PostgresServer) -> Iterator[dict[str, BrokerProcess]]:
    """Provide the three nodes, which start at once."""
    made = {name: node(tmp_path, name, postgres) for name in NODES}
    for one in made.values():
        one.spawn()
    for one in made.values():
        one.wait_ready()
    yield made
    for one in made.values():
        one.kill()


@pytest.fixture
def haproxy(tmp_path: Path, nodes: dict[str, BrokerProcess]) -> Iterator[Balancer]:
    """Provide the balancer, which found all nodes ready."""
    made = Balancer(tmp_path, nodes)
    made.wait_for("UP", "UP", "UP")
    yield made
    made.stop()


def ends(connection: BlockingConnection) -> Callable[[], bool]:
    """Return a function that tells whether a connection has ended."""

    def has_ended() -> bool:
        try:
            connection.process_data_events(0)
        except AMQPConnectionError:
            return True
        return not connection.is_open

    return has_ended


def test_clients_find_the_nodes_that_are_left(
    haproxy: Balancer, nodes: dict[str, BrokerProcess], postgres: PostgresServer
) -> None:
    """While the database is away no node gets a new connection, and none loses one. A killed and a frozen node cost
    their clients the connection; the next one leads to a node that works.
    """
    clients = dict(haproxy.connect_to() for _ in NODES)
    assert sorted(clients) == list(NODES)
    channel = clients["c"].channel()
    channel.queue_declare("q", durable=True)
    postgres.stop()
    haproxy.wait_for("NOLB", "NOLB", "NOLB")
    postgres.start()
    haproxy.wait_for("UP", "UP", "UP")
    assert not any(ends(client)() for client in clients.values())
    for name in NODES:
        channel = clients[name].channel()
        channel.confirm_delivery()
        channel.basic_publish("", "q", name.encode(), PERSISTENT)
    nodes["a"].kill()
    wait_until(ends(clients["a"]), "the end of the connection to a")
    nodes["b"].running.send_signal(signal.SIGSTOP)
    wait_until(ends(clients["b"]), "the end of the connection to b")
    haproxy.wait_for("DOWN", "DOWN", "UP")
    name, again = haproxy.connect_to()
    assert name == "c"
    found = again.channel().consume("q", auto_ack=True, inactivity_timeout=DEADLINE_S)
    assert sorted(next(found)[2] for _ in NODES) == [name.encode() for name in NODES]
    assert not ends(clients["c"])()
