"""The streams of a simulated leaf: a crash drops elements that are not durable, a limit forces old ones out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.overlay.packets import Space
from broker.overlay.simulation.leaf_member import MemoryStream
from broker.routing.index import TopicIndex


class MemoryLog:
    """All streams of one leaf.

    `on_append` is called after each append, `on_trim` before each trim, with the numbers up to which the stream was and
    will be trimmed.
    """

    def __init__(self, spaces: Iterable[Space], on_append: Callable[[Space], None] = lambda _: None) -> None:
        self.on_append = on_append
        self.on_trim: Callable[[Space, int, int], None] = lambda _space, _trimmed, _upto: None
        self.streams = {space: FaultyStream(self, space) for space in spaces}

    def crash(self) -> None:
        """Drop the elements that are not durable."""
        for stream in self.streams.values():
            stream.crash()


class FaultyStream(MemoryStream):
    """One stream, which also records the bound patterns."""

    def __init__(self, log: MemoryLog, space: Space, before: int = 0) -> None:
        """`before` is the number before the first element."""
        super().__init__(space, log.on_append)
        self._log = log
        self.bound: set[str] = set()
        self.last = self.durable = self.trimmed = before

    def trim(self, upto: int) -> None:
        """Drop acknowledged elements."""
        self._log.on_trim(self._space, self.trimmed, upto)
        super().trim(upto)

    def force_out(self, upto: int) -> None:
        """Drop elements as a limit does."""
        if upto > self.trimmed:
            self.mark_lost(upto)
            super().trim(upto)

    def bind(self, added: Iterable[str], removed: Iterable[str] = ()) -> None:
        """Change the bindings of the stream."""
        super().bind(added, removed)
        self.bound = (self.bound | {*added}) - {*removed}

    def crash(self) -> None:
        """Drop the elements that are not durable."""
        for number in [number for number in self.numbers if number > self.durable]:
            del self.elements[number]
        self.numbers = [number for number in self.numbers if number <= self.durable]
        self.last = self.durable
        self.index = TopicIndex()
        self.bound = set()
        self._before_next = None
