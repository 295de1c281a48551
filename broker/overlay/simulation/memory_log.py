"""The streams of a simulated leaf: what is durable survives its crash."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from broker.overlay.packets import Data, Element, Space, Vector, VectorChange
from broker.overlay.source import LogPart
from broker.routing.index import TopicIndex


class MemoryLog:
    """All streams of one leaf.

    `on_append` is called after each append; `on_trim` before elements go, with the number up to which they are gone and
    the new one.
    """

    def __init__(self, spaces: Iterable[Space], on_append: Callable[[Space], None] = lambda _: None) -> None:
        self.streams = {space: MemoryStream(self, space) for space in spaces}
        self.on_append = on_append
        self.on_trim: Callable[[Space, int, int], None] = _nothing_trimmed

    def crash(self) -> None:
        """Lose what is not durable."""
        for stream in self.streams.values():
            stream.crash()


class MemoryStream:
    """One stream, and the bindings that draw messages into it."""

    def __init__(self, log: MemoryLog, space: Space, before: int = 0) -> None:
        """`before` is the number before the first one."""
        self._log = log
        self._space = space
        self.index = TopicIndex()
        self.bound: set[str] = set()
        self.elements: dict[int, Element] = {}
        self.numbers: list[int] = []
        self.last = before
        self.durable = before
        self.trimmed = before
        self.lost = 0
        self._before_next: Callable[[], None] | None = None

    @property
    def changes(self) -> Sequence[VectorChange]:
        """The vector changes that are kept."""
        return [element for element in self.elements.values() if isinstance(element, VectorChange)]

    def read(self, first: int, last: int, limit_bytes: int) -> LogPart | None:
        """Return elements up to a limit."""
        elements: list[Element] = []
        size_bytes = 0
        for number in self.numbers[bisect_left(self.numbers, first) :]:
            if number > last:
                break
            if elements and size_bytes >= limit_bytes:
                return LogPart(number - 1, tuple(elements))
            element = self.elements[number]
            size_bytes += element.size_bytes + 50 if isinstance(element, Data) else 50
            elements.append(element)
        return LogPart(last, tuple(elements))

    def append_vector(self, old: Vector, new: Vector, incarnation: int) -> int:
        """Append a vector change."""
        self._go_before()
        return self._append(VectorChange(self.last + 1, old, new, incarnation))

    def publish(self, key: str, content: bytes, copies: tuple[str, ...] = ()) -> int | None:
        """Append a message if a binding matches one of its keys, and return its number."""
        if not any(self.index.match(one) for one in (key, *copies)):
            return None
        self._go_before()
        return self._append(Data(self.last + 1, key, content, copies))

    def before_next(self, call: Callable[[], None] | None) -> None:
        """Call a function once, before the next element."""
        self._before_next = call

    def _go_before(self) -> None:
        call, self._before_next = self._before_next, None
        if call is not None:
            call()

    def _append(self, element: Element) -> int:
        self.last = element.number
        self.elements[element.number] = element
        self.numbers.append(element.number)
        self._log.on_append(self._space)
        return self.last

    def sync(self) -> None:
        """Make all elements durable."""
        self.durable = self.last

    def trim(self, upto: int) -> None:
        """Drop elements that no leaf needs."""
        self._log.on_trim(self._space, self.trimmed, upto)
        self._drop(upto)

    def mark_lost(self, upto: int) -> None:
        """Mark numbers that go before all had them."""
        self.lost = max(self.lost, upto)

    def force_out(self, upto: int) -> None:
        """Drop elements as a limit does."""
        if upto > self.trimmed:
            self.mark_lost(upto)
            self._drop(upto)

    def _drop(self, upto: int) -> None:
        """Drop the elements up to a number, except the last vector change among them."""
        end = bisect_left(self.numbers, upto + 1)
        kept: int | None = None
        for number in reversed(self.numbers[:end]):
            if kept is None and isinstance(self.elements[number], VectorChange):
                kept = number
            else:
                del self.elements[number]
        self.numbers[:end] = [] if kept is None else [kept]
        self.trimmed = max(self.trimmed, upto)

    def bind(self, added: Iterable[str], removed: Iterable[str] = ()) -> None:
        """Change the bindings of the stream."""
        for text in added:
            self.index.add(self.index.parse(text), self._space)
            self.bound.add(text)
        for text in removed:
            self.index.remove(self.index.parse(text), self._space)
            self.bound.discard(text)

    def crash(self) -> None:
        """Lose what is not durable."""
        for number in [number for number in self.numbers if number > self.durable]:
            del self.elements[number]
        self.numbers = [number for number in self.numbers if number <= self.durable]
        self.last = self.durable
        self.index = TopicIndex()
        self.bound = set()
        self._before_next = None


def _nothing_trimmed(_space: Space, _trimmed: int, _upto: int) -> None:
    """Do nothing."""
