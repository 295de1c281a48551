"""Starts the brokers of an overlay as processes: each holds logical brokers, and links go along the tree's edges."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.brokers import Broker, slotmq
from bench.meter import threads_s
from bench.service import BrokerFailed
from broker.perf.machine import ProcessTree
from broker.perf.peer import Address

_LINK_LIMIT_S = 30.0
_LOOK_S = 0.02
_OPENED = "overlay.link_opened"


@dataclass(frozen=True, slots=True)
class Logical:
    """A broker of the overlay: its name, its tree node, and whether clients connect to it."""

    name: str
    node: str
    leaf: bool = False


class Tree(ExitStack):
    """The processes of one overlay, each named and with the logical brokers that it holds; they stop at its exit.

    A process connects to the processes that were started before it, so every port is known when it is needed.

    Shapes: `edges` are pairs of neighbouring tree nodes. With `floods` no link carries subscriptions.
    """

    def __init__(
        self,
        folder: Path,
        package: Path,
        exchanges: Sequence[str],
        processes: Mapping[str, Sequence[Logical]],
        edges: Collection[tuple[str, str]],
        *,
        floods: bool = False,
    ) -> None:
        super().__init__()
        self.brokers: dict[str, Broker] = {}
        self._folder = folder
        self._package = package
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
        """Return where the clients of a process connect."""
        return self.brokers[name].address

    def processes(self, name: str) -> ProcessTree:
        """Return the operating system's view of a process."""
        found = self.brokers[name].processes
        assert found is not None  # it was started here
        return found

    def cpu_s(self, name: str) -> float:
        """Return the CPU time that a process has used so far, 0 after its end."""
        return threads_s(self.processes(name))

    def each_cpu_s(self, before: Mapping[str, float] | None = None, divisor: float = 1.0) -> dict[str, float]:
        """Return the CPU time of each process, since a former answer if one is given, by a divisor."""
        return {name: (self.cpu_s(name) - (before or {}).get(name, 0.0)) / divisor for name in before or self.brokers}

    def kill(self, name: str) -> None:
        """End a process with SIGKILL."""
        service = self.brokers[name].service
        assert service is not None
        service.stop(killed=True)

    def restart(self, name: str) -> None:
        """Start a killed process again, without waiting for it."""
        service = self.brokers[name].service
        assert service is not None
        service.start()

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
        """Return the brokers of the neighbouring tree nodes, each with the process that holds it."""
        return [
            (process, other)
            for process, held in self._processes.items()
            for other in held
            if frozenset((one.node, other.node)) in self._edges
        ]

    def _neighbour(self, process: str, other: Logical) -> dict[str, str]:
        """Return a neighbour, with its URL if its process runs."""
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
            service = broker.service
            assert service is not None
            while service.said().count(_OPENED) < wanted:
                if time.monotonic() > deadline or not service.alive:
                    raise BrokerFailed(f"{name} has no link to each of its neighbours; {service.failed()}")
                time.sleep(_LOOK_S)
