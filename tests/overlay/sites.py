"""Sites of an overlay: real brokers in the test's event loop, linked over sockets or within one process."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from broker.overlay.packets import Space
from broker.overlay_node.held_brokers import HeldBrokers
from broker.testing import Broker
from tests.deadline import wait_until_async
from tests.in_process import timed_broker

Neighbour = tuple[str, str, int]
"""A node, its broker, and the broker's port, or 0 if it dials or is in the same process."""
X = Space("/", "x")


class Site:
    """The settings of one broker process with logical brokers."""

    def __init__(self, port: int, *nodes: dict[str, Any], **overlay: Any) -> None:
        self.port = port
        self.nodes = nodes
        self.overlay = {"exchanges": ["x*"], **overlay}

    def broker(self, folder: Path, **sections: Any) -> Broker:
        """Return the broker, not started."""
        sections = {"server": {"port": self.port}, "overlay": {**self.overlay, "node": self.nodes}, **sections}
        return timed_broker(folder, **sections)


def free_port() -> int:
    """Return an unused loopback port below the system's ephemeral ports."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)  # independent of a test's seed of `random`
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def overlay(
    broker: str, node: str, *neighbours: Neighbour, leaf: bool = False, one_way: Collection[str] = ()
) -> dict[str, Any]:
    """Return the settings of a logical broker; links to the nodes in `one_way` carry no subscriptions."""
    url = "amqp://guest:guest@127.0.0.1:{}"
    linked = [
        {
            "node": place,
            "broker": name,
            **({"url": url.format(port)} if port else {}),
            **({"subscriptions": "none"} if place in one_way else {}),
        }
        for place, name, port in neighbours
    ]
    return {"broker": broker, "node": node, "leaf": leaf, "neighbours": linked}


def pair(*, one_way: bool = False, **settings: Any) -> tuple[Site, Site]:
    """Return two neighbouring leaves, of which the first dials."""
    first, second = free_port(), free_port()
    to_b, to_a = (["site-b"], ["site-a"]) if one_way else ((), ())
    return (
        Site(first, overlay("a", "site-a", ("site-b", "b", second), leaf=True, one_way=to_b), **settings),
        Site(second, overlay("b", "site-b", ("site-a", "a", 0), leaf=True, one_way=to_a), **settings),
    )


@asynccontextmanager
async def sites(tmp_path: Path, chain: Sequence[Site], **sections: Any) -> AsyncIterator[list[Broker]]:
    """Yield the running brokers of the sites."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(site.broker(tmp_path / str(number), **sections))
            for number, site in enumerate(chain)
        ]


async def declared(*channels: Any, kind: str = "topic") -> Any:
    """Declare the exchange x at each site; return the first site's."""
    first, *_ = [await channel.declare_exchange("x", kind, durable=True) for channel in channels]
    return first


def held_by(broker: Broker) -> HeldBrokers:
    """Return the overlay's brokers of a process."""
    found = broker.server.overlay.brokers
    assert found is not None
    return found


def wanted(broker: Broker, node: str, exchange: str = "x") -> list[str] | None:
    """Return the patterns that a neighbour node wants of an exchange, or None while the leaf uses an outdated vector.

    A leaf updates the vector of its next message shortly after it learns of a binding.
    """
    driver = held_by(broker).driver
    assert driver is not None
    space = Space("/", exchange)
    source, interest = driver.leaf.sources.get(space), driver.leaf.interest
    if source is None or dict(source.vector) != interest.vector(node, space):
        return None
    return sorted(interest.roots(node, space))


async def reached(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition, possibly asynchronous, holds. Raises: AssertionError after a deadline."""
    await wait_until_async(condition, what)
