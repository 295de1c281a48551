"""Vhosts in memory, as the real ones are at this moment, in which something can be tried that may be refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.core.queue.queue import Queue
from broker.delivery.engine import Engine
from broker.store.memory_files import MemoryFiles
from broker.store.store import VhostStore

if TYPE_CHECKING:
    from broker.core.vhost import Vhost
    from broker.delivery.turn import Turn
    from broker.delivery.vhosts import Vhosts
    from broker.routing.binding import Binding
    from broker.routing.exchange import Exchange
    from broker.settings import Settings

__all__ = ["Rehearsal"]

COPIES_AT_ONCE: Final = 100


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

    def take_settings(self, settings: Settings) -> None:
        """Go by changed settings."""
        self._settings = settings

    @asynccontextmanager
    async def __call__(self, names: Iterable[str]) -> AsyncIterator[dict[str, Vhost]]:
        """Yield copies of vhosts by name, empty ones where there is no such vhost, and disposes of them.

        A long vhost is copied in pieces: what somebody changes meanwhile may be in the copy or not.
        """
        engines = {name: self._engine(name) for name in names}
        try:
            for name, engine in engines.items():
                if name in self._vhosts:
                    for done, copied in enumerate(copying(self._vhosts[name], engine.vhost), 1):
                        copied()
                        if done % COPIES_AT_ONCE == 0:
                            await asyncio.sleep(0)
            yield {name: engine.vhost for name, engine in engines.items()}
        finally:
            for engine in engines.values():
                engine.close()

    def _engine(self, name: str) -> Engine:
        store, _nothing = VhostStore.open(
            MemoryFiles(), Path("rehearsal"), segment_bytes=self._settings.store.segment_bytes, sync=False
        )
        return Engine(name, store, self._settings, self._turn, self._loop, generate=self._generate, fail=self._fail)


def copying(source: Vhost, copy: Vhost) -> list[Callable[[], object]]:
    """Return what makes in an empty vhost what another has, one step each; the queues are owned by the same
    connections.
    """
    copy.next_queue_number = source.next_queue_number
    copy.limits = source.limits
    steps: list[Callable[[], object]] = [
        partial(
            copy.exchanges.add,
            exchange.name,
            exchange.type,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            arguments=exchange.arguments,
        )
        for exchange in source.exchanges.values()
        if exchange.name not in copy.exchanges
    ]
    steps += [partial(_copy_queue, queue, copy) for queue in source.queues.values()]
    steps += [
        partial(_copy_binding, exchange.name, binding, copy)
        for exchange in source.exchanges.values()
        if exchange.name  # each queue is bound to the default exchange by its name already
        for binding in exchange.bindings
    ]
    return steps


def _copy_queue(queue: Queue, copy: Vhost) -> None:
    if queue.name not in copy.queues:  # those of delayed exchanges came with them
        copy.queues.add(
            queue.name,
            number=queue.number,
            durable=queue.durable,
            exclusive_owner=queue.exclusive_owner,
            auto_delete=queue.auto_delete,
            arguments=queue.arguments,
        )


def _copy_binding(source: str, binding: Binding, copy: Vhost) -> None:
    to: Queue | Exchange = binding.destination
    destination = copy.queues[to.name] if isinstance(to, Queue) else copy.exchanges[to.name]
    copy.bindings.add(copy.exchanges[source], destination, binding.key, binding.arguments)
