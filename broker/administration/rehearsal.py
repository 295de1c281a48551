"""Copies of vhosts in memory, on which changes that may be refused are tried first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.administration.slices import run_in_slices
from broker.core.confirmable import Confirmable
from broker.core.deadlines import Clock, Deadlines
from broker.core.publishing.local_store import LocalStore
from broker.core.queue.kinds import kind_of
from broker.core.queue.level import Level
from broker.core.queue.level_owner import QueueWorker
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.topology.changes import Journal
from broker.core.vhost import Vhost
from broker.delivery.engine_parts import new_vhost
from broker.routing.exchange import Exchange
from broker.settings import Settings
from broker.slots.states import Owner
from broker.store.memory_files import MemoryFiles
from broker.store.store import VhostStore


@dataclass(slots=True)
class Touched:
    """The exchanges and queues of a vhost that a change names, and the number of bindings that it may add."""

    exchanges: set[str] = field(default_factory=set)
    queues: set[str] = field(default_factory=set)
    bindings: int = 0

    def add_binding(self, source: str, destination: str, *, to_exchange: bool) -> None:
        """Add a binding and its source and destination."""
        self.exchanges.add(source)
        (self.exchanges if to_exchange else self.queues).add(destination)
        self.bindings += 1


class _Idle(QueueWorker[Queue]):
    """The worker and committer of a vhost in which nothing is published."""

    def __init__(self) -> None:
        self.owner = Owner("rehearsal", "")

    def wake(self, queue: Queue) -> None:
        """Serve nothing."""

    def serve(self, queue: Queue) -> None:
        """Serve nothing."""

    def serve_first(self, queue: Queue) -> int:
        """Deliver nothing."""
        return 0

    def wait(self, confirmable: Confirmable) -> None:
        """Confirm nothing."""


def _ignore(*_arguments: object) -> None:
    """Do nothing, because a copy has no messages and journals nothing."""


class Rehearsal:
    """Create copies of vhosts in memory, with the exchanges and queues that a change names, and without messages.

    A copy has no engine: it delivers nothing, writes nothing and has no timers.
    """

    def __init__(
        self, vhosts: Mapping[str, Vhost], settings: Settings, clock: Clock, generate: Callable[[], str]
    ) -> None:
        """`generate` returns the random part of a generated name."""
        self._vhosts = vhosts
        self._settings = settings
        self._clock = clock
        self._generate = generate

    def apply_settings(self, settings: Settings) -> None:
        """Use changed settings for later copies."""
        self._settings = settings

    @asynccontextmanager
    async def __call__(self, touched: Mapping[str, Touched]) -> AsyncIterator[dict[str, Vhost]]:
        """Yield copies of the touched vhosts by name; the copy of a vhost that does not exist is empty.

        Vhosts are copied in slices: a change that a client makes in the meantime may or may not be in the copy.
        """
        with ExitStack() as stores:
            copies = {name: self._empty(name, stores) for name in touched}
            try:
                for name, copy in copies.items():
                    if name in self._vhosts:
                        await run_in_slices(copying(self._vhosts[name], copy, touched[name]))
                yield copies
            finally:
                for copy in copies.values():
                    await run_in_slices(_emptying(copy))

    def _empty(self, name: str, stores: ExitStack) -> Vhost:
        store, _nothing = VhostStore.open(
            MemoryFiles(), Path("rehearsal"), segment_bytes=self._settings.store.segment_bytes, sync=False
        )
        stores.callback(store.close)
        idle = _Idle()
        ports = QueuePorts[Level, Queue](
            store=store,
            assign=lambda _queue: idle,
            retire=_ignore,
            opened=_ignore,
            read=_ignore,
            moments=_ignore,
            fetch=_ignore,
            measure=_ignore,
            deadlines=Deadlines(self._clock),
            kind_of=kind_of,
            level_of=Level,
        )
        return new_vhost(
            name,
            self._settings,
            ports,
            idle,
            share=_ignore,
            journal_of=lambda _: Journal(),
            record=_ignore,
            store_of=lambda _: LocalStore(store.recorder),
            generate=self._generate,
        )


def copying(source: Vhost, copy: Vhost, touched: Touched) -> Generator[None, None, None]:
    """Declare the touched exchanges and queues of `source` in an empty `copy`, one per step.

    If a limit may refuse one of them, all exchanges, queues and bindings are declared, because they count towards it.
    """
    copy.queues.reserve_numbers(source.queues.next_number)
    copy.limits.copy_from(source.limits)
    whole = not _has_room(source, touched)
    exchanges: Iterable[Exchange] = list(source.exchanges.values())
    queues: Iterable[Queue] = list(source.queues.values())
    if not whole:  # generators, because a change may name very many objects
        exchanges = (source.exchanges[name] for name in touched.exchanges if name in source.exchanges)
        queues = (source.queues[name] for name in touched.queues if name in source.queues)
    for exchange in exchanges:
        if exchange.name not in copy.exchanges:
            copy.exchanges.add(
                exchange.name,
                exchange.type,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=exchange.arguments,
            )
        yield
    for queue in queues:
        _copy_queue(queue, copy)
        yield
    if whole:
        yield from _copying_bindings(list(source.exchanges.values()), copy)


def _has_room(source: Vhost, touched: Touched) -> bool:
    """Return whether the limits of a vhost allow everything that a change may add."""
    limits = source.limits
    return (
        source.exchanges.declared_count + len(touched.exchanges) <= limits.exchanges_max
        and source.queues.declared_count + len(touched.queues) <= limits.queue_limit
        and source.bindings.live.count + touched.bindings <= limits.bindings_max
    )


def _copying_bindings(exchanges: list[Exchange], copy: Vhost) -> Generator[None, None, None]:
    for exchange in exchanges:
        if exchange.name:  # each queue is bound to the default exchange by its name
            for bundle in list(exchange.bundles.values()):
                for key, arguments in bundle.copy().items():
                    _copy_binding(exchange.name, bundle.destination, key, arguments, copy)
                    yield


def _emptying(copy: Vhost) -> Generator[None, None, None]:
    """Delete the queues and exchanges of a copy, one per step, so that they are freed in slices."""
    for exchange in copy.exchanges.declared():  # the queue of a delayed exchange is deleted with it
        copy.exchanges.delete(exchange.name)
        yield
    for queue in list(copy.queues.values()):
        if queue.name in copy.queues:
            copy.queues.drop(queue)
        yield


def _copy_queue(queue: Queue, copy: Vhost) -> None:
    if queue.name not in copy.queues:  # a delayed exchange has declared its own queue
        copy.queues.add(queue.declaration)


def _copy_binding(source: str, to: Queue | Exchange, key: str, arguments: Mapping[str, Any], copy: Vhost) -> None:
    """Bind in the copy, unless an end was created while the vhost was being copied."""
    exchange = copy.exchanges.get(source)
    destination = copy.queues.get(to.name) if isinstance(to, Queue) else copy.exchanges.get(to.name)
    if exchange is not None and destination is not None:
        copy.bindings.live.add(exchange, destination, key, arguments)
