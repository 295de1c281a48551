"""The vhosts of the broker: each has an engine and a store, and can be added or deleted while the others work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Protocol

from broker.amqp.errors import NodeLost
from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.core.vhost import Vhost
from broker.delivery.engine import Engine
from broker.delivery.engine_parts import LocalParts
from broker.delivery.turn import Turn
from broker.event_log import get_logger
from broker.settings import Settings
from broker.store.damage import CorruptStore, StoreFailed
from broker.store.data_folder import DataFolder
from broker.store.recovery import Recovered, RecoveryProgress
from broker.store.store import VhostStore
from broker.tasks import Tasks
from broker.vhosts.recovery_watch import RecoveryWatch

_log = get_logger()

PROGRESS_S: Final = 1.0  # the interval of log events about a long recovery


class SharedEngines(Protocol):
    """The cluster node that provides the parts of the engines. See `BrokerNode`."""

    @property
    def pending_bytes(self) -> int: ...
    def parts_of(self, vhost: str) -> LocalParts: ...
    def deleting(self, vhost: str) -> None: ...


class Vhosts(Mapping[str, "Vhost"]):
    """The vhosts by name, in which a connection looks up its vhost.

    Shapes: `offline` maps each offline vhost to the reason why clients cannot open it. A vhost remains offline until a
        start finds its store intact or quarantines the damage.
    Invariant: a vhost is in the mapping from its first use until it is deleted or offline; its engine exists longer.
    """

    def __init__(
        self,
        folder: DataFolder,
        settings: Settings,
        turn: Turn,
        loop: asyncio.AbstractEventLoop,
        *,
        generate: Callable[[], str],
        fail: Callable[[BaseException], None],
        sealed: Callable[[str], Mapping[int, int]],
        shared: SharedEngines | None = None,
    ) -> None:
        """`sealed` returns the `sealed` argument of `Engine.restore` for a vhost; `shared` is the node of a cluster."""
        self._folder = folder
        self._settings = settings
        self._turn = turn
        self._loop = loop
        self._generate = generate
        self._fail = fail
        self._tasks = Tasks(fail)
        self._by_name: dict[str, Vhost] = {}
        self._sealed = sealed
        self._shared = shared
        self._leave: list[Callable[[Engine], Awaitable[None]]] = []
        self._forget: list[Callable[[str], Awaitable[None]]] = []
        self._opened: list[Callable[[Engine], None]] = []
        self._close_connections: Callable[[Vhost, str], None]
        self.engines: dict[str, Engine] = {}
        self.offline: dict[str, str] = {}
        self._going_offline: dict[str, asyncio.Task[None]] = {}
        self._saves_space = False
        self._alarm = ""

    def close_with(self, close_connections: Callable[[Vhost, str], None]) -> None:
        """Set the function that closes the connections of a vhost when it goes offline, with the reason."""
        self._close_connections = close_connections

    def before_close(self, leave: Callable[[Engine], Awaitable[None]]) -> None:
        """Call `leave` before the engine of a deleted or offline vhost ends."""
        self._leave.append(leave)

    def on_delete(self, forget: Callable[[str], Awaitable[None]]) -> None:
        """Call `forget` with the name of a vhost that is deleted, even if it is offline."""
        self._forget.append(forget)

    def on_open(self, opened: Callable[[Engine], None]) -> None:
        """Call `opened` when a vhost is opened, before any client uses it."""
        self._opened.append(opened)

    def apply_settings(self, settings: Settings) -> None:
        """Apply changed settings to every vhost."""
        self._settings = settings
        for engine in self.engines.values():
            engine.apply_settings(settings)

    def __getitem__(self, name: str) -> Vhost:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def fits(self, name: str) -> bool:
        """Return whether a name has 1 to 255 bytes, as AMQP requires."""
        return 0 < len(name.encode("utf-8", "replace")) <= SHORT_STRING_MAX_BYTES

    def is_down(self, name: str) -> bool:
        return name in self.offline

    async def open_all(self, names: Iterable[str], watch: RecoveryWatch, *, expected: bool) -> None:
        """Open vhosts from their folders at startup; a vhost with a damaged store goes offline.

        A thread recovers the stores, one after another, while the loop runs. No vhost starts before all stores are
        recovered, because nothing may expire before the policies are known. When the caller is cancelled, the
        recovery stops and every store is closed.
        Shapes: `expected` means that every vhost must have a store; otherwise vhosts may be new.
        Raises: NewerFormat; StoreFailed when none can be opened.
        """
        failed: StoreFailed | None = None
        opened: dict[str, tuple[VhostStore, Recovered]] = {}
        wanted = list(names)
        try:
            for number, name in enumerate(wanted, 1):
                watch.begin(name, number, len(wanted))
                try:
                    opened[name] = await self._recover_store(name, watch, expected=expected)
                except StoreFailed as error:
                    failed = failed or error
                    self._note_offline(name, error)
            for name in list(opened):
                try:
                    await self._start(name, *opened.pop(name))
                except StoreFailed as error:
                    failed = failed or error
                    engine = self.engines.pop(name, None)
                    if engine is not None:
                        engine.close()
                    self._note_offline(name, error)
        finally:
            watch.end()
            for store, recovered in opened.values():
                store.close(clean=recovered.clean)
        if failed is not None and not self._by_name:
            raise failed

    async def _recover_store(self, name: str, watch: RecoveryWatch, *, expected: bool) -> tuple[VhostStore, Recovered]:
        """Recover a store in a thread, and log the progress once a second."""
        work = self._loop.run_in_executor(None, self._open_store, name, watch.report, expected)
        try:
            while not (await asyncio.wait([work], timeout=PROGRESS_S))[0]:
                watch.log()
        except asyncio.CancelledError:
            watch.stop()
            while not work.done():  # the folder must stay locked until all writes have ended
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([work])
            if work.exception() is None:
                store, recovered = work.result()
                store.close(clean=recovered.clean)
            raise
        return work.result()

    def take_offline(self, name: str, error: CorruptStore) -> None:
        """Close the connections of a vhost whose store is damaged, and end its engine; the other vhosts keep working.

        The broker ends when its last vhost goes offline.
        """
        vhost = self.hide(name)
        self._note_offline(name, error)
        if not self._by_name:
            self._fail(error)
            return
        vhost.answers.abandon()
        self._close_connections(vhost, f"vhost '{name}' is down")
        self._going_offline[name] = self._tasks.start(self._close_damaged(name, error))

    async def _close_damaged(self, name: str, error: CorruptStore) -> None:
        """Write the records that an offline vhost has appended, and close its store."""
        engine = self.engines[name]
        await engine.finish_sliced()  # a caller may be waiting for this work
        await self._finish(engine)
        await engine.abandon(error.with_traceback(None))  # a traceback would refer to the engine, which keeps the error
        del self.engines[name]  # before the next turn of the loop, because waiting for this engine fails from now on
        if self._shared is None:  # in a cluster, the vhost still follows the changes of other nodes
            await engine.dismantle()

    async def _finish(self, engine: Engine) -> None:
        """Write the records that an ending engine has appended, and call the functions of `before_close`."""
        with suppress(NodeLost):
            await engine.committer.drain()
        for leave in self._leave:
            await leave(engine)

    def _note_offline(self, name: str, error: StoreFailed) -> None:
        reason = self.offline[name] = str(error)
        _log.error("vhost.offline", vhost=name, reason=reason)

    async def add(self, name: str) -> Vhost:
        """Create and return a vhost. A thread creates its files. Raises: StoreFailed if they cannot be created."""
        return await self._start(name, *await self._loop.run_in_executor(None, self._open_store, name))

    def hide(self, name: str) -> Vhost:
        """Remove a vhost from the mapping, so that no connection can open it, and return it."""
        return self._by_name.pop(name)

    async def remove(self, name: str) -> None:
        """End the engine of a hidden vhost, if it still has one, and remove its folder. Raises: StoreFailed."""
        if name in self._going_offline:
            await asyncio.wait([self._going_offline.pop(name)])
        engine = self.engines.get(name)
        if engine is not None:
            await self._finish(engine)
        for forget in self._forget:
            await forget(name)
        if self._shared is not None:
            self._shared.deleting(name)
        if engine is not None:
            await engine.discard()
            del self.engines[name]
        await self._loop.run_in_executor(None, self._folder.remove_vhost, name)

    def pending_bytes(self) -> int:
        """Return the number of bytes in memory that are not in log files yet. Cost: O(vhosts), once a turn."""
        shared_bytes = 0 if self._shared is None else self._shared.pending_bytes
        return shared_bytes + sum([engine.store.log.pending_bytes for engine in self.engines.values()])

    def save_space(self, on: bool) -> None:
        """Keep only one checkpoint of each vhost while the disk has little space, two otherwise."""
        self._saves_space = on
        for engine in self.engines.values():
            engine.save_space(on=on)

    def set_alarm(self, reason: str) -> None:
        """Set the reason why an alarm blocks the publishers of all vhosts, new ones included; "" ends the alarm."""
        self._alarm = reason
        for engine in self.engines.values():
            engine.vhost.set_alarm(reason)

    def log_positions(self) -> list[int]:
        return [engine.store.log.position for engine in self.engines.values()]

    def page(self) -> None:
        """Recount the messages in memory; called ten times a second. The vhosts share one budget: each may use what the
        others leave, and if together they exceed the budget, each has to release the same fraction.
        """
        engines = list(self.engines.values())
        limit_bytes = self._settings.memory.resident_max_bytes
        total_bytes = sum([engine.pager.resident_bytes for engine in engines])
        for engine in engines:
            own_bytes = engine.pager.resident_bytes
            if total_bytes <= limit_bytes:
                engine.pager.set_budget(limit_bytes - total_bytes + own_bytes)
            else:
                engine.pager.set_budget(own_bytes * limit_bytes // total_bytes)
            engine.page()

    def tick(self) -> None:
        """Repair queue logs and start the checkpoints that are due; called once a second."""
        for engine in list(self.engines.values()):
            engine.tick()

    async def drain(self) -> None:
        """Wait until everything appended so far to open vhosts is on disk. Raises: as `Committer.drain`."""
        for engine in self._open_engines():
            await engine.committer.drain()

    async def finish_sliced(self) -> None:
        """Finish work that takes several turns, such as requeuing the messages of the last clients."""
        for engine in self._open_engines():
            await engine.finish_sliced()

    def _open_engines(self) -> Iterator[Engine]:
        """Yield the engines of open vhosts, without those that go offline or are deleted during the iteration."""
        for name, engine in list(self.engines.items()):
            if name in self and self.engines[name] is engine:
                yield engine

    async def stop(self, stopping: Callable[[str], None]) -> None:
        """Take clean checkpoints and close the stores; call `stopping` with the name of each vhost that has to write.

        A node of a cluster has nothing to write.
        """
        for engine in list(self.engines.values()):
            await engine.reader.finish()  # a read may find damage, which takes its vhost offline
        if self._going_offline:
            await asyncio.wait(self._going_offline.values())
        for engine in list(self.engines.values()):
            if self._shared is None:
                stopping(engine.vhost.name)
            await engine.stop()

    def abort(self, failure: BaseException) -> None:
        """Stop confirming, because the broker has failed."""
        for engine in self.engines.values():
            engine.committer.abort(failure)

    def close(self, *, unchanged: bool = False) -> None:
        """Close the remaining engines. `unchanged` means that nothing happened since the stores were opened."""
        for engine in self.engines.values():
            engine.close(clean=unchanged and engine.recovered_clean)

    def _open_store(
        self, name: str, progress: Callable[[RecoveryProgress], None] | None = None, expected: bool = False
    ) -> tuple[VhostStore, Recovered]:
        settings, alone = self._settings, self._shared is None
        return VhostStore.open(
            self._folder.files,
            self._folder.vhost_folder(name) if alone else self._folder.empty_folder(name),
            segment_bytes=settings.store.segment_bytes,
            sync=settings.store.sync and alone,
            progress=progress,
            quarantine=settings.store.quarantines,
            window_messages=settings.slots.window_messages,
            window_bytes=settings.slots.window_bytes,
            expected=expected and alone,
        )

    async def _start(self, name: str, store: VhostStore, recovered: Recovered) -> Vhost:
        def fail(error: BaseException) -> None:
            if not isinstance(error, CorruptStore):
                self._fail(error)
            elif name in self and self.engines[name].store is store:  # else it is already offline, or being deleted
                self.take_offline(name, error)

        parts = LocalParts() if self._shared is None else self._shared.parts_of(name)
        engine = Engine(
            name, store, self._settings, self._turn, self._loop, generate=self._generate, fail=fail, parts=parts
        )
        self.engines[name] = engine
        engine.restore(recovered, self._sealed(name))
        if engine.deduplicates:
            await self._loop.run_in_executor(None, engine.read_duplicates)
        self._turn.engines.append(engine)
        self._by_name[name] = engine.vhost
        if self._saves_space:
            engine.save_space(on=True)
        engine.vhost.set_alarm(self._alarm)
        for opened in self._opened:
            opened(engine)
        if recovered.records or recovered.messages:
            _log.info(
                "store.recovered",
                vhost=name,
                clean=recovered.clean,
                messages=recovered.messages,
                records=recovered.records,
                cut_bytes=recovered.cut_bytes,
            )
        return engine.vhost
