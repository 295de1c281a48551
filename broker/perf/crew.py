"""Runs the generator's processes: starts them together, passes messages between them and the run, and always ends them.

The first Ctrl-C asks a run to stop, the second aborts it.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from types import FrameType, TracebackType
from typing import Any, Self

from broker.perf.faults import Fault, RunFailed

END_LIMIT_S = 5.0
_spawn = multiprocessing.get_context("spawn")  # a forked child would inherit the sockets of the bench

Task = Callable[..., None]


class CrewPipe:
    """A generator process's end of its pipe to the bench."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def tell(self, word: str, figures: Mapping[str, Any] | None = None) -> None:
        """Report that this process reached a stage."""
        self._pipe.send((word, dict(figures or {})))

    def fileno(self) -> int:
        """Return the file descriptor for a selector."""
        return self._pipe.fileno()

    def hear(self) -> Any:
        """Return the next message from the bench."""
        return self._pipe.recv()

    def await_word(self, word: str) -> None:
        """Wait until the bench sends `word`."""
        while self._pipe.recv() != word:
            continue


class Crew:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for pipe in self._pipes.values():
            pipe.close()  # a process that still waits for a word ends at end of file
        for process in self._processes:
            process.join(END_LIMIT_S if error is None else 0.2)
            if process.is_alive():
                process.kill()
                process.join()

    @property
    def roles(self) -> frozenset[str]:
        """Return the roles of its processes."""
        return frozenset(self._pipes)

    def tell(self, word: object, roles: Collection[str] | None = None) -> None:
        """Send a word to every process, or to the processes of some roles; skip those that ended."""
        for role in self._pipes if roles is None else roles:
            with suppress(BrokenPipeError):
                self._pipes[role].send(word)

    def reports(self, limit_s: float) -> list[tuple[str, str, dict[str, Any]]]:
        """Return role, word and figures of each report, waiting up to `limit_s` for the first.

        Raises: RunFailed as soon as any process failed or ended.
        """
        ready = wait(list(self._pipes.values()), limit_s)
        return [(role, *_received(role, pipe)) for role, pipe in self._pipes.items() if pipe in ready]

    def gather(self, word: str, limit_s: float) -> dict[str, dict[str, Any]]:
        """Return what every process reports with `word`, by role.

        Raises: RunFailed as soon as any process failed, or after `limit_s`.
        """
        deadline = time.monotonic() + limit_s
        missing = dict(self._pipes)
        reports: dict[str, dict[str, Any]] = {}
        while missing:
            ready = wait(list(missing.values()), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RunFailed(f"no {word!r} from {' and '.join(sorted(missing))} within {limit_s:.0f} s")
            for role in [role for role, pipe in missing.items() if pipe in ready]:
                said, reports[role] = _received(role, missing.pop(role))
                if said != word:
                    raise RunFailed(f"{role}: {said}")
        return reports


def _received(role: str, pipe: Connection) -> tuple[str, dict[str, Any]]:
    """Return the next word of a process and its figures.

    Raises: RunFailed when it reports a failure, or ended.
    """
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
    try:
        try:
            task(line, *arguments)
        except (Fault, OSError) as error:
            kind = f"{type(error).__name__}: " if isinstance(error, OSError) else ""
            line.tell("failed", {"error": f"{kind}{error}"})
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the bench has ended or is ending


class Interruption:
    """Holds whether the user asked the run to stop.

    Raises: KeyboardInterrupt at the second Ctrl-C.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
