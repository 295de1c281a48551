"""Plain ØMQ sockets, and a broker with bridges in the test's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import zmq

from broker.testing import Broker
from tests.deadline import wait_until_async
from tests.in_process import timed_broker
from tests.tap_files import channel_of

__all__ = ["Peers", "bindings", "bridge_rows", "bridged", "endpoint_of", "peers", "take", "until"]

ANY = "tcp://127.0.0.1:*"


class Peers:
    """ØMQ sockets of one context."""

    def __init__(self) -> None:
        self._context: Any = zmq.Context()
        self._sockets: list[Any] = []

    def socket(self, kind: int, *, connect: str = "", bind: str = "", **options: Any) -> Any:
        """Return a socket; options are named as in ØMQ, without ZMQ_."""
        socket = self._context.socket(kind)
        socket.linger = 0
        self._sockets.append(socket)
        for name, value in options.items():
            for one in value if isinstance(value, list) else [value]:
                socket.set(getattr(zmq, name), one)
        if connect:
            socket.connect(connect)
        if bind:
            socket.bind(bind)
        return socket

    def end(self) -> None:
        """Close all sockets."""
        self._context.destroy(linger=0)


@contextmanager
def peers() -> Iterator[Peers]:
    """Yield a Peers, whose sockets are closed at the end."""
    made = Peers()
    try:
        yield made
    finally:
        made.end()


@asynccontextmanager
async def bridged(
    folder: Path, *, wait: bool = True, sections: dict[str, Any] | None = None, **zmq_settings: Any
) -> AsyncIterator[tuple[Broker, Any, Peers]]:
    """Yield a broker with bridges and the exchange x, a client's channel, and sockets; `wait` until bridges are up."""
    zmq_settings = {
        kind: [{"endpoint": ANY, "exchange": "x", **one} for one in endpoints]
        for kind, endpoints in zmq_settings.items()
    }
    async with timed_broker(folder, zmq=zmq_settings, **(sections or {})) as broker, channel_of(broker) as channel:
        await channel.declare_exchange("x", "topic", durable=True)
        if wait:
            await until(lambda: all(row["state"] == "up" for row in bridge_rows(broker)), "the bridges")
        with peers() as made:
            yield broker, channel, made


def bridge_rows(broker: Broker) -> list[dict[str, Any]]:
    """Return the facts of all bridges."""
    return broker.server.zmq.facts()


def endpoint_of(broker: Broker, place: int = 0) -> str:
    """Return the endpoint of a bridge."""
    return str(bridge_rows(broker)[place]["endpoint"])


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds. Raises: AssertionError after a deadline."""
    await wait_until_async(condition, what)


async def take(socket: Any, count: int) -> list[list[bytes]]:
    """Return the next messages of a socket."""
    found: list[list[bytes]] = []

    def more() -> bool:
        try:
            while len(found) < count:
                found.append(socket.recv_multipart(zmq.DONTWAIT))
        except zmq.Again:
            return False
        return True

    await until(more, f"{count} messages")
    return found


def bindings(broker: Broker, exchange: str = "x") -> list[str]:
    """Return the keys of all bindings of an exchange."""
    found = broker.server.engines["/"].vhost.exchanges[exchange]
    return sorted(key for bundle in found.bundles.values() for key, _ in bundle.items())
