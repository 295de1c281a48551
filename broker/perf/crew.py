"""Runs the generator's processes: starts them together, drives the connections of each, and always ends them.

The first Ctrl-C asks a run to stop, the second aborts it.
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
_spawn = multiprocessing.get_context("spawn")  # a forked child would inherit the sockets of the bench

Task = Callable[..., None]
T = TypeVar("T")

STOP: Final = "stop"  # words that the run sends
DRAIN: Final = "drain"
CONNECTED: Final = "connected"  # words that a process sends
TICK: Final = "tick"
DONE: Final = "done"
_DRAIN_EVERY_NS: Final = 20_000_000
_LONGEST_WAIT_S: Final = 0.5
_EARLY_NS: Final = 80_000  # a sleeping process wakes late: it is woken early and polls until the timer is due
_MOST_EARLY_PER_S: Final = 2500.0  # above this number of timers the process would only poll
_PRECISE: Final = 256  # connections; select() waits in microseconds, epoll in milliseconds, but select() is O(n)
_SLACK: Final = Path("/proc/self/timerslack_ns")


class CrewPipe:
    """A generator process's end of its pipe to the bench."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def tell(self, word: str, figures: Mapping[str, Any] | None = None) -> None:
        """Report that this process reached a stage."""
        self.pipe.send((word, dict(figures or {})))

    def fileno(self) -> int:
        """Return the file descriptor for a selector."""
        return self.pipe.fileno()

    def await_word(self, word: str) -> None:
        """Wait until the bench sends `word`."""
        while self.pipe.recv() != word:
            continue


class Crew(AbstractContextManager["Crew"]):
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
            pipe.close()  # a process that waits for a word ends at end of file
        deadline = time.monotonic() + (END_LIMIT_S if kind is None else 0.2)
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def tell(self, word: object, roles: Collection[str] | None = None) -> None:
        """Send a word to every process, or to the processes of some roles; skip those that ended."""
        for role in self._pipes if roles is None else roles:
            with suppress(BrokenPipeError):
                self._pipes[role].send(word)

    def reports(self, limit_s: float, roles: Collection[str] | None = None) -> list[tuple[str, str, dict[str, Any]]]:
        """Return role, word and figures of each report of these roles, waiting up to `limit_s` for the first.

        Raises: RunFailed as soon as any of the processes failed or ended.
        """
        pipes = {role: self._pipes[role] for role in (self._pipes if roles is None else roles)}
        ready = wait(list(pipes.values()), max(0.0, limit_s))
        return [(role, *_received(role, pipe)) for role, pipe in pipes.items() if pipe in ready]

    def gather(self, word: str, limit_s: float) -> dict[str, dict[str, Any]]:
        """Return the reports of all processes with `word`, by role.

        Raises: RunFailed as soon as any process failed, or after `limit_s`.
        """
        deadline = time.monotonic() + limit_s
        gathered: dict[str, dict[str, Any]] = {}
        while missing := self._pipes.keys() - gathered.keys():
            reports = self.reports(deadline - time.monotonic(), missing)
            if not reports:
                raise RunFailed(f"no {word!r} from {' and '.join(sorted(missing))} within {limit_s:.0f} s")
            for role, said, figures in reports:
                if said != word:
                    raise RunFailed(f"{role}: {said}")
                gathered[role] = figures
        return gathered


def _received(role: str, pipe: Connection) -> tuple[str, dict[str, Any]]:
    """Return the next word of a process and its figures. Raises: RunFailed when it reports a failure, or ended."""
    try:
        said, figures = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise RunFailed(f"the {role}'s process ended") from None
    if said == "failed":
        raise RunFailed(f"{role}: {figures['error']}")
    return said, dict(figures)


def _guarded(task: Task, pipe: Connection, *arguments: object) -> None:
    """Run a task in its process and report its exceptions instead of printing them."""
    line = CrewPipe(pipe)
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):  # the bench has ended or is ending
        try:
            task(line, *arguments)
        except (Fault, OSError) as error:
            kind = f"{type(error).__name__}: " if isinstance(error, OSError) else ""
            line.tell("failed", {"error": f"{kind}{error}"})


class Interruption:
    """Hold whether the user asked the run to stop. Raises: KeyboardInterrupt at the second Ctrl-C."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Shield the processes that start in this context from Ctrl-C; this process receives it at exit."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Crowd(ABC):
    """The connections of one process, which all have the same role.

    Shapes: `timers_per_s` is the expected number of timers; with one, they are exact to less than a millisecond;
    `stop_ns` is when the crowd was told to stop, 0 before; `times` are the measured ones since the last report.
    """

    timers_per_s = 0.0
    stop_ns = 0
    members: Sequence[Sender | Receiver]
    times: Mapping[str, Histogram]

    def start(self, at_ns: int) -> None:
        """Start all members."""
        for member in self.members:
            member.start(at_ns)

    def stop(self, now_ns: int) -> None:
        """Stop: whatever is under way may still end."""
        self.stop_ns = self.stop_ns or now_ns

    def tally(self) -> RunTally:
        """Return the counts so far."""
        return RunTally.total(member.tally() for member in self.members)

    @abstractmethod
    def finished(self, now_ns: int) -> bool:
        """Return whether nothing more is to be done, or the wait for it has timed out."""

    @abstractmethod
    def settle(self, fault: str) -> dict[str, Any]:
        """Return the last figures; `fault` is that of the run, "" for none."""


def run_crowd(crowd_of: Callable[[T], Crowd], share: T, line: CrewPipe, interval_ns: int) -> None:
    """Run a process: connect its share of the run, drive it, report its figures and leave."""
    crowd = crowd_of(share)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when to stop
    driver = Driver(line, crowd)
    line.tell(CONNECTED)
    begin_ns, stop_ns = line.pipe.recv()
    figures = driver.run(begin_ns, interval_ns, stop_ns or NEVER_NS)
    line.tell(DONE, figures | crowd.settle(figures["fault"]))
    with suppress(EOFError):
        while True:  # the connections close only after the run has taken its last figure of the broker
            line.pipe.recv()
    for member in crowd.members:
        member.peer.close()


class Driver:
    """Wait for sockets, timers and the run's words, whichever comes first."""

    def __init__(self, line: CrewPipe, crowd: Crowd) -> None:
        self._line = line
        self._crowd = crowd
        self._members = crowd.members
        exact = crowd.timers_per_s > 0 and len(self._members) <= _PRECISE
        self._selector = selectors.SelectSelector() if exact else selectors.DefaultSelector()
        self._masks = [0] * len(self._members)
        self._armed = [NEVER_NS] * len(self._members)
        self._timers: list[tuple[int, int]] = []
        self._draining = False
        self._early_ns = _EARLY_NS if exact and crowd.timers_per_s <= _MOST_EARLY_PER_S else 0
        if crowd.timers_per_s:
            with suppress(OSError):  # not Linux: a timer is up to 50 microseconds late, which is measured anyway
                _SLACK.write_text("1")

    def run(self, begin_ns: int, interval_ns: int, stop_ns: int) -> dict[str, Any]:
        """Drive until the crowd is finished, and return the figures of this process.

        Shapes: an error that ends a connection ends the process, too, and is the `fault` of the figures.
        """
        watch, fault = Stopwatch(), ""
        try:
            self._loop(begin_ns, interval_ns, stop_ns)
        except Fault as error:
            fault = str(error)
        except OSError as error:
            fault = f"the connection to the broker broke: {error.strerror or error}"
        return {**self._figures(), "cpu_s": watch.cpu_s(), "busy_share": watch.busy_share(), "fault": fault}

    def _loop(self, begin_ns: int, interval_ns: int, stop_ns: int) -> None:
        crowd, selector, clock = self._crowd, self._selector, time.monotonic_ns
        selector.register(self._line, selectors.EVENT_READ)
        crowd.start(begin_ns)
        self._arm_all()
        tick_ns = begin_ns + interval_ns
        while not crowd.finished(now_ns := clock()):
            wake_ns = min(tick_ns, stop_ns, self._timers[0][0] - self._early_ns if self._timers else NEVER_NS)
            for key, events in selector.select(min(_LONGEST_WAIT_S, max(0.0, (wake_ns - now_ns) / 1e9))):
                if key.data is None:
                    self._hear()
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
                self._line.tell(TICK, self._figures())
                for times in crowd.times.values():
                    times.clear()
                tick_ns += interval_ns * (1 + (now_ns - tick_ns) // interval_ns)

    def _fire(self, now_ns: int) -> None:
        """Wake every member whose timer is due."""
        timers, armed = self._timers, self._armed
        while timers and timers[0][0] <= now_ns:
            at_ns, place = heapq.heappop(timers)
            if armed[place] != at_ns:
                continue  # another timer has replaced this one
            armed[place] = NEVER_NS
            self._members[place].react(0, now_ns)
            self._arm(place, time.monotonic_ns())

    def _arm(self, place: int, now_ns: int) -> None:
        """Wait for the next event that a member can act on."""
        member, before = self._members[place], self._masks[place]
        mask = self._masks[place] = member.interest(now_ns)
        if mask != before:
            if not before:
                self._selector.register(member.peer.socket, mask, place)
            elif mask:
                self._selector.modify(member.peer.socket, mask, place)
            else:
                self._selector.unregister(member.peer.socket)
        wakes_ns = member.wakes_ns()
        if wakes_ns < self._armed[place]:
            self._armed[place] = wakes_ns
            heapq.heappush(self._timers, (wakes_ns, place))

    def _arm_all(self) -> None:
        now_ns = time.monotonic_ns()
        for place in range(len(self._members)):
            self._arm(place, now_ns)

    def _stop(self) -> None:
        self._crowd.stop(time.monotonic_ns())
        self._arm_all()

    def _hear(self) -> None:
        word = self._line.pipe.recv()
        if word == STOP:
            self._stop()
        elif word == DRAIN:
            self._draining = True

    def _figures(self) -> dict[str, Any]:
        """Return tally and histograms."""
        return {"at_ns": time.monotonic_ns(), "tally": self._crowd.tally(), **self._crowd.times}
