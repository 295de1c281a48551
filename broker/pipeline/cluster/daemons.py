"""The processes of a cluster: started apart from whoever starts them, known by their mark, ended in order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.pipeline.cluster.folder import Daemon
from broker.pipeline.job import JobFailed

__all__ = ["MARK", "end", "is_ours", "last_words", "rss_bytes", "spawn", "wait_for"]

MARK: Final = "-Dslotmq.cluster="
READY_MAX_S: Final = 90.0  # a JVM on a busy machine
TERM_MAX_S: Final = 20.0
KILL_MAX_S: Final = 5.0
PAUSE_S: Final = 0.1
PROC: Final = Path("/proc")
# A shell in between, so that the daemon has no parent that would have to wait for it.
APART: Final = '"$@" </dev/null >>"$0" 2>&1 & echo $!'


def spawn(role: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Daemon:
    """Start a process that outlives this one, and return it. Raises: JobFailed."""
    try:
        log.unlink(missing_ok=True)
        done = subprocess.run(  # noqa: S603 - Spark's own launcher, found beside the package
            ["bash", "-c", APART, str(log), *command],  # noqa: S607
            env=dict(environment), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        raise JobFailed(f"the {role} could not be started: {error}") from None
    return Daemon(role, int(done.stdout), str(log))


def is_ours(daemon: Daemon, mark: str) -> bool:
    """Return whether the process still runs and is the one that was started: numbers of processes come again.

    The launcher, before it has become the daemon, has the mark in its environment only.
    """
    word = MARK + mark
    return word in _command(daemon.pid) or any(word in each for each in _words(daemon.pid, "environ"))


def _command(pid: int) -> Sequence[str]:
    if (PROC / "self").exists():
        return _words(pid, "cmdline")
    asked = subprocess.run(  # noqa: S603
        ["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False  # noqa: S607
    )  # fmt: skip
    return asked.stdout.split()


def _words(pid: int, name: str) -> Sequence[str]:
    try:
        return (PROC / str(pid) / name).read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ()


def rss_bytes(daemon: Daemon) -> int | None:
    """Return the memory that a process has now, None where nobody says."""
    with suppress(OSError, ValueError, IndexError):
        pages = int((PROC / str(daemon.pid) / "statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return None


def wait_for(daemon: Daemon, mark: str, pattern: re.Pattern[str]) -> re.Match[str]:
    """Return where the process's log says what is waited for. Raises: JobFailed when it ends, or takes too long."""
    end_s = time.monotonic() + READY_MAX_S
    log = Path(daemon.log)
    seen_ours = False
    while True:
        # Asked before the log is read: what it said last before it ended counts.
        ours = is_ours(daemon, mark)
        found = pattern.search(log.read_text(encoding="utf-8", errors="replace"))
        if found is not None:
            return found
        seen_ours |= ours
        if not ours and (seen_ours or not _command(daemon.pid)):
            raise JobFailed(f"the {daemon.role} ended at once: {last_words(log)} ({log})")
        if time.monotonic() > end_s:
            raise JobFailed(f"the {daemon.role} was not ready after {READY_MAX_S:g} s: see {log}")
        time.sleep(PAUSE_S)


def last_words(log: Path) -> str:
    """Return the last line of a log that says something of its own."""
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return "it said nothing"
    said = [line for line in lines if line and not line.startswith(("at ", "..."))]
    return said[-1][:300] if said else "it said nothing"


def end(daemons: Sequence[Daemon], mark: str) -> list[Daemon]:
    """End those of the processes that are ours, and return them; who does not go in time is killed."""
    ended = [daemon for daemon in daemons if _signal(daemon, mark, signal.SIGTERM)]
    if not _wait(lambda: any(is_ours(daemon, mark) for daemon in ended), TERM_MAX_S):
        for daemon in ended:
            _signal(daemon, mark, signal.SIGKILL)
        _wait(lambda: any(is_ours(daemon, mark) for daemon in ended), KILL_MAX_S)
    return ended


def _signal(daemon: Daemon, mark: str, number: signal.Signals) -> bool:
    """Signal a process after a look at who it is; between look and signal its number cannot come again so soon."""
    if not is_ours(daemon, mark):
        return False
    with suppress(ProcessLookupError):
        os.kill(daemon.pid, number)
    return True


def _wait(condition: Callable[[], bool], limit_s: float) -> bool:
    """Return whether the condition ended in time."""
    end_s = time.monotonic() + limit_s
    while condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(PAUSE_S)
    return True
