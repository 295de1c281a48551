"""The memory of an idle connection with one channel, which many small additions let grow once."""

from __future__ import annotations

import asyncio
import gc
from contextlib import ExitStack
from pathlib import Path

from broker.server import BrokerServer
from tests.in_process import running_broker
from tests.own_objects import own_bytes
from tests.raw_client import RawClient

CONNECTIONS = 20
EACH_MAX_BYTES = 4160
"""What the objects of the broker take, 4,118 now; socket and event loop come on top. An empty list takes 56."""


def open_clients(broker: BrokerServer, opened: ExitStack) -> None:
    """Open idle connections with one channel each."""
    for _ in range(CONNECTIONS):
        client = opened.enter_context(RawClient("127.0.0.1", broker.listener.port))
        client.open()
        client.open_channel(1)


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
