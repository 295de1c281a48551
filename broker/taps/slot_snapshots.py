"""Snapshots: write the current messages of a queue into slot files, for a reader without a tap.

The queue does not change: ready messages stay ready, unacked ones stay unacked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from broker.core.queue.kinds import TapQueue
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.event_log import get_logger
from broker.store.damage import StoreFailed
from broker.taps.cursors import IN_CLUSTER, TapRefused, vhost_named
from broker.taps.slot_rows import Piece, copy_pieces, gather, unpin
from broker.tasks import uncancelled

if TYPE_CHECKING:
    from pathlib import Path

    from broker.delivery.engine import Engine
    from broker.slot_files.slot_folder import SnapshotSlot
    from broker.taps.slot_writer import SlotWriter
    from broker.vhosts.vhosts import Vhosts

_log = get_logger()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot. `private` is what `is_private` returned; `owner` is the user who created it over HTTP, or "".

    Units: `until_ms` is the time at which it expires, on the broker's clock.
    """

    id: str
    store: str
    vhost: str
    queue: str
    files: tuple[SnapshotSlot, ...]
    until_ms: int
    private: bool
    owner: str

    @property
    def bytes(self) -> int:
        """The size of the files."""
        return sum([file.bytes for file in self.files])

    def to_json(self) -> dict[str, Any]:
        """Return the fields for a reader."""
        files = [asdict(slot) for slot in self.files]
        return {"id": self.id, "store": self.store, "vhost": self.vhost, "queue": self.queue, "files": files}


@dataclass(slots=True, eq=False)
class Taking:
    """A snapshot in progress: its owner, the size of its files so far, and the limit on the snapshots of all users."""

    owner: str
    share_bytes: int = 0
    bytes: int = 0

    def share(self, share_bytes: int) -> None:
        """Set the limit on the snapshots of all users."""
        self.share_bytes = share_bytes

    def add(self, size_bytes: int) -> None:
        """Add the size of a file."""
        self.bytes += size_bytes


class Snapshots(Mapping[str, Snapshot]):
    """The snapshots of a broker by id.

    At a limit, the oldest snapshots of the same user are removed, or the new one is refused. All users share a part of
    the disk, and the snapshots of one user may be no larger than what is still free of that part.
    """

    def __init__(self, vhosts: Vhosts, writer: SlotWriter) -> None:
        self._vhosts = vhosts
        self._writer = writer
        self._folder, self._settings, self._clock = writer.folder, writer.settings, writer.clock
        self._by_id: dict[str, Snapshot] = {}
        self._taking: list[Taking] = []

    def __getitem__(self, snapshot: str) -> Snapshot:
        return self._by_id[snapshot]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def under_way(self) -> int:
        """The number of snapshots in progress."""
        return len(self._taking)

    def path(self, snapshot: str, n: int) -> Path:
        """Return the path of a slot file."""
        return self._folder.snapshots.path(snapshot, n)

    async def take(self, vhost: str, name: str, owner: str = "") -> dict[str, Any]:
        """Take a snapshot of the ready and unacked messages of a queue, and return its fields for a reader.

        A message settled in the meantime may be missing; one published in the meantime is not included. `owner` is the
        user who requests the snapshot over HTTP, and whose limits apply.
        Raises: TapRefused, or the error that ended the broker.
        Cost: the messages of one slot file in memory at a time.
        """
        if self._settings().cluster.is_on:
            raise TapRefused(IN_CLUSTER)
        queue = vhost_named(self._vhosts, vhost).queues.get(name)
        if queue is None:
            raise TapRefused(f"no queue '{name}' in vhost '{vhost}'")
        if isinstance(queue, TapQueue):
            raise TapRefused(f"queue '{name}' in vhost '{vhost}' belongs to a tap: read its slots")
        engine = self._vhosts.engines[vhost]
        taking = Taking(owner)
        self._taking.append(taking)
        try:
            return (await self._take(engine, queue, taking)).to_json()
        except StoreFailed as error:
            engine.committer.check()
            raise TapRefused(f"the snapshot cannot be written: {error.reason}") from error
        finally:
            self._taking.remove(taking)

    async def _take(self, engine: Engine, queue: Queue, taking: Taking) -> Snapshot:
        owner = taking.owner
        if owner:
            most = self._settings().taps.snapshots_user_max
            while len(self._of(owner)) > most:
                await self._drop_oldest(
                    owner, f"user '{owner}' is taking {most} snapshots already (taps.snapshots_user_max)"
                )
            disk_bytes = await self._writer.in_thread(self._folder.snapshots.disk_bytes)
            taking.share(int(disk_bytes * self._settings().taps.snapshots_disk_ratio))
        private = is_private(queue)
        bounds = [(level, list(level.manager.slots), level.manager.next_id) for level in queue.levels]
        snapshot = await self._writer.in_thread(self._folder.snapshots.new)
        files: list[SnapshotSlot] = []
        try:
            for level, firsts, below in bounds:
                await self._copy(engine, level, firsts, below, snapshot, files, taking)
        except BaseException:
            await self._writer.in_thread(lambda: self._folder.snapshots.drop(snapshot))
            raise
        until_ms = self._clock.now_ms + self._settings().taps.snapshot_ms
        store, vhost = self._folder.view.store, engine.vhost.name
        taken = Snapshot(snapshot, store, vhost, queue.name, tuple(files), until_ms, private, owner)
        self._by_id[snapshot] = taken
        _log.info("snapshot.taken", vhost=taken.vhost, queue=taken.queue, id=snapshot, files=len(files))
        return taken

    def _of(self, owner: str) -> list[Snapshot | Taking]:
        """Return the snapshots of a user, oldest first, then those in progress."""
        return [one for one in self._of_users() if one.owner == owner]

    def _of_users(self) -> list[Snapshot | Taking]:
        found: list[Snapshot | Taking] = [*self._by_id.values(), *self._taking]
        return [one for one in found if one.owner]

    async def _make_room(self, taking: Taking, more_bytes: int) -> None:
        """Remove old snapshots of a user until a snapshot in progress can grow. Raises: TapRefused."""
        owner, share_bytes = taking.owner, taking.share_bytes
        while owner:
            own_bytes = sum([one.bytes for one in self._of(owner)]) + more_bytes
            users_bytes = sum([one.bytes for one in self._of_users()]) + more_bytes
            if own_bytes <= share_bytes - users_bytes:
                return
            await self._drop_oldest(
                owner, f"no room for a snapshot of user '{owner}': all users share {share_bytes} bytes "
                "(taps.snapshots_disk_ratio), and each must leave as much free as the user's snapshots take",
            )  # fmt: skip

    async def _drop_oldest(self, owner: str, refusal: str) -> None:
        """Remove the oldest snapshot of a user. Raises: TapRefused with the text `refusal` if there is none."""
        oldest = next((one.id for one in self._by_id.values() if one.owner == owner), None)
        if oldest is None:
            raise TapRefused(refusal)
        await self.drop(oldest)
        _log.info("snapshot.made_room", user=owner, id=oldest)

    async def drop(self, snapshot: str) -> None:
        """Remove a snapshot, if it exists. Raises: StoreFailed."""
        if self._by_id.pop(snapshot, None) is not None:
            await self._writer.in_thread(lambda: self._folder.snapshots.drop(snapshot))

    async def drop_old(self) -> None:
        """Remove expired snapshots."""
        now_ms = self._clock.now_ms
        for snapshot in [one.id for one in self._by_id.values() if one.until_ms <= now_ms]:
            await self.drop(snapshot)

    async def _copy(
        self,
        engine: Engine,
        level: Level,
        firsts: list[int],
        below: int,
        snapshot: str,
        files: list[SnapshotSlot],
        taking: Taking,
    ) -> None:
        """Copy the messages of one level into files."""
        above = 0
        while above < below:
            start = max(bisect_right(firsts, above) - 1, 0)
            await self._make_room(taking, self._settings().taps.window_bytes)
            async with self._writer.turn:
                if level.deleted:
                    raise TapRefused(f"queue '{level.queue.name}' was deleted")
                if self._writer.is_gone(engine):
                    raise TapRefused(f"queue '{level.queue.name}' cannot be read any more")
                pieces = gather(
                    level,
                    islice(firsts, start, None),
                    above=above,
                    below=below,
                    rows_max=self._settings().taps.window_messages,
                    bytes_max=self._settings().taps.window_bytes,
                )
                if not pieces:
                    return
                try:
                    await engine.committer.drain()
                    write = self._writing(engine, level, pieces, snapshot, len(files))
                    written, above = await uncancelled(self._writer.in_thread(write))
                finally:
                    unpin(engine.store, pieces)
            if written is not None:
                files.append(written)
                taking.add(written.bytes)

    def _writing(
        self, engine: Engine, level: Level, pieces: list[Piece], snapshot: str, n: int
    ) -> Callable[[], tuple[SnapshotSlot | None, int]]:
        """Return a *blocking* function that writes one file; it returns the file and the id at which to continue."""
        folder, name, queue = self._folder.snapshots, engine.vhost.name, level.queue.name
        store, number, bytes_max = engine.store, level.number, self._settings().taps.window_bytes
        keep_free_bytes, ahead_ms = self._settings().store.disk_free_min_bytes, self._clock.ahead_ms

        def write() -> tuple[SnapshotSlot | None, int]:
            free_bytes = self._folder.free_bytes()
            if free_bytes < keep_free_bytes + bytes_max:
                raise TapRefused(
                    f"no room for a snapshot: the disk has {free_bytes} bytes free; {bytes_max} are needed above "
                    f"store.disk_free_min_bytes ({keep_free_bytes})"
                )
            begin = partial(folder.begin, snapshot, n, name, queue, number)
            file, end = copy_pieces(store, number, pieces, begin, bytes_max, ahead_ms)
            return (None if file is None else folder.finish(file, end)), end

        return write


def is_private(queue: Queue) -> bool:
    """Return whether no client may read a queue, or only the connection that owns it."""
    return queue.exclusive_owner is not None or (queue.is_internal and not isinstance(queue, TapQueue))
