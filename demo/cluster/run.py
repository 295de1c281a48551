"""One run of the demo of the cluster: the flights, with a node killed and another frozen on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.cli.control_client import Unanswered, ask
from demo.broker_process import BrokerFailed
from demo.cluster.nodes import NAMES, Nodes
from demo.options import Options, parse_options
from demo.progress import Progress
from demo.run import Fault, Run, run_until_the_end
from demo.watch import Watch

KILL_AT, FREEZE_AT = 0.3, 0.6
FROZEN_S = 8.0  # more than the lease and the margin after which the others take over
KILLED, FROZEN = "b", "c"


class ClusterRun(Run):
    """The nodes, the clients and the ledger of one run."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._nodes = Nodes(folder)
        self._threads: list[threading.Thread] = []
        self._failure: BrokerFailed | None = None
        super().__init__(options, folder)

    def _make_broker(self, folder: Path) -> Nodes:
        return self._nodes

    def _faults(self) -> list[tuple[float, Fault]]:
        return [(KILL_AT, self._kill_node), (FREEZE_AT, self._freeze_node)]

    def _is_whole(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return not any(thread.is_alive() for thread in self._threads)

    def _show(self) -> None:
        self._state = ", ".join(f"{name} {state}" for name, state in self._nodes.states.items())

    def _kill_node(self, watch: Watch, progress: Progress) -> None:
        held = self._held(KILLED)
        self._ledger.broker_dying()
        self._nodes.kill_node(KILLED)
        self._ledger.broker_started()  # its clients connect again, through the balancer, to another node
        watch.excuse(time.monotonic())
        self._show()
        progress.event(f"node {KILLED} killed with -9; {held}")

        def restart() -> None:
            took_s = self._nodes.restart_node(KILLED)
            self._show()
            progress.event(f"node {KILLED} started again, ready after {took_s:.2f} s")

        self._later(restart)

    def _freeze_node(self, watch: Watch, progress: Progress) -> None:
        held = self._held(FROZEN)
        self._nodes.freeze_node(FROZEN)
        watch.excuse(time.monotonic())
        self._show()
        progress.event(f"node {FROZEN} frozen with SIGSTOP; {held}")

        def thaw() -> None:
            time.sleep(FROZEN_S)
            self._ledger.broker_dying()  # the node closes its clients when it wakes
            self._nodes.thaw_node(FROZEN)
            self._ledger.broker_started()
            self._show()
            progress.event(f"node {FROZEN} goes on after {FROZEN_S:g} s, when the others have taken over")

        self._later(thaw)

    def _later(self, work: Any) -> None:
        def guarded() -> None:
            try:
                work()
            except BrokerFailed as error:
                self._failure = error

        self._threads.append(threading.Thread(target=guarded, daemon=True))
        self._threads[-1].start()

    def _held(self, name: str) -> str:
        """Return what a node holds, in words, as another node knows it."""
        other = next(one for one in NAMES if self._nodes.states[one] == "up" and one != name)
        try:
            facts = ask(self._nodes.folder_of(other), "cluster")
        except Unanswered as error:
            return str(error)
        held = {row["node"]: row.get("held") for row in facts["nodes"]}
        return ", ".join(f"{one} holds {count:,} messages" for one, count in sorted(held.items()) if count is not None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 when the cluster kept its guarantees, 1 when it did not, 2 when the demo cannot run."""
    return run_until_the_end(replace(parse_options(arguments), url=None), ClusterRun)
