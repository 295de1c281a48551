"""The slot writer: one task and one thread that move the messages of taps into slot files.

The loop chooses the messages of a file, and the vhost's log is synced before the file is written. The messages are
settled in the tap's queue once the file and its line in the seal log are on disk. After a crash in between, they are in
the queue and in the file, and `Engine.restore` settles them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from typing import Final, TypeVar

from broker.core.deadlines import Clock
from broker.core.message.message import OVERHEAD_BYTES
from broker.core.queue.kinds import TapQueue
from broker.core.queue.level import Level
from broker.delivery.engine import Engine
from broker.event_log import get_logger
from broker.settings import Settings
from broker.slot_files.seal_log import Seal
from broker.slot_files.slot_folder import SlotFolder
from broker.store.damage import CorruptStore, StoreFailed
from broker.store.store import VhostStore
from broker.taps.slot_rows import Piece, copy_pieces, gather, unpin
from broker.tasks import Tasks

_log = get_logger()

RETRY_S: Final = 2.0  # the time before a retry, if a file could not be written
SLOTS_AT_ONCE: Final = 4  # slots settled in one turn of the loop, in less than a millisecond
T = TypeVar("T")


class NotWritten(Exception):
    """A slot file could not be written; it was removed, and nothing was settled."""


class SlotWriter:
    """Write the slot files of all taps, one file at a time, in the order in which the taps became due.

    A tap is due when it has enough messages or bytes for a file, when its oldest message has waited as long as the
    tap's window, or when `flush` requests it. While nobody reads a tap, its window grows with each file.
    Invariant: the task that writes a file holds `turn`.
    """

    def __init__(
        self,
        folder: SlotFolder,
        engines: Mapping[str, Engine],
        settings: Callable[[], Settings],
        clock: Clock,
        fail: Callable[[BaseException], None],
        keep_free_bytes: int,
    ) -> None:
        """`keep_free_bytes` of the disk are reserved for the logs, because a broker needs free space to start."""
        self.folder = folder
        self.settings = settings
        self.clock = clock
        self._keep_free_bytes = keep_free_bytes
        self._engines = engines
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="slot-writer")
        self.turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._tasks = Tasks(fail)
        self._ends = False
        self._due: dict[TapQueue, Engine] = {}
        self._since_ms: dict[TapQueue, int] = {}  # when a tick first saw the oldest message of a tap
        self._windows_ms: dict[TapQueue, int] = {}  # doubled windows; 0 for a tap that was read since its last file
        self._asked: dict[TapQueue, list[tuple[int, asyncio.Future[None]]]] = {}
        self._retry_at_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether a file is being written or due."""
        return self.turn.locked() or bool(self._due)

    def start(self) -> None:
        self._tasks.start(self._run())

    def tick(self) -> None:
        """Find the taps that are due; called ten times a second. Cost: O(vhosts, and slots of taps)."""
        if self._ends or asyncio.get_running_loop().time() < self._retry_at_s:
            return
        now_ms = self.clock.now_ms
        known, self._since_ms = self._since_ms, {}
        windows, self._windows_ms = self._windows_ms, {}
        for engine in self._engines.values():
            for queue in engine.vhost.queues.taps.values():
                if queue in windows:
                    self._windows_ms[queue] = windows[queue]
                if queue.ready:
                    self._since_ms[queue] = known.get(queue, now_ms)
                    if self._is_due(queue):
                        self._due.setdefault(queue, engine)
        if self._due:
            self._wake.set()

    def note_read(self, queue: TapQueue) -> None:
        """Record that a tap is read, so that its window becomes the configured one."""
        self._windows_ms[queue] = 0

    async def flush(self, engine: Engine, queue: TapQueue) -> None:
        """Wait until all messages now in a tap's queue are in slot files.

        Raises: StoreFailed if a file cannot be written or the vhost closes, or the error that ended the broker.
        """
        if self._ends:
            raise self._stopping()
        self.note_read(queue)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(queue, []).append((queue.level.manager.next_id, future))
        self._due.setdefault(queue, engine)
        self._wake.set()
        await future

    async def alone(self, do: Callable[[], T]) -> T:
        """Run a *blocking* call in the writer's thread while no file is being written. Return its result."""
        async with self.turn:
            return await self.in_thread(do)

    async def in_thread(self, do: Callable[[], T]) -> T:
        """Run a *blocking* call in the writer's thread. Return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, do)

    async def finish_with(self, engine: Engine) -> None:
        """Wait until the writer has finished with a vhost whose store is about to close."""
        engine.retire()
        async with self.turn:
            pass

    def is_gone(self, engine: Engine) -> bool:
        """Return whether the messages of a vhost may no longer be read."""
        return self._ends or engine.retired

    async def close(self) -> None:
        """End the task after the current file."""
        self._ends = True
        self._wake.set()
        await self._tasks.ended()
        async with self.turn:  # a snapshot may still be writing a file
            pass

    def abort(self) -> None:
        """Cancel the task, and end the thread after its current call."""
        self._ends = True
        self._tasks.cancel()
        self._thread.shutdown(wait=True, cancel_futures=True)

    # -- the task -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not self._ends:
                await self._wake.wait()
                self._wake.clear()
                await self._seal_due()
        except Exception as error:  # a lost store, or a defect: nothing may be confirmed after it
            self._ends = True
            self._refuse_all(error)
            raise
        else:
            self._refuse_all(self._stopping())

    def _stopping(self) -> StoreFailed:
        return StoreFailed(self.folder.folder, "the broker stops")

    async def _seal_due(self) -> None:
        while self._due and not self._ends:
            queue = next(iter(self._due))
            engine = self._due.pop(queue)
            try:
                async with self.turn:
                    if engine.retired:
                        self._refuse(queue, StoreFailed(self.folder.folder, "the vhost is deleted or down"))
                        continue
                    if not queue.deleted and (queue in self._asked or self._is_due(queue)):
                        await self._seal(engine, queue)
            except NotWritten as error:
                self._retry_at_s = asyncio.get_running_loop().time() + RETRY_S
                _log.error("slot_file.not_written", tap=queue.tap, vhost=engine.vhost.name, reason=str(error.__cause__))
                self._refuse(queue, error.__cause__ or error)
                continue
            self._answer(queue)
            if queue in self._asked or self._is_due(queue):
                self._due[queue] = engine  # after the other taps that are due

    async def _seal(self, engine: Engine, queue: TapQueue) -> None:
        """Move messages of a tap into one slot file. Raises: NotWritten; StoreFailed."""
        level = queue.level
        level.manager.seal()
        settings = self.settings().taps
        pieces = gather(
            level,
            level.manager.slots,
            below=level.manager.next_id,
            rows_max=settings.window_messages,
            bytes_max=settings.window_bytes,
            mark_redelivered=False,
        )
        if not pieces:
            return
        try:
            await engine.committer.drain()
            seal, end = await self.in_thread(lambda: self._write(engine.vhost.name, queue, engine.store, pieces))
        except CorruptStore as error:
            if not level.deleted:
                engine.retire()
                self._refuse(queue, error)
                engine.fail(error)
            return  # if the level was deleted, its missing records are not an error
        finally:
            unpin(engine.store, pieces)
        await self._settle(engine, level, end)
        self._since_ms[queue] = self.clock.now_ms
        self._widen(queue)
        if seal is not None:
            _log.debug(
                "slot_file.sealed", seal=seal.seal, vhost=seal.vhost, tap=seal.queue, count=seal.count, bytes=seal.bytes
            )

    def _write(self, vhost: str, queue: TapQueue, store: VhostStore, pieces: list[Piece]) -> tuple[Seal | None, int]:
        """Write and seal one file. Return its seal, or None without a file; and the id below which to settle messages.

        *Blocking.* Raises: NotWritten; StoreFailed when nothing may be written any more; CorruptStore.
        """
        number, ahead_ms, window_bytes = queue.level.number, self.clock.ahead_ms, self.settings().taps.window_bytes
        try:
            free_bytes = self.folder.free_bytes()
            if free_bytes < self._keep_free_bytes + window_bytes:
                raise StoreFailed(
                    self.folder.folder, f"the disk has {free_bytes} bytes free, which are reserved for the logs"
                )
            begin = partial(self.folder.begin, vhost, queue.tap, number)
            file, end = copy_pieces(store, number, pieces, begin, window_bytes, ahead_ms)
        except CorruptStore:
            raise
        except StoreFailed as error:
            raise NotWritten from error
        return (None if file is None else self.folder.seal(file, end, ahead_ms)), end

    async def _settle(self, engine: Engine, level: Level, end: int) -> None:
        """Settle the messages below an id, a few slots per turn of the loop."""
        manager = level.manager
        firsts = list(takewhile(end.__gt__, manager.slots))
        for at in range(0, len(firsts), SLOTS_AT_ONCE):
            for first in firsts[at : at + SLOTS_AT_ONCE]:
                slot = manager.slots.get(first)
                if slot is not None and not level.deleted:
                    upto = min(slot.length, end - first)
                    level.settle(slot, manager.take(slot, upto - slot.acks.settled_between(0, upto)))
            engine.log_settled()
            await asyncio.sleep(0)

    # -- what is due --------------------------------------------------------------------------------------------------

    def _window_ms(self, queue: TapQueue) -> int:
        """Return how long a tap's oldest message waits for its slot file."""
        settings = self.settings().taps
        return max(settings.window_ms, min(self._windows_ms.get(queue, 0), settings.window_max_ms))

    def _widen(self, queue: TapQueue) -> None:
        """Double the window of a tap after a file was written, unless the tap was read since the previous file."""
        window_ms = self._window_ms(queue)
        if self._windows_ms.pop(queue, None) != 0:
            self._windows_ms[queue] = min(2 * window_ms, self.settings().taps.window_max_ms)

    def _is_due(self, queue: TapQueue) -> bool:
        settings = self.settings().taps
        if not queue.ready:
            return False
        now_ms = self.clock.now_ms
        age_ms = now_ms - self._since_ms.get(queue, now_ms)
        if age_ms >= self._window_ms(queue) or queue.ready >= settings.window_messages:
            return True
        size_bytes = 0
        for slot in queue.level.manager.slots.values():
            size_bytes += max(slot.bytes - OVERHEAD_BYTES * slot.length, 0)
            if size_bytes >= settings.window_bytes:
                return True
        return False

    def _answer(self, queue: TapQueue) -> None:
        """Complete the calls of `flush` whose messages are in slot files now."""
        front = queue.level.manager.front()
        upto = queue.level.manager.next_id if front is None else front.first + front.front(1)[0]
        waiting = []
        for asked, future in self._asked.pop(queue, ()):
            if queue.deleted or asked <= upto:
                if not future.done():
                    future.set_result(None)
            else:
                waiting.append((asked, future))
        if waiting:
            self._asked[queue] = waiting

    def _refuse(self, queue: TapQueue, error: BaseException) -> None:
        for _, future in self._asked.pop(queue, ()):
            if not future.done():
                future.set_exception(error)

    def _refuse_all(self, error: BaseException) -> None:
        self._due.clear()
        for queue in list(self._asked):
            self._refuse(queue, error)
