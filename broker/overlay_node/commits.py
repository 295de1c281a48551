"""What waits for the next commit of a vhost's log, in the order in which it came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.delivery.committer import EngineCommitter

__all__ = ["Commits"]


class Commits:
    """Runs functions once all records so far are on disk: a Confirmable of the vhost's committer."""

    def __init__(self, committer: EngineCommitter) -> None:
        self._committer = committer
        self._done: deque[tuple[int, Callable[[], None]]] = deque()
        self.published = self.logged = self.confirmed = 0
        self.waiting = False

    @property
    def busy(self) -> bool:
        """Whether something waits."""
        return bool(self._done)

    def after(self, done: Callable[[], None]) -> None:
        """Call `done` after the commit that has every record so far."""
        self.published += 1
        self.logged = self.published
        self._done.append((self.published, done))
        if not self.waiting:
            self.waiting = True
            self._committer.wait(self)

    def confirm(self, upto: int) -> None:
        """Hear that everything up to and including number `upto` is safe."""
        self.confirmed = upto
        while self._done and self._done[0][0] <= upto:
            self._done.popleft()[1]()
