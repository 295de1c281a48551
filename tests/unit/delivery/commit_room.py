"""A committer on a disk and an event loop controlled by the test."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from broker.delivery.committer import Committer
from broker.store.damage import StoreFailed
from broker.store.files import File
from broker.store.memory_files import FileContent, MemoryFile, MemoryFiles
from broker.store.message_log import MessageLog
from broker.store.record import encode_settled
from tests.deadline import DEADLINE_S

__all__ = ["FAILURE", "CommitRoom", "FakePublisher"]

FOLDER = Path("/log")
FAILURE = StoreFailed(FOLDER, "Input/output error")


class Promise:
    """A future that calls its callbacks at once."""

    def __init__(self) -> None:
        self._done = False
        self._error: Exception | None = None
        self._then: list[Callable[[Any], None]] = []

    def done(self) -> bool:
        """Return whether a result or an exception is set."""
        return self._done

    def result(self) -> None:
        """Raise the exception, if one is set."""
        if self._error is not None:
            raise self._error

    def set_result(self, _value: None) -> None:
        """Set the result."""
        self._settle(None)

    def set_exception(self, error: Exception) -> None:
        """Set the exception."""
        self._settle(error)

    def add_done_callback(self, then: Callable[[Any], None]) -> None:
        """Call `then` when the promise is settled."""
        self._then.append(then)

    def _settle(self, error: Exception | None) -> None:
        assert not self._done, "settled twice"
        self._done, self._error = True, error
        for then in self._then:
            then(self)

    def __await__(self) -> Generator[None, None, None]:
        while not self._done:
            yield
        self.result()


class Alarm:
    """A timer of the fake loop."""

    cancelled = False

    def __init__(self, delay_s: float, ring: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.ring = ring

    def cancel(self) -> None:
        """Cancel the timer."""
        self.cancelled = True


class GatedDisk(MemoryFiles):
    """A disk with its own clock; once it is `gated`, the test determines when syncs end, and their outcomes."""

    gated = False

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.outcomes: SimpleQueue[tuple[Exception | None, float]] = SimpleQueue()
        self.make_folder(FOLDER)

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file."""
        super().open(path, write=write, create=create)
        return GatedFile(path, self.contents[path], self)


class GatedFile(MemoryFile):
    """A file of GatedDisk."""

    def __init__(self, path: Path, content: FileContent, disk: GatedDisk) -> None:
        super().__init__(path, content)
        self._disk = disk

    def sync(self) -> None:
        """Wait for an outcome from the test."""
        if self._disk.gated:
            error, lasts_s = self._disk.outcomes.get(timeout=DEADLINE_S)
            self._disk.now_s += lasts_s
            if error is not None:
                raise error


class NumberedLog:
    """A real log on a gated disk, whose records are numbered from 1."""

    def __init__(self) -> None:
        self.disk = GatedDisk()
        self.log = MessageLog(self.disk, FOLDER, segment_bytes=1 << 24, sync=True)
        self.log.begin()
        self.log.time_syncs(lambda: self.disk.now_s)
        self.disk.gated = True
        self._ends: list[int] = []

    def append(self, count: int = 1) -> None:
        """Append the next record, whose length grows with `count`."""
        ids = range(2, 2 * count + 2, 2)
        self.log.append(encode_settled(self.log.synced, 0, 1, ids))
        self._ends.append(self.log.position)

    def upto(self, position: int) -> list[int]:
        """Return the numbers of the records that end before a position."""
        return [number for number, end in enumerate(self._ends, 1) if end <= position]

    @property
    def completed(self) -> list[int]:
        """The numbers of the records that are on disk."""
        return self.upto(self.log.confirmable)


class FakePublisher:
    """A channel that publishes and receives confirms."""

    def __init__(self, name: str, room: CommitRoom) -> None:
        self.name = name
        self._room = room
        self.published = self.confirmed = self.logged = 0
        self.waiting = False

    def publish(self, *, persistent: bool = True, count: int = 1) -> None:
        """Publish a message."""
        self.published += 1
        if persistent:
            self._room.log.append(count)
            self.logged = self.published
        if not self.waiting:
            self.waiting = True
            as_publisher: Any = self
            self._room.committer.wait(as_publisher)

    def confirm(self, upto: int) -> None:
        """Record a confirm."""
        if upto > self.confirmed:
            self.confirmed = upto
            self._room.confirms.append((self.name, upto))


class CommitRoom:
    """A committer on a gated disk; the room also is its event loop, controlled by the test."""

    def __init__(self) -> None:
        self.log = NumberedLog()
        self.ended: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.alarms: list[Alarm] = []
        self.confirms: list[tuple[str, int]] = []
        self.failures: list[BaseException] = []
        self.scheduled = 0
        loop: Any = self
        self.committer = Committer(self.log.log, loop, self._schedule, self.failures.append)

    def _schedule(self) -> None:
        self.scheduled += 1

    # -- the loop

    def call_soon_threadsafe(self, ended: Callable[[BaseException | None], None], error: BaseException | None) -> None:
        """Pass the end of a write to the test."""
        self.ended.put(lambda: ended(error))

    def create_future(self) -> Promise:
        """Return a promise."""
        return Promise()

    def call_later(self, delay_s: float, ring: Callable[[], None]) -> Alarm:
        """Set a timer that the test fires."""
        self.alarms.append(Alarm(delay_s, ring))
        return self.alarms[-1]

    # -- the test

    @property
    def writing(self) -> list[int]:
        """The numbers of the records that are being written."""
        batch = self.committer._batch
        return [] if batch is None else self.log.upto(batch.end)[len(self.log.completed) :]

    def turn(self) -> None:
        """Run the requested turns."""
        while self.scheduled:
            self.scheduled = 0
            self.committer.turn(0, False)

    def one_turn(self) -> None:
        """Run one turn, even if it schedules another one."""
        self.scheduled = 0
        self.committer.turn(0, False)

    def quiet_turn(self, number: int) -> None:
        """Run the numbered turn of those without other work; 0 is a turn with other work."""
        self.scheduled = 0
        self.committer.turn(number, number > 0)

    def end_write(self, error: Exception | None = None, lasts_s: float = 0.0) -> None:
        """End the running write."""
        self.log.disk.outcomes.put((error, lasts_s))
        self.ended.get(timeout=DEADLINE_S)()

    def drain(self) -> Generator[Any, None, None]:
        """Start a drain, and return its iterator."""
        draining = self.committer.drain().__await__()
        next(draining)
        return draining
