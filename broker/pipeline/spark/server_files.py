"""The files by which a user's commands find the Spark server, and by which the server knows whether it is in use.

server.json     the server's address and token; mode 0600; exists while the server accepts commands
server.alive    locked by the server while it runs, so that the state left by a crash is recognized
server.use      locked by each command that uses the server; the file's time is that of the last use
server.start    locked by the process that starts or stops the server
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from broker.pipeline.faults import ServerRefused

FORMAT: Final = 1
STOP: Final = "slotmq pipeline server stop"
PRIVATE: Final = 0o600
ACCESS_BY_OTHERS: Final = 0o077
WRITTEN_BY_OTHERS: Final = 0o022
PID_DIGITS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """The settings of a server. It ends after being idle for `idle_s`. `conf` is for Spark and may contain secrets."""

    master: str = "local[*]"
    memory: str = "1g"
    idle_s: float = 1800.0
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState(ServerRequest):
    """A server that accepts commands. Shapes: `python` is the path of the workers' Python."""

    pid: int
    port: int
    token: str = field(repr=False)
    cores: int
    python: str
    versions: str
    began: str
    log: str

    def __str__(self) -> str:
        return f"the Spark server with pid {self.pid} ({self.master}, {self.memory})"


class ServerFiles:
    """The files in the user's cache folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = folder / "server.json"
        self._held: list[int] = []

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Hold the start lock, so that only one process at a time starts or stops the server."""
        descriptor = self._lock("server.start", fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(descriptor)

    def live(self) -> bool:
        """Lock `server.alive` until this process ends, and write the pid to it; return whether the lock was free."""
        descriptor = self._lock_now("server.alive", fcntl.LOCK_EX)
        if descriptor is None:
            return False
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._held.append(descriptor)
        return True

    def alive(self) -> bool:
        """Return whether a server runs, even if it is not ready yet."""
        descriptor = self._lock_now("server.alive", fcntl.LOCK_SH)
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is None

    def holder(self) -> int | None:
        """Return the pid of the running server; None if none runs, or if other users can write the file."""
        descriptor = os.open(self.folder / "server.alive", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & WRITTEN_BY_OTHERS:
                return None
            text = file.read(PID_DIGITS_MAX)
        return int(text) if text.isdecimal() and int(text) > 1 and self.alive() else None

    def use(self) -> ServerState | None:
        """Return the server, and keep it running until this process ends; None if none runs. Raises: ServerRefused."""
        descriptor = self._lock("server.use", fcntl.LOCK_SH)
        found = None
        try:
            os.utime(descriptor)
            found = self.read()
        finally:
            if found is None:
                os.close(descriptor)
            else:
                self._held.append(descriptor)
        return found

    def last_used_s(self) -> float | None:
        """Return the Unix time at which a command last started to use the server, or None while a command uses it."""
        descriptor = self._lock_now("server.use", fcntl.LOCK_EX)
        if descriptor is None:
            return None
        used_s = os.fstat(descriptor).st_mtime
        os.close(descriptor)
        return used_s

    def retire(self) -> bool:
        """Remove the state, unless a command uses the server; return whether it was removed."""
        descriptor = self._lock_now("server.use", fcntl.LOCK_EX)
        if descriptor is not None:
            self.remove()
            os.close(descriptor)
        return descriptor is not None

    def read(self) -> ServerState | None:
        """Return the server that accepts commands, or None; remove the state of a server that has ended.

        Raises: ServerRefused if other users can read or write the state, or if it is not valid.
        """
        try:
            with self._state.open(encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                if status.st_uid != os.getuid() or status.st_mode & ACCESS_BY_OTHERS:
                    raise ServerRefused(f"{self._state} is not this user's alone, so it is not trusted: {STOP}")
                text = file.read()
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            raise ServerRefused(f"{self._state} cannot be read: {STOP}") from None
        if not self.alive():
            self.remove()
            return None
        try:
            found = json.loads(text)
            if found.pop("format") != FORMAT:
                raise ServerRefused(f"{self._state} is of another version: {STOP}")
            return ServerState(**found)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ServerRefused(f"{self._state} cannot be read: {STOP}") from None

    def write(self, state: ServerState) -> None:
        """Publish the server's state, so that commands can find the server."""
        writing = self._state.with_suffix(f".{state.pid}")
        with suppress(FileNotFoundError):
            writing.unlink()
        descriptor = os.open(writing, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, **asdict(state)}, file)
        writing.replace(self._state)

    def remove(self) -> None:
        self._state.unlink(missing_ok=True)

    def _lock_now(self, name: str, how: int) -> int | None:
        """Return the descriptor of a locked file, or None if another process has locked it."""
        try:
            return self._lock(name, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return None

    def _lock(self, name: str, how: int) -> int:
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            fcntl.flock(descriptor, how)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
