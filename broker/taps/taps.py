"""Taps: keep the messages of an exchange for readers that fetch them later.

The messages of a tap are moved from its queue into slot files. Slot files are removed once the cursors of all readers
have passed them, or when the tap exceeds a cap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.core.deadlines import Clock
from broker.core.names import is_short_text
from broker.core.queue.kinds import TapQueue, tap_arguments
from broker.delivery.engine import Engine
from broker.event_log import get_logger
from broker.routing.pattern import PatternLimits
from broker.settings import Settings
from broker.slot_files.seal_log import TAP_PREFIX, Seal
from broker.slot_files.seal_view import SealView
from broker.slot_files.slot_folder import SlotFolder
from broker.store.damage import StoreFailed
from broker.taps.cursors import IN_CLUSTER, Cursors, TapRefused, check_cursor_name, vhost_named
from broker.taps.retention import Retention
from broker.taps.slot_snapshots import Snapshots
from broker.taps.slot_writer import SlotWriter
from broker.taps.tap_listing import end_of, tap_rows
from broker.vhosts.vhosts import Vhosts

if TYPE_CHECKING:
    from pathlib import Path

_log = get_logger()

RESERVE_DIVISOR: Final = 2  # slot files may use half of the reserve, because writing them frees space in the log


class Taps:
    """The taps of a broker. Raises: TapRefused.

    Shapes: `cursors` and `snapshots` have the methods for requests about cursors and snapshots.
    """

    def __init__(
        self,
        folder: SlotFolder,
        vhosts: Vhosts,
        settings: Settings,
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._folder = folder
        self._vhosts = vhosts
        self._settings = settings
        self._limits = PatternLimits(settings.routing.hashes_max, settings.routing.words_max)
        self._clock = clock
        kept_bytes = settings.store.reserve_bytes // RESERVE_DIVISOR
        self._writer = SlotWriter(folder, vhosts.engines, lambda: self._settings, clock, fail, kept_bytes)
        self.snapshots = Snapshots(vhosts, self._writer)
        self._retention = Retention(vhosts, self._writer, self.snapshots, fail)
        self.cursors = Cursors(vhosts, self._writer, self._retention.soon)
        vhosts.before_close(self._writer.finish_with)
        vhosts.on_delete(self._forget)

    def apply_settings(self, settings: Settings) -> None:
        """Apply changed settings from the next file on; existing taps keep their caps."""
        self._settings = settings

    # -- running ------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether slot files are being written or removed."""
        return self._writer.busy or self._retention.busy

    def start(self) -> None:
        self._writer.start()
        self._retention.start()

    def tick(self) -> None:
        """Run the due work; called ten times a second."""
        self._writer.tick()
        self._retention.tick()

    async def close(self, timeout_s: float, stopping: Callable[[int], None]) -> None:
        """Write waiting messages into slot files until the timeout, because transient messages survive only there.

        `stopping` is called with the number of taps that have waiting messages.
        """
        waiting = [
            self._writer.flush(engine, queue)
            for engine in self._vhosts.engines.values()
            for queue in engine.vhost.queues.taps.values()
            if queue.ready
        ]
        if waiting:
            stopping(len(waiting))
            # The writer logs files that it cannot write.
            await asyncio.wait([asyncio.gather(*waiting, return_exceptions=True)], timeout=timeout_s)
        self._retention.end()
        await self._writer.close()
        await self._retention.close()

    def abort(self) -> None:
        """End at once, and close the seal log."""
        self._retention.end()
        self._writer.abort()
        self._folder.close()

    # -- taps ---------------------------------------------------------------------------------------------------------

    async def add(
        self,
        vhost: str,
        exchange: str,
        pattern: str,
        *,
        name: str | None = None,
        cursors: Sequence[str] = (),
        max_bytes: int | None = None,
        max_age_ms: int | None = None,
    ) -> dict[str, Any]:
        """Create a tap, unless an equal one exists, and return its row. New cursors start at its first slot file.

        The default caps are those of the settings.
        """
        if self._settings.cluster.is_on:
            raise TapRefused(IN_CLUSTER)
        opened = vhost_named(self._vhosts, vhost)
        name = name or exchange or "default"
        queue_name = TAP_PREFIX + name
        if not is_short_text(queue_name) or not name.isprintable():
            max_length = SHORT_STRING_MAX_BYTES - len(TAP_PREFIX)
            raise TapRefused(f"a tap's name has at most {max_length} bytes, all of them printable")
        if not is_short_text(pattern):
            raise TapRefused(f"a pattern has at most {SHORT_STRING_MAX_BYTES} bytes")
        source = opened.exchanges.get(exchange)
        if source is None:
            raise TapRefused(f"no exchange '{exchange}' in vhost '{vhost}'")
        try:
            source.dialect.parse(pattern, self._limits)
        except ValueError as error:
            raise TapRefused(str(error)) from error
        for cursor in cursors:
            check_cursor_name(cursor)
        found = opened.queues.taps.get(queue_name)
        if found is None:
            settings = self._settings.taps
            cap_bytes = settings.max_bytes if max_bytes is None else max_bytes
            cap_age_ms = settings.max_age_ms if max_age_ms is None else max_age_ms
            arguments = tap_arguments(exchange, pattern, cap_bytes, cap_age_ms, end_of(self.view, vhost, name))
            # A queue number that no slot file has, not even one of a deleted vhost of the same name.
            number = max(opened.queues.next_number, *(known + 1 for known in self.view.ends(vhost)), 1)
            opened.queues.add_tap(queue_name, number, arguments)
            _log.info("tap.added", vhost=vhost, tap=name, exchange=exchange, pattern=pattern)
        elif not found.is_same(exchange, pattern, max_bytes, max_age_ms):
            raise TapRefused(f"another tap in vhost '{vhost}' is named '{name}': remove it, or choose another name")
        await self._vhosts.engines[vhost].committer.drain()
        for cursor in cursors:
            await self.cursors.begin(cursor, vhost, name)
        return next(row for row in self.listing(vhost) if row["name"] == name)

    async def remove(self, vhost: str, name: str, *, drop: bool = False) -> dict[str, int]:
        """Delete a tap, and return the numbers of removed messages, slot files and bytes. Slot files stay until all
        cursors have passed them or a cap removes them; with `drop` they and the cursors are removed now.
        """
        opened = vhost_named(self._vhosts, vhost)
        queue = opened.queues.taps.get(TAP_PREFIX + name)
        if queue is None and not self.view.of_tap(vhost, name) and not self.view.cursors_of(vhost, name):
            raise TapRefused(f"no tap '{name}' in vhost '{vhost}'")
        engine = self._vhosts.engines[vhost]
        waited = 0
        if queue is not None:
            opened.exchanges.untap(queue)
            if not drop:
                try:
                    await self._flush(engine, queue)
                except TapRefused:
                    opened.exchanges.tap(queue)
                    raise
            async with self._writer.turn:  # messages of a file that is being written would be counted twice
                if not queue.deleted:
                    waited = queue.ready
                    opened.queues.drop(queue)
            await engine.committer.drain()
        seals = self.view.of_tap(vhost, name) if drop else []
        dropped = {
            "messages": (waited if drop else 0) + sum(seal.count for seal in seals),
            "slots": len(seals),
            "bytes": sum(seal.bytes for seal in seals),
        }
        if drop:
            await self._drop(seals, vhost, name)
        _log.info("tap.removed", vhost=vhost, tap=name, dropped=drop, **dropped)
        return dropped

    def listing(self, vhost: str | None = None) -> list[dict[str, Any]]:
        """Return a row for each tap of one vhost or of all, including removed taps that still have slot files."""
        names = sorted(self._vhosts) if vhost is None else [vhost_named(self._vhosts, vhost).name]
        view, now_ms = self.view, self._clock.now_ms - self._clock.ahead_ms
        return [row for name in names for row in tap_rows(self._vhosts[name], view, now_ms)]

    async def seal(self, vhost: str | None = None, tap: str | None = None) -> int:
        """Write the waiting messages of a tap, or of all, into slot files, then return the last seal."""
        chosen = list(self._chosen(vhost, tap))
        if tap is not None and not chosen:
            raise TapRefused(f"no tap '{tap}'" + ("" if vhost is None else f" in vhost '{vhost}'"))
        await asyncio.gather(*[self._flush(engine, queue) for engine, queue in chosen])
        return self.view.last_seal

    def note_read(self, vhost: str, tap: str) -> None:
        """Record that a tap, if it exists, has a reader, so that its slot files are written sooner."""
        opened = self._vhosts.get(vhost)
        queue = None if opened is None else opened.queues.taps.get(TAP_PREFIX + tap)
        if queue is not None:
            self._writer.note_read(queue)

    # -- the seals ----------------------------------------------------------------------------------------------------

    @property
    def view(self) -> SealView:
        """The slot files, gaps and cursors recorded in the seal log."""
        return self._folder.view

    async def frozen(self, do: Callable[[SealView], None]) -> None:
        """Run *blocking* work in the writer's thread, so that no seal is added and no slot file removed meanwhile."""
        await self._writer.in_thread(lambda: do(self.view))

    def slot_path(self, seal: int) -> Path:
        """Return the path of a slot file."""
        return self._folder.path(seal)

    # -- internal -----------------------------------------------------------------------------------------------------

    def _chosen(self, vhost: str | None, tap: str | None) -> Iterator[tuple[Engine, TapQueue]]:
        for name in sorted(self._vhosts) if vhost is None else [vhost_named(self._vhosts, vhost).name]:
            for queue in list(self._vhosts[name].queues.taps.values()):
                if tap is None or queue.tap == tap:
                    yield self._vhosts.engines[name], queue

    async def _forget(self, vhost: str) -> None:
        """Remove the slot files, cursors and snapshots of a deleted vhost."""
        await self._drop([seal for seal in self.view.seals if seal.vhost == vhost], vhost)
        for snapshot in [one.id for one in self.snapshots.values() if one.vhost == vhost]:
            await self.snapshots.drop(snapshot)

    async def _drop(self, seals: Sequence[Seal], vhost: str, tap: str | None = None) -> None:
        """Remove slot files, and the cursors of a tap or of a whole vhost."""
        await self._writer.alone(lambda: self._folder.remove(seals))
        await self.cursors.remove_all(vhost, tap)

    async def _flush(self, engine: Engine, queue: TapQueue) -> None:
        try:
            await self._writer.flush(engine, queue)
        except StoreFailed as error:
            engine.committer.check()
            raise TapRefused(f"tap '{queue.tap}' cannot be sealed: {error.reason}") from error
