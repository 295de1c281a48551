"""Sites of an overlay: real brokers in the test's loop, linked over sockets or within one process."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from broker.overlay.packets import Space
from broker.overlay_node.held_brokers import HeldBrokers
from broker.testing import Broker
from tests.deadline import wait_until_async
from tests.in_process import timed_broker

Neighbour = tuple[str, str, int]
"""A node, a broker of it, and the port where it listens, 0 if it dials or is in the same process."""
X = Space("/", "x")


class Site:
    """One broker process: its logical brokers, and where it listens."""

    def __init__(self, port: int, *nodes: dict[str, Any], **overlay: Any) -> None:
        self.port = port
        self.nodes = nodes
        self.overlay = {"exchanges": ["x*"], **overlay}

    def broker(self, folder: Path, **sections: Any) -> Broker:
        """Return the broker, which does not run yet."""
        sections = {"server": {"port": self.port}, "overlay": {**self.overlay, "node": self.nodes}, **sections}
        return timed_broker(folder, **sections)


def free_port() -> int:
    """Return a port of loopback that no one listens on, from below those that the system gives to clients."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)  # whatever a test seeds `random` with
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
    """Return two leaves that are neighbours; the first one dials."""
    first, second = free_port(), free_port()
    to_b, to_a = (["site-b"], ["site-a"]) if one_way else ((), ())
    return (
        Site(first, overlay("a", "site-a", ("site-b", "b", second), leaf=True, one_way=to_b), **settings),
        Site(second, overlay("b", "site-b", ("site-a", "a", 0), leaf=True, one_way=to_a), **settings),
    )


@asynccontextmanager
async def sites(tmp_path: Path, chain: Sequence[Site], **sections: Any) -> AsyncIterator[list[Broker]]:
    """Yield running brokers, whose folders are numbered."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(site.broker(tmp_path / str(number), **sections))
            for number, site in enumerate(chain)
        ]


async def declared(*channels: Any, kind: str = "topic") -> Any:
    """Declare the exchange x at each site and return that of the first."""
    first, *_ = [await channel.declare_exchange("x", kind, durable=True) for channel in channels]
    return first


def held_by(broker: Broker) -> HeldBrokers:
    """Return the overlay's brokers of a process."""
    found = broker.server.overlay.brokers
    assert found is not None
    return found


def wanted(broker: Broker, node: str, exchange: str = "x") -> list[str] | None:
    """Return what a neighbour node wants of an exchange, None until messages are matched against all that is known.

    A leaf takes another vector for the next message a little after it has heard of a binding; from then on it counts.
    """
    driver = held_by(broker).driver
    assert driver is not None
    space = Space("/", exchange)
    source, interest = driver.leaf.sources.get(space), driver.leaf.interest
    if source is None or dict(source.vector) != interest.vector(node, space):
        return None
    return sorted(interest.roots(node, space))


async def reached(condition: Callable[[], object], what: str) -> None:
    """Return once a condition holds. Raises: AssertionError after a deadline."""

    async def holds() -> bool:
        return bool(condition())

    await wait_until_async(holds, what)


async def eventually(condition: Callable[[], Awaitable[object]], what: str) -> None:
    """Return once an awaited condition holds. Raises: AssertionError after a deadline."""

    async def holds() -> bool:
        return bool(await condition())

    await wait_until_async(holds, what)
