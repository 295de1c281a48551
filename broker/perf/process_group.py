"""Run the generator's processes: start them together, drive the connections of each, and always end them.

The first Ctrl-C asks the run to stop, the second aborts it.
"""

from __future__ import annotations

import heapq
import multiprocessing
import selectors
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self, TypeVar

from broker.perf.faults import Fault, RunFailed
from broker.perf.histogram import Histogram
from broker.perf.machine import Stopwatch
from broker.perf.outcome import RunTally
from broker.perf.receiver import Receiver
from broker.perf.sender import NEVER_NS, Sender

END_LIMIT_S = 20.0
_spawn = multiprocessing.get_context("spawn")  # a forked child would inherit the parent's sockets

Task = Callable[..., None]
T = TypeVar("T")

STOP: Final = "stop"  # commands to a process
DRAIN: Final = "drain"
CONNECTED: Final = "connected"  # reports of a process
TICK: Final = "tick"
DONE: Final = "done"
_DRAIN_EVERY_NS: Final = 20_000_000
_WAIT_MAX_S: Final = 0.5
_EARLY_NS: Final = 80_000  # wake this much before a timer and poll until it is due: the kernel wakes sleepers late
_EARLY_MAX_PER_S: Final = 2500.0  # with more timers per second, the process would only poll
_SELECT_MAX: Final = 256  # connections; select() has a resolution of microseconds (epoll: milliseconds), but is O(n)
_SLACK: Final = Path("/proc/self/timerslack_ns")


class ProcessPipe:
    """A generator process's end of its pipe to the main process."""

    def __init__(self, pipe: Connection) -> None:
        self.connection = pipe

    def report(self, stage: str, figures: Mapping[str, Any] | None = None) -> None:
        self.connection.send((stage, dict(figures or {})))

    def fileno(self) -> int:
        return self.connection.fileno()

    def await_command(self, command: str) -> None:
        while self.connection.recv() != command:
            continue


class ProcessGroup(AbstractContextManager["ProcessGroup"]):
    """The processes of one run, by role."""

    def __init__(self, tasks: Mapping[str, Task], *arguments: object) -> None:
        self._pipes: dict[str, Connection] = {}
        self._processes = []
        for role, task in tasks.items():
            ours, theirs = _spawn.Pipe()
            process = _spawn.Process(target=_guarded, args=(task, theirs, *arguments), daemon=True)
            process.start()
            theirs.close()
            self._pipes[role] = ours
            self._processes.append(process)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for pipe in self._pipes.values():
            pipe.close()  # a process that waits for a command ends at end of file
        deadline = time.monotonic() + (END_LIMIT_S if kind is None else 0.2)
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def send(self, command: object, roles: Collection[str] | None = None) -> None:
        """Send a command to every process, or to those of some roles; skip processes that have ended."""
        for role in self._pipes if roles is None else roles:
            with suppress(BrokenPipeError):
                self._pipes[role].send(command)

    def reports(self, limit_s: float, roles: Collection[str] | None = None) -> list[tuple[str, str, dict[str, Any]]]:
        """Return at most one report (role, stage, figures) of each of these roles; wait up to `limit_s` for the first.

        Raises: RunFailed as soon as any of the processes failed or ended.
        """
        pipes = {role: self._pipes[role] for role in (self._pipes if roles is None else roles)}
        ready = wait(list(pipes.values()), max(0.0, limit_s))
        return [(role, *_received(role, pipe)) for role, pipe in pipes.items() if pipe in ready]

    def gather(self, stage: str, limit_s: float) -> dict[str, dict[str, Any]]:
        """Wait until every process has reported a stage, and return their figures by role.

        Raises: RunFailed as soon as any process failed, ended or reported another stage, or after `limit_s`.
        """
        deadline = time.monotonic() + limit_s
        gathered: dict[str, dict[str, Any]] = {}
        while missing := self._pipes.keys() - gathered.keys():
            reports = self.reports(deadline - time.monotonic(), missing)
            if not reports:
                raise RunFailed(f"no {stage!r} from {' and '.join(sorted(missing))} within {limit_s:.0f} s")
            for role, reported, figures in reports:
                if reported != stage:
                    raise RunFailed(f"{role}: {reported}")
                gathered[role] = figures
        return gathered


def _received(role: str, pipe: Connection) -> tuple[str, dict[str, Any]]:
    """Return the next report of a process: stage and figures. Raises: RunFailed if it reports a failure or ended."""
    try:
        stage, figures = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise RunFailed(f"the {role}'s process ended") from None
    if stage == "failed":
        raise RunFailed(f"{role}: {figures['error']}")
    return stage, dict(figures)


def _guarded(task: Task, pipe: Connection, *arguments: object) -> None:
    """Run a task in its process, and report a Fault or OSError instead of printing it."""
    end = ProcessPipe(pipe)
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):  # the main process has ended or is ending
        try:
            task(end, *arguments)
        except (Fault, OSError) as error:
            kind = f"{type(error).__name__}: " if isinstance(error, OSError) else ""
            end.report("failed", {"error": f"{kind}{error}"})


class Interruption:
    """Record a first Ctrl-C as a request to stop. Raises: KeyboardInterrupt at the second."""

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Block Ctrl-C for the processes that start in this context; this process receives it at exit."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ConnectionGroup(ABC):
    """The connections of one process, all of the same role.

    Shapes: `timers_per_s` is the expected rate of timers, which are exact to less than a millisecond if the rate is
    above 0 and there are at most `_SELECT_MAX` connections; `stop_ns` is when the connections were told to stop, 0
    before; `times` are the durations measured since the last report.
    """

    timers_per_s = 0.0
    stop_ns = 0
    members: Sequence[Sender | Receiver]
    times: Mapping[str, Histogram]

    def start(self, at_ns: int) -> None:
        for member in self.members:
            member.start(at_ns)

    def stop(self, now_ns: int) -> None:
        """Begin to stop; work in progress may still finish."""
        self.stop_ns = self.stop_ns or now_ns

    def tally(self) -> RunTally:
        return RunTally.total(member.tally() for member in self.members)

    @abstractmethod
    def finished(self, now_ns: int) -> bool:
        """Return whether nothing is left to do, or the wait for it has timed out."""

    @abstractmethod
    def settle(self, fault: str) -> dict[str, Any]:
        """Return the final figures; `fault` is the error that ended this process's run, "" if there was none."""


def run_group(connect: Callable[[T], ConnectionGroup], share: T, pipe: ProcessPipe, interval_ns: int) -> None:
    """Run one process: connect its share of the run, drive it, report its figures and exit."""
    group = connect(share)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when to stop
    driver = Driver(pipe, group)
    pipe.report(CONNECTED)
    begin_ns, stop_ns = pipe.connection.recv()
    figures = driver.run(begin_ns, interval_ns, stop_ns or NEVER_NS)
    pipe.report(DONE, figures | group.settle(figures["fault"]))
    with suppress(EOFError):
        while True:  # keep the connections open until the run has measured the broker for the last time
            pipe.connection.recv()
    for member in group.members:
        member.peer.close()


class Driver:
    """Wait for sockets, timers and commands, and dispatch whichever is ready first."""

    def __init__(self, pipe: ProcessPipe, group: ConnectionGroup) -> None:
        self._pipe = pipe
        self._group = group
        self._members = group.members
        exact = group.timers_per_s > 0 and len(self._members) <= _SELECT_MAX
        self._selector = selectors.SelectSelector() if exact else selectors.DefaultSelector()
        self._masks = [0] * len(self._members)
        self._armed = [NEVER_NS] * len(self._members)
        self._timers: list[tuple[int, int]] = []
        self._draining = False
        self._early_ns = _EARLY_NS if exact and group.timers_per_s <= _EARLY_MAX_PER_S else 0
        if group.timers_per_s:
            with suppress(OSError):  # not Linux: timers are up to 50 us late, which `late_times` shows
                _SLACK.write_text("1")

    def run(self, begin_ns: int, interval_ns: int, stop_ns: int) -> dict[str, Any]:
        """Drive the connections until they are finished, and return the figures of this process.

        An error that ends a connection ends the process too; it is the `fault` of the figures.
        """
        stopwatch, fault = Stopwatch(), ""
        try:
            self._loop(begin_ns, interval_ns, stop_ns)
        except Fault as error:
            fault = str(error)
        except OSError as error:
            fault = f"the connection to the broker broke: {error.strerror or error}"
        return {**self._figures(), "cpu_s": stopwatch.cpu_s(), "busy_share": stopwatch.busy_share(), "fault": fault}

    def _loop(self, begin_ns: int, interval_ns: int, stop_ns: int) -> None:
        group, selector, clock = self._group, self._selector, time.monotonic_ns
        selector.register(self._pipe, selectors.EVENT_READ)
        group.start(begin_ns)
        self._arm_all()
        tick_ns = begin_ns + interval_ns
        while not group.finished(now_ns := clock()):
            wake_ns = min(tick_ns, stop_ns, self._timers[0][0] - self._early_ns if self._timers else NEVER_NS)
            for key, events in selector.select(min(_WAIT_MAX_S, max(0.0, (wake_ns - now_ns) / 1e9))):
                if key.data is None:
                    self._receive()
                else:
                    self._members[key.data].react(events, clock())
                    self._arm(key.data, clock())
            self._fire(now_ns := clock())
            if now_ns >= stop_ns:
                stop_ns = NEVER_NS
                self._stop()
            if self._draining:
                interval_ns = _DRAIN_EVERY_NS
                tick_ns = min(tick_ns, now_ns + interval_ns)
            if now_ns >= tick_ns:
                self._pipe.report(TICK, self._figures())
                for times in group.times.values():
                    times.clear()
                tick_ns += interval_ns * (1 + (now_ns - tick_ns) // interval_ns)

    def _fire(self, now_ns: int) -> None:
        timers, armed = self._timers, self._armed
        while timers and timers[0][0] <= now_ns:
            at_ns, index = heapq.heappop(timers)
            if armed[index] != at_ns:
                continue  # another timer has replaced this one
            armed[index] = NEVER_NS
            self._members[index].react(0, now_ns)
            self._arm(index, time.monotonic_ns())

    def _arm(self, index: int, now_ns: int) -> None:
        """Register the events and the timer that a member waits for."""
        member, before = self._members[index], self._masks[index]
        mask = self._masks[index] = member.interest(now_ns)
        if mask != before:
            if not before:
                self._selector.register(member.peer.socket, mask, index)
            elif mask:
                self._selector.modify(member.peer.socket, mask, index)
            else:
                self._selector.unregister(member.peer.socket)
        wakes_ns = member.wakes_ns()
        if wakes_ns < self._armed[index]:
            self._armed[index] = wakes_ns
            heapq.heappush(self._timers, (wakes_ns, index))

    def _arm_all(self) -> None:
        now_ns = time.monotonic_ns()
        for index in range(len(self._members)):
            self._arm(index, now_ns)

    def _stop(self) -> None:
        self._group.stop(time.monotonic_ns())
        self._arm_all()

    def _receive(self) -> None:
        command = self._pipe.connection.recv()
        if command == STOP:
            self._stop()
        elif command == DRAIN:
            self._draining = True

    def _figures(self) -> dict[str, Any]:
        return {"at_ns": time.monotonic_ns(), "tally": self._group.tally(), **self._group.times}
