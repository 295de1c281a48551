"""Overlays of single vhosts in real brokers, and copies of brokers as after kill -9."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path

from broker.overlay.packets import Data, Element, Space, StreamName
from broker.overlay_node.exchange_log import ExchangeLog
from broker.overlay_node.vhost_overlay import VhostOverlay
from broker.testing import Broker, VirtualClock
from tests.in_process import timed_broker

ALL = 1 << 60
COPIES = count()


def overlay_of(broker: Broker, pattern: str = "*") -> VhostOverlay:
    """Return an overlay of the vhost "/" and its exchanges with matching names; its turns are not scheduled."""
    names = lambda name: bool(name) and not name.startswith("amq.") and fnmatchcase(name, pattern)  # noqa: E731
    overlay = VhostOverlay(broker.server.vhosts["/"], names, lambda: None)
    overlay.begin()
    return overlay


async def recover(stream: ExchangeLog) -> ExchangeLog:
    """Wait until a stream has read the changes of its vector, and return it."""
    recovered = asyncio.Event()
    stream.recover(recovered.set)
    await recovered.wait()
    return stream


async def read(stream: ExchangeLog, first: int = 1, last: int = ALL, limit_bytes: int = ALL) -> list[Element]:
    """Return the elements of a stream, in as many reads as necessary."""
    elements: list[Element] = []
    ready = asyncio.Event()
    stream.when_ready(ready.set)
    last = min(last, stream.last)
    while first <= last:
        stretch = stream.read(first, last, limit_bytes)
        if stretch is None:
            await ready.wait()
            ready.clear()
        else:
            assert all(first <= one.number <= stretch.last for one in stretch.elements)
            elements += stretch.elements
            first = stretch.last + 1
    return elements


def told(elements: Iterable[Element]) -> list[tuple[int, str]]:
    """Return numbers and routing keys; a change of the vector has the key `vector`."""
    return [(one.number, one.key if isinstance(one, Data) else "vector") for one in elements]


async def pass_on(
    source: VhostOverlay, to: VhostOverlay, exchange: str = "x", first: int = 1, start: int | None = None
) -> int:
    """Publish a stream from a number on at another broker as leaf `pb`, and return the last number."""
    for element in await read(source.streams[exchange], first):
        if isinstance(element, Data):
            to.ingress.publish(StreamName("pb", Space(to.vhost.name, exchange)), element, start)
    return source.streams[exchange].last


@asynccontextmanager
async def crashed(broker: Broker, tmp_path: Path) -> AsyncIterator[Broker]:
    """Yield a broker on a copy of the data folder, as after kill -9."""
    folder = tmp_path / f"crashed-{next(COPIES)}"
    await asyncio.to_thread(shutil.copytree, broker.settings.server.data_dir, folder)
    window = {"window_messages": broker.settings.slots.window_messages}
    async with timed_broker(folder, clock=VirtualClock(broker.clock()), slots=window) as again:
        yield again
