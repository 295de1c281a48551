"""The nodes of a cluster on a PostgreSQL of the run's own, or a broker by itself, and the kill of a node."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.brokers import Broker, slotmq
from broker.perf import wire
from broker.perf.faults import RunFailed
from broker.perf.machine import ProcessTree
from broker.perf.peer import PeerConnection
from tools.postgres_server import PostgresServer

_MESSAGES = 100
_QUEUE = "bench-failover"
_LIMIT_S = 60.0
OPTIONS = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "off",
}


class Database:
    """The database and the folder of one run of the suite."""

    def __init__(self, folder: Path, package: Path, lease_ms: int) -> None:
        self.postgres = PostgresServer(durable=True, options=OPTIONS).start()
        self._folder = folder
        self._package = package
        self._lease_ms = lease_ms

    def close(self) -> None:
        """Stop the database."""
        self.postgres.close()

    @property
    def processes(self) -> ProcessTree:
        """The processes of the database."""
        return ProcessTree(self.postgres.pid)

    def new_url(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"bench_{secrets.token_hex(4)}"
        self.postgres.sql(f"CREATE DATABASE {name}")
        return self.postgres.url.rpartition("/")[0] + f"/{name}"

    @contextmanager
    def nodes(self, count: int) -> Iterator[list[Broker]]:
        """Run a cluster of this many nodes in a database of its own, or a broker by itself if there are none.

        Raises: NotStarted.
        """
        folder = self._folder / secrets.token_hex(4)
        with ExitStack() as running:
            if not count:
                yield [running.enter_context(slotmq(folder, package=self._package))]
                return
            url = self.new_url()
            brokers = []
            for number in range(count):
                name = chr(ord("a") + number)
                own = folder / name
                own.mkdir(parents=True)
                config = own / "slotmq.toml"
                config.write_text(
                    f"[cluster]\nurl = {json.dumps(url)}\nnode = {json.dumps(name)}\nlease_ms = {self._lease_ms}\n"
                )
                options = ["--config", str(config)]
                brokers.append(
                    running.enter_context(slotmq(own, options=options, package=self._package, name=f"node {name}"))
                )
            yield brokers


def cpu_s(brokers: Sequence[Broker]) -> float:
    """Return the CPU time that the brokers have used so far."""
    return sum(broker.processes.usage().cpu_s for broker in brokers if broker.processes)


def fail_over(brokers: list[Broker]) -> dict[str, Any]:
    """Kill node A while its consumer holds every message, and time the first delivery on node B. Raises: RunFailed."""
    a, b = brokers
    holder = PeerConnection(a.address, wire.CONSUME_CHANNEL)
    waiting = PeerConnection(b.address, wire.CONSUME_CHANNEL)
    try:
        holder.declare_queue(_QUEUE, durable=True)
        holder.consume(_QUEUE, "held", auto_ack=False, prefetch=_MESSAGES)
        publisher = PeerConnection(b.address, wire.PUBLISH_CHANNEL)
        publisher.select_confirms()
        body = bytes(100)
        publisher.socket.sendall(
            b"".join(wire.publish(publisher.channel, "", _QUEUE, body, persistent=True) for _ in range(_MESSAGES))
        )
        for _ in range(_MESSAGES):
            holder.await_method(wire.BASIC_DELIVER)
        waiting.consume(_QUEUE, "next", auto_ack=False, prefetch=_MESSAGES)
        waiting.socket.settimeout(_LIMIT_S)
        assert a.service is not None
        a.service.stop(killed=True)
        begun = time.monotonic()
        waiting.await_method(wire.BASIC_DELIVER)
        first_s = time.monotonic() - begun
        for _ in range(_MESSAGES - 1):
            waiting.await_method(wire.BASIC_DELIVER)
        publisher.close()
        return {"first_s": first_s, "all_s": time.monotonic() - begun}
    except TimeoutError:
        raise RunFailed(f"nothing was delivered within {_LIMIT_S:.0f} s of the kill") from None
    finally:
        for peer in (holder, waiting):
            peer.socket.close()
