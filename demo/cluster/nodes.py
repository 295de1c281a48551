"""The nodes of a run: three brokers, the PostgreSQL that they share, and the balancer that clients connect to."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from demo.broker_process import BrokerFailed, BrokerProcess
from demo.cluster.balancer import Balancer
from demo.ledger import Address
from tools.postgres_server import PostgresFailed, PostgresServer

NAMES = ("a", "b", "c")
COMMAND = (
    f"{sys.executable} -m broker serve --host 127.0.0.1 --port {{{{port}}}} --data-dir {{{{folder}}}} "
    "--cluster-file {url_file} --node {name}"
)


class Nodes:
    """Behaves as one broker, whose address is the balancer's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._database: PostgresServer | None = None
        self._balancer = Balancer()
        self._nodes: dict[str, BrokerProcess] = {}
        self.states = dict.fromkeys(NAMES, "starting")

    def start(self) -> tuple[Address, float]:
        """Start PostgreSQL and the nodes; return the balancer's address and how long it took. Raises: BrokerFailed."""
        began_s = time.monotonic()
        try:
            self._database = PostgresServer(durable=True).start()
        except PostgresFailed as error:
            raise BrokerFailed(str(error)) from None
        url_file = self._folder / "url"
        url_file.touch(0o600)
        url_file.write_text(self._database.url)
        addresses = {}
        for name in NAMES:
            own = self._folder / name
            own.mkdir()
            self._nodes[name] = BrokerProcess(COMMAND.format(url_file=url_file, name=name), own)
            addresses[name], _ = self._nodes[name].start()
            self.states[name] = "up"
        self._balancer.start(addresses)
        some = addresses[NAMES[0]]
        address = Address("127.0.0.1", self._balancer.port, some.user, some.password, some.vhost)
        return address, time.monotonic() - began_s

    def check(self) -> None:
        """Check that every node that was not killed is alive. Raises: BrokerFailed."""
        for name, node in self._nodes.items():
            if self.states[name] == "up":
                node.check()

    def kill_node(self, name: str) -> None:
        """End a node by SIGKILL; the balancer gives it no more connections."""
        self._balancer.take_out(name)
        self.states[name] = "killed"
        self._nodes[name].kill()

    def restart_node(self, name: str) -> float:
        """Start a killed node again; return how long it took to be ready. Raises: BrokerFailed."""
        _, took_s = self._nodes[name].start()
        self.states[name] = "up"
        self._balancer.take_in(name)
        return took_s

    def freeze_node(self, name: str) -> None:
        """Stop a node by SIGSTOP; its connections hang."""
        self._balancer.take_out(name)
        self.states[name] = "frozen"
        self._nodes[name].signal(signal.SIGSTOP)

    def thaw_node(self, name: str) -> None:
        """Let a frozen node go on; it finds that the others have taken over."""
        self._nodes[name].signal(signal.SIGCONT)
        self.states[name] = "up"
        self._balancer.take_in(name)

    def folder_of(self, name: str) -> Path:
        """Return a node's data folder, which has its control socket."""
        return self._folder / name / "broker"

    def kill(self) -> None:
        """End everything by SIGKILL."""
        self._balancer.close()
        for node in self._nodes.values():
            node.kill()
        if self._database is not None:
            self._database.close()

    def stop(self) -> float:
        """Stop every node in order, then the database; return how long that took. Raises: BrokerFailed."""
        began_s = time.monotonic()
        for name, node in self._nodes.items():
            node.stop()
            self.states[name] = "stopped"
        return time.monotonic() - began_s

    def last_words(self) -> str:
        """Return the last lines of every node."""
        return os.linesep.join(f"node {name}:\n{node.last_words()}" for name, node in self._nodes.items())
