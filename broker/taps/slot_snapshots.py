"""Snapshots: what a queue holds at the moment as slot files, for a reader that came without a tap.

Nothing of the queue changes: what is ready stays ready, what is unacked stays so.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from broker.event_log import get_logger
from broker.taps.slot_rows import copy_pieces, gather, let_go

if TYPE_CHECKING:
    from pathlib import Path

    from broker.core.deadlines import Clock
    from broker.core.queue.queue import Queue
    from broker.core.queue.stream import Stream
    from broker.delivery.engine import Engine
    from broker.settings_storage import TapSettings
    from broker.slot_files.slot_folder import SlotFolder
    from broker.slot_files.snapshot_folder import SnapshotSlot
    from broker.taps.slot_rows import Piece
    from broker.taps.slot_writer import SlotWriter

__all__ = ["NoRoom", "Snapshot", "SnapshotGone", "Snapshots"]

_log = get_logger()

T = TypeVar("T")


class SnapshotGone(ValueError):
    """The queue went while its snapshot was written."""


class NoRoom(ValueError):
    """The disk has too little room for a snapshot: what is left is for the log."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot. Units: ``until_ms`` is when it goes by itself, on the broker's clock."""

    id: str
    store: str
    vhost: str
    queue: str
    files: tuple[SnapshotSlot, ...]
    until_ms: int

    def to_json(self) -> dict[str, Any]:
        """Return what a reader is told."""
        files = [asdict(slot) for slot in self.files]
        return {"id": self.id, "store": self.store, "vhost": self.vhost, "queue": self.queue, "files": files}


class Snapshots(Mapping[str, Snapshot]):
    """The snapshots that are there, by id, and what makes them. Shapes: ``under_way`` are not there yet."""

    def __init__(
        self, folder: SlotFolder, writer: SlotWriter, settings: TapSettings, clock: Clock, keep_free_bytes: int
    ) -> None:
        self._folder = folder
        self._writer = writer
        self._settings = settings
        self._clock = clock
        self._keep_free_bytes = keep_free_bytes
        self._by_id: dict[str, Snapshot] = {}
        self.under_way = 0

    def take_settings(self, settings: TapSettings, keep_free_bytes: int) -> None:
        """Go by changed settings; a snapshot that is there keeps its time."""
        self._settings = settings
        self._keep_free_bytes = keep_free_bytes

    def __getitem__(self, snapshot: str) -> Snapshot:
        return self._by_id[snapshot]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def path(self, snapshot: str, n: int) -> Path:
        """Return where a slot file is. Raises: ValueError when that is no id."""
        return self._folder.snapshots.path(snapshot, n)

    async def take(self, engine: Engine, queue: Queue) -> Snapshot:
        """Return a snapshot of what is ready or unacked in a queue now.

        What is settled while it is written may be in it or not; what is published meanwhile is not.
        Raises: SnapshotGone; NoRoom; StoreFailed.
        Cost: a file's worth of messages in memory at a time.
        """
        self.under_way += 1
        try:
            return await self._take(engine, queue)
        finally:
            self.under_way -= 1

    async def _take(self, engine: Engine, queue: Queue) -> Snapshot:
        bounds = [(stream, list(stream.manager.slots), stream.manager.next_id) for stream in queue.streams]
        snapshot = await self._writer.in_thread(self._folder.snapshots.new)
        files: list[SnapshotSlot] = []
        try:
            for stream, firsts, below in bounds:
                await self._copy(engine, stream, firsts, below, snapshot, files)
        except BaseException:
            await self._writer.in_thread(lambda: self._folder.snapshots.drop(snapshot))
            raise
        until_ms = self._clock.now_ms + self._settings.snapshot_ms
        taken = Snapshot(snapshot, self._folder.view.store, engine.vhost.name, queue.name, tuple(files), until_ms)
        self._by_id[snapshot] = taken
        _log.info("snapshot.taken", vhost=taken.vhost, queue=taken.queue, id=snapshot, files=len(files))
        return taken

    async def drop(self, snapshot: str) -> None:
        """Remove a snapshot; one that is not there is well. Raises: StoreFailed."""
        if self._by_id.pop(snapshot, None) is not None:
            await self._writer.in_thread(lambda: self._folder.snapshots.drop(snapshot))

    async def drop_old(self) -> None:
        """Remove those whose time is over."""
        now_ms = self._clock.now_ms
        for snapshot in [one.id for one in self._by_id.values() if one.until_ms <= now_ms]:
            await self.drop(snapshot)

    async def _copy(
        self, engine: Engine, stream: Stream, firsts: list[int], below: int, snapshot: str, files: list[SnapshotSlot]
    ) -> None:
        """Write the files of one stream."""
        above = 0
        while above < below:
            start = max(bisect_right(firsts, above) - 1, 0)
            async with self._writer.turn:
                if stream.deleted:
                    raise SnapshotGone(f"queue '{stream.queue.name}' was deleted")
                if self._writer.left(engine):
                    raise SnapshotGone(f"queue '{stream.queue.name}' cannot be read any more")
                pieces = gather(
                    stream,
                    islice(firsts, start, None),
                    above=above,
                    below=below,
                    most_rows=self._settings.window_messages,
                    most_bytes=self._settings.window_bytes,
                )
                if not pieces:
                    return
                try:
                    await engine.committer.drain()
                    write = self._writing(engine, stream, pieces, snapshot, len(files))
                    written, above = await _whole(self._writer.in_thread(write))
                finally:
                    let_go(engine.store, pieces)
            if written is not None:
                files.append(written)

    def _writing(
        self, engine: Engine, stream: Stream, pieces: list[Piece], snapshot: str, n: int
    ) -> Callable[[], tuple[SnapshotSlot | None, int]]:
        """Return what writes one file: *blocking*, it tells what was written and the id behind its last message."""
        folder, name, queue = self._folder.snapshots, engine.vhost.name, stream.queue.name
        store, number, most_bytes = engine.store, stream.number, self._settings.window_bytes
        keep_free_bytes, ahead_ms = self._keep_free_bytes, self._clock.ahead_ms

        def write() -> tuple[SnapshotSlot | None, int]:
            free_bytes = folder.free_bytes()
            if free_bytes < keep_free_bytes + most_bytes:
                raise NoRoom(
                    f"no room for a snapshot: the disk has {free_bytes} bytes free; {most_bytes} are needed above "
                    f"store.disk_free_min_bytes ({keep_free_bytes})"
                )
            draft = folder.draft(snapshot, n, name, queue, number, pieces[0].slot.first + pieces[0].indexes[0])
            try:
                end = copy_pieces(store, number, pieces, draft.writer, most_bytes, ahead_ms)
                if draft.writer.rows:
                    draft.complete(end)
            except BaseException:
                draft.abandon()
                raise
            if not draft.writer.rows:
                draft.abandon()
                return None, end
            return folder.finish(draft, end), end

        return write


async def _whole(writing: Coroutine[Any, Any, T]) -> T:
    """Return what a thread does; whoever is cancelled meanwhile leaves when the thread has ended, as it reads on."""
    task = asyncio.ensure_future(writing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # nobody is there to hear it
        raise
