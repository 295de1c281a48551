"""What an idle connection with one channel keeps in memory, which many small additions let grow once."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from broker.server import BrokerServer
from tests.in_process import running_broker
from tests.raw_client import RawClient

CONNECTIONS = 20
EACH_MAX_BYTES = 4000
"""What the objects of the broker take, 3,973 now; socket and event loop come on top. An empty list takes 56."""


def open_clients(broker: BrokerServer, opened: ExitStack) -> None:
    """Open idle connections with one channel each."""
    for _ in range(CONNECTIONS):
        client = opened.enter_context(RawClient("127.0.0.1", broker.listener.port))
        client.open()
        client.open_channel(1)


def own_bytes(new: list[Any], known: set[int]) -> Counter[str]:
    """Return the bytes by type of the broker's objects among `new`, with the values that they alone hold."""
    sizes: Counter[str] = Counter()
    counted = set(known)
    for one in new:
        if type(one).__module__.startswith("broker."):
            for held in (one, *gc.get_referents(one)):
                if id(held) not in counted and not isinstance(held, type) and of_a_connection(held):
                    counted.add(id(held))
                    sizes[type(held).__qualname__] += sys.getsizeof(held)
    return sizes


def of_a_connection(held: object) -> bool:
    """Return whether an object is one of the broker's, or a plain value."""
    kind = type(held)
    return kind.__module__ == "builtins" or kind.__module__.startswith("broker.")


async def test_an_idle_connection_stays_small(tmp_path: Path) -> None:
    """The objects of an idle connection and of its channel take no more than they did."""
    async with running_broker(tmp_path) as broker:
        with ExitStack() as opened:
            await asyncio.to_thread(open_clients, broker, opened)
            gc.collect()
            gc.unfreeze()
            before = gc.get_objects()
            known = {id(one) for one in before}
            await asyncio.to_thread(open_clients, broker, opened)
            gc.collect()
            gc.unfreeze()
            sizes = own_bytes([one for one in gc.get_objects() if id(one) not in known], known)
    each = {kind: size // CONNECTIONS for kind, size in sizes.most_common() if size >= CONNECTIONS * 16}
    assert sum(sizes.values()) / CONNECTIONS <= EACH_MAX_BYTES, each
