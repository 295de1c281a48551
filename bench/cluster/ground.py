"""What is measured: a PostgreSQL of the run's own, and brokers that are the nodes of a cluster, or one by itself."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.brokers import Broker, slotmq
from broker.perf.process_tree import ProcessTree
from tools.postgres_server import PostgresServer

OPTIONS = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "off",
}


class Ground:
    """The database and the folder of one run of the benchmark."""

    def __init__(self, folder: Path, package: Path, lease_ms: int) -> None:
        self.postgres = PostgresServer(durable=True, options=OPTIONS).start()
        self._folder = folder
        self._package = package
        self._lease_ms = lease_ms

    def close(self) -> None:
        """Stop the database."""
        self.postgres.close()

    @property
    def database(self) -> ProcessTree:
        """The processes of the database."""
        return ProcessTree(self.postgres.pid)

    def database_url(self) -> str:
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
            url = self.database_url()
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
