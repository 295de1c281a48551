"""Vhosts in memory, as the real ones are at this moment, in which something can be tried that may be refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from broker.delivery.engine import Engine
from broker.store.memory_files import MemoryFiles
from broker.store.store import VhostStore

if TYPE_CHECKING:
    from broker.core.vhost import Vhost
    from broker.delivery.turn import Turn
    from broker.delivery.vhosts import Vhosts
    from broker.settings import Settings

__all__ = ["Rehearsal"]


class Rehearsal:
    """Makes copies of vhosts: their exchanges, queues and bindings, without messages.

    A copy has an engine of its own that no turn ever runs: nothing is delivered there, written or timed.
    """

    def __init__(
        self,
        vhosts: Vhosts,
        settings: Settings,
        turn: Turn,
        loop: asyncio.AbstractEventLoop,
        *,
        generate: Callable[[], str],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._vhosts = vhosts
        self._settings = settings
        self._turn = turn
        self._loop = loop
        self._generate = generate
        self._fail = fail

    @contextmanager
    def __call__(self, names: Iterable[str]) -> Iterator[dict[str, Vhost]]:
        """Yields copies of vhosts by name, empty ones where there is no such vhost, and disposes of them."""
        engines = {name: self._engine(name) for name in names}
        try:
            for name, engine in engines.items():
                if name in self._vhosts:
                    copy_topology(self._vhosts[name], engine.vhost)
            yield {name: engine.vhost for name, engine in engines.items()}
        finally:
            for engine in engines.values():
                engine.close()

    def _engine(self, name: str) -> Engine:
        store, _nothing = VhostStore.open(
            MemoryFiles(), Path("rehearsal"), segment_bytes=self._settings.store.segment_bytes, sync=False
        )
        return Engine(name, store, self._settings, self._turn, self._loop, generate=self._generate, fail=self._fail)


def copy_topology(source: Vhost, copy: Vhost) -> None:
    """Makes in an empty vhost what another has; the queues are owned by the same connections."""
    copy.restore(source.topology())
    for exchange in source.exchanges.values():
        if exchange.name not in copy.exchanges:
            copy.exchanges.add(
                exchange.name,
                exchange.type,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=exchange.arguments,
            )
    for queue in source.queues.values():
        if queue.name not in copy.queues:
            copy.queues.add(
                queue.name,
                number=queue.number,
                durable=queue.durable,
                exclusive_owner=queue.exclusive_owner,
                auto_delete=queue.auto_delete,
                arguments=queue.arguments,
            )
