"""The loop turn: run the engine of each vhost, then write each connection with output once, then page out slots.

Read callbacks handle input, and only schedule deliveries, syncs and writes for the turn. So one read causes one write
per connection with output. A read that is alone in its loop step runs the turn at its end, and so saves a step.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from broker.amqp.output import OutputTaker
from broker.core.deadlines import Clock

SHARE_BYTES: Final = 128 << 10  # the input of all connections that is handled between two turns
PIECE_MIN_BYTES: Final = 16 << 10  # smaller pieces per connection would cost more than they gain in fairness
LONE_READS: Final = 15  # consecutive reads that each run a turn, after one that was alone in its loop step


@mypyc_attr(allow_interpreted_subclasses=True)
class Outlet(OutputTaker):
    """A connection's socket as the turn sees it. Like `TurnEngine`, it is not a protocol, because compiled code calls
    methods of a class without a look-up.
    """

    __slots__ = ()

    @abstractmethod
    def flush(self) -> None:
        """Write the output in one call."""

    @abstractmethod
    def greet(self) -> None:
        """Write the output of a handshake, although no turn may run: it does not concern messages."""

    @abstractmethod
    def resume(self) -> None:
        """Resume reading, because the turn has a share for it."""


class Schedule:
    """The work that one engine has for the next turn. Its parts schedule work here, and do not know the engine.

    Shapes: ``due`` is set if there is any work, ``commits`` if something waits for the committer, and ``delivers`` if a
        queue needs to be served. In a cluster ``commits`` is always set: the committer reports its backlog.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.due = True
        self.commits = True
        self.delivers = False

    def work(self) -> None:
        """Include the engine in the next turn."""
        self.due = True
        if not self._turn.scheduled:
            self._turn.schedule()

    def commit(self) -> None:
        """Include the committer in the next turn."""
        self.commits = self.due = True
        if not self._turn.scheduled:
            self._turn.schedule()

    def deliver(self) -> None:
        """Include the workers in the next turn."""
        self.delivers = self.due = True
        if not self._turn.scheduled:
            self._turn.schedule()


@mypyc_attr(allow_interpreted_subclasses=True)
class TurnEngine:
    """A vhost's engine as the turn sees it."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether there is work for which no turn is scheduled: settlements, acks to write, a share to reset."""

    @abstractmethod
    def turn(self) -> int:
        """Do the due work of the vhost, and return the approximate number of bytes that wait to be written."""

    @abstractmethod
    def page_out(self) -> None:
        """Page out a few slots; called once the output is written, if the engine called `Turn.page_out_later`."""


class Turn(Clock):
    """The loop turn: runs when scheduled, once for all events of a loop step, or at the end of a lone read.

    Invariant: ``scheduled`` is set while a turn is scheduled and during a lone read. An outlet that is touched while
        the engines run is flushed by the same turn.
    Units: ``now_ms`` is the broker's clock when the current turn was scheduled, precise enough for the timestamp of a
        record; ``ahead_ms`` is its lead over the system's clock. ``left_bytes`` is the rest of the input budget of
        all connections between two turns; connections that need more wait and are resumed in order.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wall_clock_s: Callable[[], float],
        fail: Callable[[BaseException], None],
        share_bytes: int = SHARE_BYTES,
    ) -> None:
        super().__init__(int(wall_clock_s() * 1000))
        self._loop = loop
        self._share_bytes = self._piece_bytes = share_bytes
        self._short = False
        self.left_bytes = share_bytes
        self._wall_clock_s = wall_clock_s
        self.fail = fail  # ends the broker
        self.scheduled = False
        self._reads = 0  # since the current turn was scheduled
        self._lone_reads = 0  # how many of the next reads may each run a turn
        self._flushes = False  # a turn has begun, and will flush touched outlets
        self._touched: list[Outlet] = []
        self._paused: list[Outlet] = []
        self.engines: list[TurnEngine] = []
        self._paging: list[TurnEngine] = []  # engines that page out after the output of this turn is written
        self._backlog = False
        self._check_backlog: Callable[[], bool] = lambda: False
        self._backlog_bytes = 0
        self._may_act: Callable[[], bool] | None = None
        self.dead = False  # the broker has failed: nothing more is delivered, written or confirmed
        self.count = 0

    def schedule(self) -> None:
        """Schedule a turn before the loop waits again."""
        if not self.scheduled:
            self.scheduled = True
            self.now_ms = int(self._wall_clock_s() * 1000)
            self._loop.call_soon(self.run)

    def begin_read(self) -> bool:
        """Begin a small read, and return whether its end must run the turn; otherwise a turn is scheduled. HOT. The
        loop does not report how many sockets are ready. So at least one turn in sixteen is scheduled, and its reads are
        counted: after a single read, the next ones are probably alone, too. After several, all reads share turns, so
        that output to one consumer is written once.
        """
        if self.scheduled:
            self._reads += 1
            return False
        if not self._lone_reads:
            self._reads = 1
            self.schedule()
            return False
        self._lone_reads -= 1
        self.scheduled = True
        self.now_ms = int(self._wall_clock_s() * 1000)
        return True

    def read_clock(self) -> None:
        self.now_ms = int(self._wall_clock_s() * 1000)

    def set_ahead(self, ahead_ms: int) -> None:
        """Set the lead of the broker's clock over the system's."""
        self.ahead_ms = ahead_ms

    def check_backlog_by(self, check: Callable[[], bool], over_bytes: int) -> None:
        """Call `check` in turns that leave more than `over_bytes` unwritten, and in the turn after it returned True."""
        self._check_backlog = check
        self._backlog_bytes = over_bytes

    @property
    def may_run(self) -> bool:
        """Whether turns work and write now; a node of a cluster that has lost contact may not."""
        return self._may_act is None or self._may_act()

    def act_while(self, may_act: Callable[[], bool]) -> None:
        """Run turns only while `may_act` returns True. When it becomes True again, the caller schedules a turn."""
        self._may_act = may_act

    def set_clock(self, wall_clock_s: Callable[[], float]) -> None:
        """Use another clock; cluster nodes use their database's."""
        self._wall_clock_s = wall_clock_s

    def stop(self) -> None:
        """Run no further turns, because the broker has failed."""
        self.dead = True

    def touch(self, outlet: Outlet) -> None:
        """Flush an outlet at the end of the turn."""
        self._touched.append(outlet)
        if not self.scheduled and not self._flushes:
            self.schedule()

    def page_out_later(self, engine: TurnEngine) -> None:
        """Schedule an engine to page out after this turn's output is written, so that no delivery waits for files."""
        if engine not in self._paging:
            self._paging.append(engine)

    def shorten(self) -> None:
        """Halve the share of input after this turn, because other work took long, and may again."""
        self._short = True

    def piece_bytes(self) -> int:
        """Return how many bytes of input of one connection may be handled now."""
        return max(0, min(self.left_bytes, self._piece_bytes))

    def pause(self, outlet: Outlet) -> None:
        """Resume an outlet when a turn has a share for it."""
        self._paused.append(outlet)
        self.schedule()

    def run(self) -> None:
        """Run the engines that have work, write each connection with output once, then page out."""
        self.scheduled = False
        if self._reads:
            self._lone_reads = LONE_READS if self._reads == 1 else 0
            self._reads = 0
        if self.dead:
            return
        if self._may_act is not None and not self._may_act():
            for outlet in self._touched:
                outlet.greet()
            return
        self.count += 1
        self._flushes = True
        try:
            waiting_bytes = 0
            for engine in self.engines:
                if engine.schedule.due or engine.has_work:
                    waiting_bytes += engine.turn()
            if self._backlog or waiting_bytes > self._backlog_bytes:
                self._backlog = self._check_backlog()
            self._flushes = False
            touched, self._touched = self._touched, []
            for place, outlet in enumerate(touched):
                if self._may_act is not None and not self._may_act():  # the process was stopped for a while
                    self._touched[:0] = touched[place:]
                    return
                outlet.flush()
            if self._paging:
                paging, self._paging = self._paging, []
                for engine in paging:
                    engine.page_out()
            self.left_bytes = self._share_bytes // 2 if self._short else self._share_bytes
            self._short = False
            if self._paused:
                self._resume()
        except Exception as error:  # noqa: BLE001  # a defect or a lost store: nothing may be confirmed after it
            self.fail(error)

    def _resume(self) -> None:
        """Resume paused outlets until the input budget is used up; the next turn begins with the remaining outlets."""
        paused, self._paused = self._paused, []
        self._piece_bytes = max(PIECE_MIN_BYTES, self._share_bytes // len(paused))
        for place, outlet in enumerate(paused):
            if self.left_bytes <= 0:
                self._paused[:0] = paused[place:]
                break
            outlet.resume()
        if self._paused:
            self.schedule()
        else:
            self._piece_bytes = self._share_bytes
