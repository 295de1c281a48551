"""The run with a cluster: three nodes on one PostgreSQL, of which one is killed and one frozen."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from broker.cli.control_client import Unanswered, ask
from demo.brokers import Broker
from demo.ledger import Failed
from demo.options import DEFAULT_COMMAND
from demo.run import Fault, Run
from tools.postgres_server import PostgresFailed, PostgresServer

NODES = ("node-a", "node-b", "node-c")
AWAY_S = 2.0
FROZEN_S = 8.0  # longer than the lease and the margin after which the other nodes take over


class ClusterRun(Run):
    """The nodes, their database, the clients and the ledger of one run; clients connect to the nodes in turn."""

    def _make_faults(self) -> list[Fault]:
        return [Fault(0.3, NODES[1:2], "move", AWAY_S), Fault(0.6, NODES[2:3], "move", FROZEN_S, frozen=True)]

    def _start(self, stack: ExitStack) -> None:
        try:
            database = stack.enter_context(PostgresServer(durable=True)).start()
        except PostgresFailed as error:
            raise Failed(str(error)) from None
        url_file = self._folder / "url"
        url_file.touch(0o600)
        url_file.write_text(database.url)
        for name in NODES:
            command = f"{DEFAULT_COMMAND} --cluster-file {url_file} --node {name}"
            self._brokers[name] = Broker(name, command, self._folder)
            self._brokers[name].start()

    def _urls(self, client: int) -> Sequence[str]:
        urls = [broker.url for broker in self._brokers.values()]
        first = client % len(urls)
        return urls[first:] + urls[:first]

    def _note(self) -> str:
        """Return the messages that each node holds, asked of the first node, which is neither killed nor frozen."""
        try:
            facts = ask(self._brokers[NODES[0]].data, "cluster")
        except Unanswered as error:
            return f"; {error}"
        held = {row["node"]: row["held"] for row in facts["nodes"] if row.get("held") is not None}
        return "".join(f"; {name} holds {count:,} messages" for name, count in sorted(held.items()))
