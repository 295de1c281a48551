"""Retention: remove slot files that every cursor has passed, or that exceed a cap, and snapshots that are too old."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from broker.event_log import get_logger
from broker.slot_files.seal_log import Seal
from broker.slot_files.seal_view import SealView
from broker.taps.slot_snapshots import Snapshots
from broker.taps.slot_writer import SlotWriter
from broker.tasks import Tasks
from broker.vhosts.vhosts import Vhosts

TapKey = tuple[str, str]  # vhost and tap


class Cap(NamedTuple):
    """The limits on the slot files of a tap: the size of all files, and the age of a file's last message."""

    max_bytes: int
    max_age_ms: int


UNBOUNDED: Final = Cap(1 << 62, 1 << 62)
INTERVAL_S: Final = 10.0
FIRST_S: Final = 1.0  # the time before the first run

_log = get_logger()


class Retention:
    """Remove slot files and snapshots that need not be kept any longer, every ten seconds."""

    def __init__(
        self, vhosts: Vhosts, writer: SlotWriter, snapshots: Snapshots, fail: Callable[[BaseException], None]
    ) -> None:
        self._vhosts = vhosts
        self._writer = writer
        self._snapshots = snapshots
        self._folder, self._settings, self._clock = writer.folder, writer.settings, writer.clock
        self._tasks = Tasks(fail)
        self._next_s = 0.0  # when the next run is due, on the loop's clock
        self._ends = False

    @property
    def busy(self) -> bool:
        """Whether files are being removed."""
        return self._tasks.busy

    def start(self) -> None:
        """Schedule the first run a second from now."""
        self._next_s = asyncio.get_running_loop().time() + FIRST_S

    def soon(self) -> None:
        """Run at the next tick, because a cursor was set or removed."""
        self._next_s = 0.0

    def tick(self) -> None:
        """Start a run when one is due; called ten times a second."""
        loop = asyncio.get_running_loop()
        if self._ends or loop.time() < self._next_s or self.busy:
            return
        self._next_s = loop.time() + INTERVAL_S
        self._tasks.start(self._run())

    def end(self) -> None:
        self._ends = True

    async def close(self) -> None:
        """Wait for the current run."""
        await self._tasks.ended()

    async def _run(self) -> None:
        await self._writer.alone(partial(self._remove, self._caps))
        await self._snapshots.drop_old()

    def _remove(self, caps: dict[TapKey, Cap]) -> None:
        """Remove slot files. *Blocking.*"""
        default = Cap(self._settings().taps.max_bytes, self._settings().taps.max_age_ms)
        plan = plan_deletions(self._folder.view, caps, default, self._clock.now_ms)
        for seal, reason in plan.forced:
            _log.warning("tap.gap_made", vhost=seal.vhost, tap=seal.queue, seal=seal.seal, reason=reason)
        if plan.passed or plan.forced:
            self._folder.remove(plan.passed, plan.forced)

    @property
    def _caps(self) -> dict[TapKey, Cap]:
        offline = self._vhosts.offline  # the taps of these vhosts are not known, so no cap applies to them
        seals = self._folder.view.seals
        unbounded = {(seal.vhost, seal.queue): UNBOUNDED for seal in seals if seal.vhost in offline}
        return unbounded | {
            (engine.vhost.name, queue.tap): Cap(queue.max_bytes, queue.max_age_ms)
            for engine in self._vhosts.engines.values()
            for queue in engine.vhost.queues.taps.values()
        }


class Deletions(NamedTuple):
    """The slot files to remove, in the order of their seals. Shapes: all cursors have passed the files in `passed`; the
    files in `forced` exceed a cap, which is named as the reason for their gaps.
    """

    passed: list[Seal]
    forced: list[tuple[Seal, str]]


def plan_deletions(view: SealView, caps: Mapping[TapKey, Cap], default: Cap, now_ms: int) -> Deletions:
    """Return the slot files to remove now; a tap that is not in `caps` has the default cap.

    Units: `now_ms` is on the broker's clock.
    Shapes: the files of each queue are its oldest ones, as `SlotFolder.remove` requires.
    Invariant: unless a cap is exceeded, a file stays until its tap has cursors and all of them have passed the file.
    Cost: O(seals and cursors), and a sort of the files to remove.
    """
    passed: list[Seal] = []
    forced: list[tuple[Seal, str]] = []
    slowest: dict[TapKey, int] = {}
    for cursor in view.cursors:
        key = cursor.vhost, cursor.tap
        slowest[key] = min(cursor.seal, slowest.get(key, cursor.seal))
    by_tap: dict[TapKey, list[Seal]] = {}  # including seals from before a tap was removed and added again
    for seal in view.seals:
        by_tap.setdefault((seal.vhost, seal.queue), []).append(seal)
    for tap, seals in by_tap.items():
        cap = caps.get(tap, default)
        kept_bytes = sum(seal.bytes for seal in seals)
        for seal in seals:
            if seal.seal <= slowest.get(tap, 0):
                passed.append(seal)
            elif kept_bytes > cap.max_bytes:
                forced.append((seal, "bytes"))
            elif now_ms - seal.last_ts_ms - seal.ahead_ms > cap.max_age_ms:
                forced.append((seal, "age"))
            else:
                break
            kept_bytes -= seal.bytes
    return Deletions(sorted(passed, key=lambda seal: seal.seal), sorted(forced, key=lambda one: one[0].seal))
