"""Starts the processes of an overlay: each contains logical brokers, linked along the edges of the tree."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.brokers import Broker, slotmq
from bench.herd import Herd
from bench.meter import threads_s
from bench.run import Figures
from bench.service import BrokerFailed
from bench.stage import Stage
from broker.perf.peer import Address

_LINK_LIMIT_S = 30.0
_POLL_S = 0.02
_OPENED = "overlay.link_opened"


@dataclass(frozen=True, slots=True)
class Logical:
    """A broker of the overlay: its name, its tree node, and whether clients connect to it."""

    name: str
    node: str
    leaf: bool = False


def leaf_of(name: str) -> tuple[Logical]:
    """Return the logical brokers of a process that is only a leaf, in a tree node of the same name."""
    return (Logical(name, name, leaf=True),)


class Tree(ExitStack):
    """The processes of one overlay by name, each with its logical brokers; they are stopped at the exit.

    A process connects to the processes that were started before it, so every port is known when it is needed.

    Shapes: `edges` are pairs of neighbouring tree nodes. With `floods` no link carries subscriptions.
    """

    def __init__(
        self,
        stage: Stage,
        exchanges: Sequence[str],
        processes: Mapping[str, Sequence[Logical]],
        edges: Collection[tuple[str, str]],
        *,
        floods: bool = False,
    ) -> None:
        super().__init__()
        self.brokers: dict[str, Broker] = {}
        self._folder = stage.new_folder()
        self._package = stage.package
        self._exchanges = exchanges
        self._processes = processes
        self._edges = {frozenset(edge) for edge in edges}
        self._floods = floods

    def start(self, *names: str) -> None:
        """Start processes, by default all, and wait until each has a link to every running neighbour.

        Raises: BrokerFailed.
        """
        for name in names or tuple(self._processes):
            variables = self.settings(name)
            started = slotmq(self._folder / name, package=self._package, name=name, variables=variables)
            self.brokers[name] = self.enter_context(started)
        self._await_links()

    def address(self, name: str) -> Address:
        """Return the address for the clients of a process."""
        return self.brokers[name].address

    def cpu_s(self, name: str) -> float:
        """Return the CPU time that a process has used so far, 0 after its end."""
        return threads_s(self.brokers[name].service.processes)

    def each_cpu_s(self) -> dict[str, float]:
        return {name: self.cpu_s(name) for name in self.brokers}

    def run(self, herd: Herd, seconds: float, until: Callable[[], bool] | None = None) -> tuple[Figures, Figures]:
        """Run the clients; return the share of a core that each process used, and the rates."""
        before = self.each_cpu_s()
        moved = herd.run(seconds, until)
        return {name: (used - before[name]) / moved.seconds for name, used in self.each_cpu_s().items()}, moved.rates

    def settings(self, name: str) -> dict[str, str]:
        """Return the settings of a process, as variables of its environment."""
        nodes = [
            {
                "broker": one.name,
                "node": one.node,
                "leaf": one.leaf,
                "neighbours": [self._neighbour(*other) for other in self._neighbours(one)],
            }
            for one in self._processes[name]
        ]
        return {
            "SLOTMQ_OVERLAY__EXCHANGES": json.dumps(list(self._exchanges)),
            "SLOTMQ_OVERLAY__NODE": json.dumps(nodes),
        }

    def _neighbours(self, one: Logical) -> list[tuple[str, Logical]]:
        """Return the brokers of the neighbouring tree nodes, each with the name of its process."""
        return [
            (process, other)
            for process, held in self._processes.items()
            for other in held
            if frozenset((one.node, other.node)) in self._edges
        ]

    def _neighbour(self, process: str, other: Logical) -> dict[str, str]:
        fields = {"node": other.node, "broker": other.name}
        if process in self.brokers:
            address = self.address(process)
            fields["url"] = f"amqp://{address.user}:{address.password}@{address.host}:{address.port}"
        if self._floods:
            fields["subscriptions"] = "none"
        return fields

    def _await_links(self) -> None:
        """Wait until each process has opened the links to its running neighbours. Raises: BrokerFailed."""
        deadline = time.monotonic() + _LINK_LIMIT_S
        for name, broker in self.brokers.items():
            wanted = sum(
                process in self.brokers for one in self._processes[name] for process, _ in self._neighbours(one)
            )
            while broker.service.output().count(_OPENED) < wanted:
                if time.monotonic() > deadline or not broker.service.alive:
                    raise BrokerFailed(f"{name} has no link to each of its neighbours; {broker.service.failed()}")
                time.sleep(_POLL_S)
