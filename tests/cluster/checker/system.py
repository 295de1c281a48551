"""The brokers under test: nodes that share one PostgreSQL, or a single broker with its own log."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg
from pamqp import commands

from broker.cli.control_client import ask
from tests.broker_process import BrokerAddress, BrokerProcess
from tests.cluster.checker.crew import QUEUES
from tests.cluster.checker.history import Rewind, Stop
from tests.cluster.invariants import violations
from tests.cluster.proxy import Proxy
from tests.deadline import wait_until
from tests.raw_client import RawClient
from tools.postgres_server import PostgresFailed, PostgresServer

LEASE_MS: Final = 500
ASK_S: Final = 20.0
AWAIT_S: Final = 30.0
CHECKS_MAX: Final = 10
HELD: Final = "SELECT count(*) FROM slot WHERE holder <> ''"
REMAINING: Final = """
SELECT level, number, holder, epoch, count, bit_count(bits) AS bits, bit_count(seen) AS seen FROM slot LIMIT 20
"""
UNSETTLED: Final = "SELECT coalesce(sum(bit_count(bits)), 0) FROM slot"


class System:
    """Nodes by name, each behind a proxy of its own. Without a PostgreSQL there is one node with its own log."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        postgres: PostgresServer | None = None,
        *,
        schema: str = "slotmq",
        lease_ms: int = LEASE_MS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        assert postgres is not None or len(names) == 1
        self.folder = folder
        self.postgres = postgres
        self.schema = schema
        self.lease_ms = lease_ms
        self.environment = environment
        self.nodes: Mapping[str, BrokerProcess] = {}  # replaced, never changed: client threads read it
        self.proxies: dict[str, Proxy] = {}
        self.frozen: dict[str, float] = {}  # the time of the stop
        self.stops: list[Stop] = []
        self.rewinds: list[Rewind] = []
        self._standby: PostgresServer | None = None
        self._start_standby: Callable[[PostgresServer], PostgresServer] = _no_standby
        for name in names:
            self.add(name)

    # ---- nodes

    def add(self, name: str) -> None:
        """Add a node without starting it."""
        node = BrokerProcess(self.folder / name, environment=self.environment)
        if self.postgres is not None:
            proxy = self.proxies[name] = Proxy(self.postgres.url)
            node.options = ("--node", name)
            node.environment |= {
                "SLOTMQ_CLUSTER__URL": proxy.url,
                "SLOTMQ_CLUSTER__SCHEMA_NAME": self.schema,
                "SLOTMQ_CLUSTER__LEASE_MS": str(self.lease_ms),
            }
        self.nodes = {**self.nodes, name: node}

    def lose(self, name: str) -> None:
        """End a node by SIGKILL for good."""
        node = self.nodes[name]
        self.nodes = {other: self.nodes[other] for other in self.nodes if other != name}
        node.kill()

    def start(self) -> None:
        """Start every node that does not run."""
        stopped = [node for node in self.nodes.values() if not node.alive]
        for node in stopped:
            node.process = None
            node.spawn()
        for node in stopped:
            node.wait_ready()

    def stop(self) -> None:
        """Kill every node, and end the proxies."""
        for node in self.nodes.values():
            node.kill()
        for proxy in self.proxies.values():
            proxy.close()

    @property
    def database(self) -> PostgresServer:
        """The PostgreSQL of a cluster."""
        assert self.postgres is not None, "a single broker"
        return self.postgres

    def dump(self) -> None:
        """Write a pg_dump of the schema."""
        words = ["--format", "custom", "--schema", self.schema, "--file", self._copy("dump"), self.database.url]
        subprocess.run([self.database.program("pg_dump"), *words], check=True, capture_output=True)

    def restore_dump(self) -> None:
        """Restore the dump in one transaction; try again if a node holds a conflicting lock."""
        words = ["--clean", "--single-transaction", "--dbname", self.database.url, self._copy("dump")]
        command = [str(self.database.program("pg_restore")), *words]
        wait_until(lambda: not subprocess.run(command, capture_output=True, check=False).returncode, "a restore")

    def cluster(self, word: str) -> None:
        """Run `slotmq cluster backup` or `restore` with the file of this system."""
        Path(self._copy("backup")).unlink(missing_ok=True) if word == "backup" else None
        environment = {"SLOTMQ_CLUSTER__URL": self.database.url, "SLOTMQ_CLUSTER__SCHEMA_NAME": self.schema}
        command = [sys.executable, "-m", "broker", "cluster", word, self._copy("backup"), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
        assert not done.returncode, f"{done.stdout}{done.stderr}"

    def _copy(self, name: str) -> str:
        return str(self.folder / name)

    def follow_by(self, standby: Callable[[PostgresServer], PostgresServer]) -> None:
        """Give the primary a synchronous standby, which `standby` starts."""
        self._start_standby = standby
        self.database.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.database.sql("SELECT pg_reload_conf()")
        self._add_standby()

    def promote(self) -> None:
        """Kill the primary, promote its standby behind the same address, and start a new standby."""
        assert self._standby is not None, "no standby"
        self.database.kill()
        self._standby.promote()
        self.postgres = self._standby
        for proxy in self.proxies.values():
            proxy.redirect(self.postgres.url)
            proxy.cut()
        self._add_standby()

    def _add_standby(self) -> None:
        self._standby = self._start_standby(self.database)
        synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        wait_until(lambda: self.database.sql(synchronous) == "1", "the standby is synchronous")

    def running(self) -> list[tuple[str, BrokerAddress]]:
        """Return the name and address of each node that accepts clients."""
        return [(name, node.address) for name, node in self.nodes.items() if node.alive and node.address.port]

    def kill(self, name: str) -> None:
        """End a node by SIGKILL."""
        self.nodes[name].kill()
        self.nodes[name].address = BrokerAddress("127.0.0.1", 0)

    def freeze(self, name: str) -> None:
        """Stop a node by SIGSTOP."""
        self.frozen[name] = time.monotonic()
        self.nodes[name].running.send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a frozen node continue."""
        self.stops.append(Stop(name, self.frozen.pop(name), time.monotonic()))
        self.nodes[name].running.send_signal(signal.SIGCONT)

    def ask(self, node: str, verb: str, /, **arguments: Any) -> Any:
        """Return the answer of a node's control socket. Raises: Unanswered."""
        return ask(self.nodes[node].folder, verb, silence_s=ASK_S, **arguments)

    def agrees(self) -> bool:
        """Return whether all nodes have the same definitions."""
        found = [self.ask(name, "export_definitions") for name, node in self.nodes.items() if node.alive]
        return all(one == found[0] for one in found)

    def died(self) -> list[str]:
        """Return the logs of the nodes that ended by themselves."""
        texts = []
        for name, node in self.nodes.items():
            if node.process is not None and not node.alive:
                texts.append(f"{name} ended with {node.process.returncode}:\n{node.stderr()[-4000:]}")
        return texts

    # ---- messages

    def is_at_rest(self) -> bool:
        """Return whether no node holds a message: without clients, everything leased is returned."""
        if self.postgres is None:
            return all(consumers == 0 for _, consumers in self._counts())
        return self.sql(HELD) == "0"

    def is_empty(self) -> bool:
        """Return whether every message is settled."""
        if self.postgres is None:
            return all(messages == 0 for messages, _ in self._counts())
        return self.sql(UNSETTLED) == "0"

    def sql(self, query: str) -> str:
        """Run a query in the schema of the nodes; return "" while PostgreSQL is unavailable."""
        try:
            return self.database.sql(f'SET search_path TO "{self.schema}"; {query}')
        except PostgresFailed:
            return ""

    def remains(self) -> str:
        """Return the unsettled messages, and the last lines of the nodes' logs."""
        rows = self.sql(REMAINING) if self.postgres is not None else ""
        logs = [f"{name}:\n{node.stderr()[-2000:]}" for name, node in self.nodes.items() if node.alive]
        return "\n".join(["level|number|holder|epoch|count|bits|seen", rows, *logs])

    def violations(self) -> list[str]:
        """Wait until PostgreSQL accepts connections, and return the violated invariants of the tables."""

        async def check() -> list[str]:
            settings = {"search_path": self.schema}
            connection = await asyncpg.connect(self.database.url, server_settings=settings)
            try:
                return await violations(connection)
            finally:
                await connection.close()

        wait_until(lambda: self.sql("SELECT 1") == "1", "PostgreSQL accepts connections")
        found = asyncio.run(check())
        for _ in range(CHECKS_MAX):  # the counter of a new limit includes concurrent calls a moment later
            if not found or not all(text.startswith("counter is wrong") for text in found):
                break
            time.sleep(0.1)
            found = asyncio.run(check())
        return found

    def await_(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition is true; fail at once when a node has ended by itself."""

        def holds() -> bool:
            died = self.died()
            assert not died, "\n".join(died)
            return condition()

        wait_until(holds, what, AWAIT_S)

    def _counts(self) -> list[tuple[int, int]]:
        ((_, address),) = self.running()
        with RawClient(address.host, address.port).with_channel() as client:
            answers = [
                client.call(1, commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk)
                for queue in QUEUES
            ]
            client.close()
        return [(answer.message_count or 0, answer.consumer_count or 0) for answer in answers]


def _no_standby(_primary: PostgresServer) -> PostgresServer:
    raise AssertionError("no function to start standbys")
