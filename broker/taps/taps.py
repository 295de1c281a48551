"""Taps: what is kept of the messages that pass an exchange, for readers that come in their own time.

This is what the command line, HTTP and tests ask. A tap's messages go from its queue into slot files; a cursor says up
to which seal a reader has passed; what every cursor has passed goes, and so does what a cap forces out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.core.names import SHORT_TEXT_MAX_BYTES, is_short_text
from broker.core.queue.tap_queue import TAP_PREFIX, TapQueue, tap_arguments
from broker.core.topology import changes
from broker.event_log import get_logger
from broker.routing.pattern import PatternLimits
from broker.slot_files.seal_log import Cursor
from broker.slot_files.slot_retention import Cap, plan_deletions
from broker.store.damage import StoreFailed
from broker.taps.slot_snapshots import NoRoom, SnapshotGone, Snapshots
from broker.taps.slot_writer import SlotWriter
from broker.taps.tap_listing import end_of, tap_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from broker.core.deadlines import Clock
    from broker.core.vhost import Vhost
    from broker.delivery.engine import Engine
    from broker.settings import Settings
    from broker.slot_files.seal_log import Seal, SealView
    from broker.slot_files.slot_folder import SlotFolder
    from broker.vhosts.vhosts import Vhosts

__all__ = ["TapRefused", "Taps"]

_log = get_logger()

UNBOUNDED: Final = Cap(1 << 62, 1 << 62)

RETENTION_S: Final = 10.0  # between two looks at what has become too old
CURSORS_MAX: Final = 1000
RESERVE_DIVISOR: Final = 2  # so much of the reserve slot files may use: the log that they empty gives it back


class TapRefused(ValueError):
    """What was asked for cannot be; the text is one line for who asked."""


class Taps:
    """The taps, cursors and snapshots of a broker. Raises: TapRefused for what cannot be."""

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
        self._settings = settings.taps
        self._limits = PatternLimits(settings.routing.hashes_max, settings.routing.words_max)
        self._clock = clock
        self._fail = fail
        self._writer = SlotWriter(
            folder, vhosts.engines, settings.taps, clock, fail, settings.store.reserve_bytes // RESERVE_DIVISOR
        )
        self.snapshots = Snapshots(folder, self._writer, settings.taps, clock, settings.store.disk_free_min_bytes)
        self._retaining: asyncio.Task[None] | None = None
        self._retain_at_s = 0.0
        self._ends = False
        vhosts.tell(self._writer.leave, self._forget)

    def take_settings(self, settings: Settings) -> None:
        """Go by changed settings; a tap with caps of its own keeps them."""
        self._settings = settings.taps
        self._writer.take_settings(settings.taps)
        self.snapshots.take_settings(settings.taps, settings.store.disk_free_min_bytes)

    # -- running ------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether slot files are being written."""
        return self._writer.busy or (self._retaining is not None and not self._retaining.done())

    def start(self) -> None:
        """Begin to write slot files."""
        self._writer.start()
        self._retain_at_s = asyncio.get_running_loop().time() + 1

    def tick(self) -> None:
        """Has done what is due; called ten times a second."""
        self._writer.tick()
        if self._ends or asyncio.get_running_loop().time() < self._retain_at_s:
            return
        if self._retaining is None or self._retaining.done():
            self._retain_at_s = asyncio.get_running_loop().time() + RETENTION_S
            self._retaining = asyncio.get_running_loop().create_task(self._retain())
            self._retaining.add_done_callback(self._retained)

    async def close(self, timeout_s: float, told: Callable[[int], None]) -> None:
        """Has what the taps heard in slot files, as far as the time suffices: transient messages survive nowhere else.

        The rest is for the next start. `told` hears how many taps have something to write.
        """
        waiting = [
            self._writer.flush(engine, queue)
            for engine in self._vhosts.engines.values()
            for queue in engine.vhost.queues.taps.values()
            if queue.ready
        ]
        if waiting:
            told(len(waiting))
            # What cannot be written was said in the log by the writer.
            await asyncio.wait([asyncio.gather(*waiting, return_exceptions=True)], timeout=timeout_s)
        self._ends = True
        await self._writer.close()
        if self._retaining is not None:
            await asyncio.wait([self._retaining])

    def abort(self) -> None:
        """End at once, and close the log of the seals."""
        self._ends = True
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
        """Return a tap, made now or found the same; cursors that are new hold everything it has.

        Units: without caps of its own it has those that the settings have now.
        """
        held = self._vhost(vhost)
        name = name or exchange or "default"
        queue_name = TAP_PREFIX + name
        if not is_short_text(queue_name) or not name.isprintable():
            most = SHORT_TEXT_MAX_BYTES - len(TAP_PREFIX)
            raise TapRefused(f"a tap's name has at most {most} bytes, all of them printable")
        if not is_short_text(pattern):
            raise TapRefused(f"a pattern has at most {SHORT_TEXT_MAX_BYTES} bytes")
        heard = held.exchanges.get(exchange)
        if heard is None:
            raise TapRefused(f"no exchange '{exchange}' in vhost '{vhost}'")
        try:
            heard.dialect.parse(pattern, self._limits)
        except ValueError as error:
            raise TapRefused(str(error)) from error
        for cursor in cursors:
            _check_cursor(cursor)
        found = held.queues.taps.get(queue_name)
        if found is None:
            settings = self._settings
            most_bytes = settings.max_bytes if max_bytes is None else max_bytes
            most_age_ms = settings.max_age_ms if max_age_ms is None else max_age_ms
            first_id = end_of(self.view, vhost, name)
            self._make(held, queue_name, tap_arguments(exchange, pattern, most_bytes, most_age_ms, first_id))
            _log.info("tap.added", vhost=vhost, tap=name, exchange=exchange, pattern=pattern)
        elif not found.is_same(exchange, pattern, max_bytes, max_age_ms):
            raise TapRefused(f"tap '{name}' in vhost '{vhost}' is another: remove it, or name this one")
        await self._vhosts.engines[vhost].committer.drain()
        for cursor in cursors:
            if self.view.cursor(cursor, vhost, name) is None:
                await self._put_cursor(cursor, vhost, name, self._before(vhost, name))
        return next(row for row in self.listing(vhost) if row["name"] == name)

    async def remove(self, vhost: str, name: str, *, drop: bool = False) -> dict[str, int]:
        """End a tap. Its slot files stay until its cursors have passed, or a cap says so; with `drop` they go.

        Returns what was dropped: messages, and slot files with their bytes.
        """
        held = self._vhost(vhost)
        queue = held.queues.taps.get(TAP_PREFIX + name)
        if queue is None and not self._seals(vhost, name) and not self.view.cursors_of(vhost, name):
            raise TapRefused(f"no tap '{name}' in vhost '{vhost}'")
        engine = self._vhosts.engines[vhost]
        waited = 0
        if queue is not None:
            held.exchanges.untap(queue)
            if not drop:
                try:
                    await self._flush(engine, queue)
                except TapRefused:
                    held.exchanges.tap(queue)
                    raise
            async with self._writer.turn:  # no file of it is under way, whose messages would count twice
                if not queue.deleted:
                    waited = queue.ready
                    held.queues.drop(queue)
            await engine.committer.drain()
        seals = self._seals(vhost, name) if drop else []
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
        """Return what there is to say of each tap, of one vhost or of all; of removed ones while there are files."""
        names = sorted(self._vhosts) if vhost is None else [self._vhost(vhost).name]
        view, now_ms = self.view, self._clock.now_ms - self._clock.ahead_ms
        return [row for name in names for row in tap_rows(self._vhosts[name], view, now_ms)]

    async def seal(self, vhost: str | None = None, tap: str | None = None) -> int:
        """Return the last seal once everything that taps have by now is in slot files."""
        chosen = list(self._chosen(vhost, tap))
        if tap is not None and not chosen:
            raise TapRefused(f"no tap '{tap}'" + ("" if vhost is None else f" in vhost '{vhost}'"))
        await asyncio.gather(*[self._flush(engine, queue) for engine, queue in chosen])
        return self.view.last_seal

    # -- cursors ------------------------------------------------------------------------------------------------------

    async def set_cursor(
        self, name: str, vhost: str, tap: str, seal: int, *, incarnation: str | None = None, reset: bool = False
    ) -> None:
        """Say that a reader has passed a seal; one that is new is made. It goes back only with `reset`.

        Shapes: a reader that names the incarnation of the seal moves no cursor where histories parted.
        """
        _check_cursor(name)
        if TAP_PREFIX + tap not in self._vhost(vhost).queues.taps and not self._seals(vhost, tap):
            raise TapRefused(f"no tap '{tap}' in vhost '{vhost}'")
        if incarnation is not None and self.view.parted(seal, incarnation):
            raise TapRefused(
                f"seal {seal} of incarnation '{incarnation}' is not in this history: "
                "a copy of the data folder was put back"
            )
        if not 0 <= seal <= self.view.last_seal:
            raise TapRefused(f"no slot {seal} was sealed yet: the last seal is {self.view.last_seal}")
        known = self.view.cursor(name, vhost, tap)
        if known is None and len(self.view.cursors) >= CURSORS_MAX:
            raise TapRefused(f"there are {CURSORS_MAX} cursors already: remove some")
        if known is None or seal > known.seal or (reset and seal != known.seal):
            await self._put_cursor(name, vhost, tap, seal)

    async def remove_cursor(self, name: str, vhost: str, tap: str) -> None:
        """Forget a cursor: it holds nothing any more."""
        if self.view.cursor(name, vhost, tap) is None:
            raise TapRefused(f"no cursor '{name}' of tap '{tap}' in vhost '{vhost}'")
        await self._writer.in_thread(partial(self._folder.log.remove_cursor, name, vhost, tap))
        self._retain_soon()

    async def _put_cursor(self, name: str, vhost: str, tap: str, seal: int) -> None:
        cursor = Cursor(name, vhost, tap, seal, self._clock.now_ms - self._clock.ahead_ms)
        await self._writer.in_thread(partial(self._folder.log.set_cursor, cursor))
        self._retain_soon()

    # -- what is to be read -------------------------------------------------------------------------------------------

    @property
    def view(self) -> SealView:
        """What the log of the seals adds up to."""
        return self._folder.view

    async def frozen(self, do: Callable[[SealView], None]) -> None:
        """Run blocking work on the seals in the writer's thread: none is added and no slot file goes meanwhile."""
        await self._writer.in_thread(lambda: do(self.view))

    def slot_path(self, seal: int) -> Path:
        """Return where a slot file is."""
        return self._folder.path(seal)

    async def snapshot(self, vhost: str, queue: str) -> dict[str, Any]:
        """Return a snapshot of what a queue holds now, as the list of its slot files."""
        held = self._vhost(vhost).queues.get(queue)
        if held is None:
            raise TapRefused(f"no queue '{queue}' in vhost '{vhost}'")
        if held.is_tap:
            raise TapRefused(f"queue '{queue}' in vhost '{vhost}' belongs to a tap: read its slots")
        try:
            taken = await self.snapshots.take(self._vhosts.engines[vhost], held)
        except (NoRoom, SnapshotGone) as error:
            raise TapRefused(str(error)) from error
        except StoreFailed as error:
            self._vhosts.engines[vhost].committer.check()
            raise TapRefused(f"the snapshot cannot be written: {error.reason}") from error
        return taken.to_json()

    async def drop_snapshot(self, id: str) -> None:
        """Remove a snapshot; one that is gone is well."""
        await self.snapshots.drop(id)

    def snapshot_path(self, id: str, n: int) -> Path:
        """Return where a slot file of a snapshot is."""
        try:
            return self.snapshots.path(id, n)
        except ValueError as error:
            raise TapRefused(str(error)) from error

    # -- inside -------------------------------------------------------------------------------------------------------

    def _vhost(self, name: str) -> Vhost:
        vhost = self._vhosts.get(name)
        if vhost is None:
            raise TapRefused(f"no vhost '{name}'")
        return vhost

    def _make(self, vhost: Vhost, name: str, arguments: dict[str, Any]) -> None:
        # No number that slot files know, even if they are of a former vhost of that name: it tells whose ids are whose.
        number = max(vhost.queues.next_number, *(known + 1 for known in self.view.ends(vhost.name)), 1)
        queue = vhost.queues.add(
            name, number=number, durable=True, exclusive_owner=None, auto_delete=False, arguments=arguments
        )
        vhost.queues.taps[name].stream.lose_sealed(vhost.queues.taps[name].first_id)
        vhost.journal(changes.queue_declared(queue))

    def _chosen(self, vhost: str | None, tap: str | None) -> Iterator[tuple[Engine, TapQueue]]:
        for name in sorted(self._vhosts) if vhost is None else [self._vhost(vhost).name]:
            for queue in list(self._vhosts[name].queues.taps.values()):
                if tap is None or queue.tap == tap:
                    yield self._vhosts.engines[name], queue

    async def _forget(self, vhost: str) -> None:
        """Let go of all that was kept of a vhost that is deleted."""
        await self._drop([seal for seal in self.view.seals if seal.vhost == vhost], vhost)
        for snapshot in [one.id for one in self.snapshots.values() if one.vhost == vhost]:
            await self.snapshots.drop(snapshot)

    async def _drop(self, seals: Sequence[Seal], vhost: str, tap: str | None = None) -> None:
        """Remove slot files, and the cursors of a tap or of a whole vhost."""
        await self._writer.alone(lambda: self._folder.remove(seals))
        for cursor in self.view.cursors:
            if cursor.vhost == vhost and tap in (None, cursor.tap):
                await self.remove_cursor(cursor.name, vhost, cursor.tap)

    async def _flush(self, engine: Engine, queue: TapQueue) -> None:
        try:
            await self._writer.flush(engine, queue)
        except StoreFailed as error:
            engine.committer.check()
            raise TapRefused(f"tap '{queue.tap}' cannot be sealed: {error.reason}") from error

    def _seals(self, vhost: str, tap: str) -> list[Seal]:
        return [seal for seal in self.view.seals if (seal.vhost, seal.queue) == (vhost, tap)]

    def _before(self, vhost: str, tap: str) -> int:
        """Return the seal at which a cursor stands that has passed nothing of what a tap has."""
        seals = self._seals(vhost, tap)
        return seals[0].seal - 1 if seals else self.view.last_seal

    def _retain_soon(self) -> None:
        self._retain_at_s = 0.0

    async def _retain(self) -> None:
        """Remove what every cursor has passed and what is over a cap."""
        await self._writer.alone(partial(self._remove_old, self._caps))
        await self.snapshots.drop_old()

    def _remove_old(self, caps: dict[tuple[str, str], Cap]) -> None:
        default = Cap(self._settings.max_bytes, self._settings.max_age_ms)
        plan = plan_deletions(self.view, caps, default, self._clock.now_ms)
        for seal, reason in plan.forced:
            _log.warning("tap.gap_made", vhost=seal.vhost, tap=seal.queue, seal=seal.seal, reason=reason)
        if plan.passed or plan.forced:
            self._folder.remove(plan.passed, plan.forced)

    @property
    def _caps(self) -> dict[tuple[str, str], Cap]:
        offline = self._vhosts.offline  # nobody knows the caps of their taps
        unbounded = {(seal.vhost, seal.queue): UNBOUNDED for seal in self.view.seals if seal.vhost in offline}
        return unbounded | {
            (engine.vhost.name, queue.tap): Cap(queue.max_bytes, queue.max_age_ms)
            for engine in self._vhosts.engines.values()
            for queue in engine.vhost.queues.taps.values()
        }

    def _retained(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)


def _check_cursor(name: str) -> None:
    """Refuse a name that no line could show. Raises: TapRefused."""
    if not name or not name.isprintable() or not is_short_text(name):
        raise TapRefused(f"a cursor's name has 1 to {SHORT_TEXT_MAX_BYTES} bytes, all of them printable")
