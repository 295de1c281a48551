"""Rehearsal: copy vhosts in memory, so that changes which may be refused can be tried on the copies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.core.deadlines import Deadlines
from broker.core.publishing.local_store import LocalStore
from broker.core.queue.kinds import kind_of
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.queue.stream import Stream
from broker.core.queue.stream_owner import QueueWorker
from broker.core.topology.journal import LocalJournal
from broker.delivery.new_vhost import new_vhost
from broker.slots.states import Owner
from broker.store.memory_files import MemoryFiles
from broker.store.store import VhostStore

if TYPE_CHECKING:
    from broker.core.confirmable import Confirmable
    from broker.core.deadlines import Clock
    from broker.core.vhost import Vhost
    from broker.routing.binding import Binding
    from broker.routing.exchange import Exchange
    from broker.settings import Settings

__all__ = ["Rehearsal"]

COPIES_AT_ONCE: Final = 100


class _Idle(QueueWorker[Queue]):
    """The worker and committer of a vhost in which nothing is published."""

    def __init__(self) -> None:
        self.owner = Owner("rehearsal", "")

    def wake(self, queue: Queue) -> None:
        """Serve nothing."""

    def serve(self, queue: Queue) -> None:
        """Serve nothing."""

    def serve_first(self, queue: Queue) -> int:
        """Hand out nothing."""
        return 0

    def wait(self, confirmable: Confirmable) -> None:
        """Confirm nothing."""


def _ignore(*_arguments: object) -> None:
    """Do nothing: a copy has no messages, journals nothing and expires nothing."""


class Rehearsal:
    """The maker of copies of vhosts in memory: their exchanges, queues and bindings, without messages.

    A copy has no engine: nothing is delivered there, written or timed.
    """

    def __init__(
        self, vhosts: Mapping[str, Vhost], settings: Settings, clock: Clock, generate: Callable[[], str]
    ) -> None:
        """`generate` is that of `Vhost`."""
        self._vhosts = vhosts
        self._settings = settings
        self._clock = clock
        self._generate = generate

    def take_settings(self, settings: Settings) -> None:
        """Apply changed settings, from the next copy on."""
        self._settings = settings

    @asynccontextmanager
    async def __call__(self, names: Iterable[str]) -> AsyncIterator[dict[str, Vhost]]:
        """Yield copies of vhosts by name, empty ones where there is no such vhost.

        A long vhost is copied in slices: a change that a client makes meanwhile may be in the copy or not.
        """
        with ExitStack() as stores:
            copies = {name: self._empty(name, stores) for name in names}
            for name, copy in copies.items():
                if name in self._vhosts:
                    for done, copied in enumerate(copying(self._vhosts[name], copy), 1):
                        copied()
                        if done % COPIES_AT_ONCE == 0:
                            await asyncio.sleep(0)
            yield copies

    def _empty(self, name: str, stores: ExitStack) -> Vhost:
        store, _nothing = VhostStore.open(
            MemoryFiles(), Path("rehearsal"), segment_bytes=self._settings.store.segment_bytes, sync=False
        )
        stores.callback(store.close)
        idle = _Idle()
        ports = QueuePorts[Stream, Queue](
            store=store,
            assign=lambda _queue: idle,
            retire=_ignore,
            kept=_ignore,
            read=_ignore,
            moments=_ignore,
            fetch=_ignore,
            measure=_ignore,
            clock=self._clock,
            deadlines=Deadlines(),
            bury=_ignore,
            unused=_ignore,
            kind_of=kind_of,
            stream_of=Stream,
        )
        journal = LocalJournal(_ignore)
        return new_vhost(
            name,
            self._settings,
            ports,
            idle,
            share=_ignore,
            journal=journal,
            store=LocalStore(store.recorder),
            generate=self._generate,
        )


def copying(source: Vhost, copy: Vhost) -> list[Callable[[], object]]:
    """Return the steps that declare the exchanges, queues and bindings of a vhost in an empty one.

    An exclusive queue has the same owner in both.
    """
    copy.queues.reserve_numbers(source.queues.next_number)
    copy.limits.take(source.limits)
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
        if exchange.name  # each queue is bound to the default exchange by its name
        for binding in exchange.bindings
    ]
    return steps


def _copy_queue(queue: Queue, copy: Vhost) -> None:
    if queue.name not in copy.queues:  # the queue of a delayed exchange exists with it
        copy.queues.add(queue.declaration)


def _copy_binding(source: str, binding: Binding, copy: Vhost) -> None:
    to: Queue | Exchange = binding.destination
    destination = copy.queues[to.name] if isinstance(to, Queue) else copy.exchanges[to.name]
    copy.bindings.live.add(copy.exchanges[source], destination, binding.key, binding.arguments)
