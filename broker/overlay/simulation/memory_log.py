"""The streams of a simulated leaf: what is durable survives its crash."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from broker.overlay.packets import Data, Element, Space, Vector, VectorChange
from broker.overlay.stream_log import LogPart
from broker.routing.index import TopicIndex


class MemoryStream:
    """One stream, and the bindings that draw messages into it."""

    def __init__(self, before: int = 0) -> None:
        """`before` is the number before the first one."""
        self.index = TopicIndex()
        self.bound: set[str] = set()
        self.elements: dict[int, Element] = {}
        self.numbers: list[int] = []
        self.last = before
        self.durable = before
        self.trimmed = before
        self.lost = 0
        self.before_next: Callable[[], None] | None = None

    def copy(self) -> MemoryStream:
        """Return what a copy of the data folder has of the stream."""
        copy = MemoryStream()
        copy.elements = {number: element for number, element in self.elements.items() if number <= self.durable}
        copy.numbers = list(copy.elements)
        copy.last = copy.durable = self.durable
        copy.trimmed, copy.lost = self.trimmed, self.lost
        return copy

    def append(self, element: Element) -> None:
        """Append an element with the next number."""
        self.last = element.number
        self.elements[element.number] = element
        self.numbers.append(element.number)

    def sync(self) -> None:
        """Make all elements durable."""
        self.durable = self.last

    def call_before_next(self, call: Callable[[], None] | None) -> None:
        """Call a function once, before the next element."""
        self.before_next = call

    def mark_lost(self, upto: int) -> None:
        """Mark numbers that go before all had them."""
        self.lost = max(self.lost, upto)

    def go_before(self) -> None:
        """Call what waits for the next element."""
        call, self.before_next = self.before_next, None
        if call is not None:
            call()

    def drop(self, upto: int) -> None:
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

    def crash(self) -> None:
        """Lose what is not durable."""
        for number in [number for number in self.numbers if number > self.durable]:
            del self.elements[number]
        self.numbers = [number for number in self.numbers if number <= self.durable]
        self.last = self.durable
        self.index = TopicIndex()
        self.bound = set()
        self.before_next = None


class MemoryLog:
    """All streams of one leaf. `on_append` is called after each append, and `on_trim` before elements go."""

    def __init__(self, spaces: Iterable[Space], on_append: Callable[[Space], None] = lambda _: None) -> None:
        self.streams = {space: MemoryStream() for space in spaces}
        self.on_append = on_append
        self.on_trim: Callable[[Space, int, int], None] = _nothing_trimmed

    def watch(self, on_trim: Callable[[Space, int, int], None]) -> None:
        """Call a function before elements go, with the number up to which they are gone and the new one."""
        self.on_trim = on_trim

    def spaces(self) -> Iterable[Space]:
        """Return the spaces."""
        return self.streams

    def last(self, space: Space) -> int:
        """Return the highest durable number."""
        return self.streams[space].durable

    def trimmed(self, space: Space) -> int:
        """Return the number up to which elements are gone."""
        return self.streams[space].trimmed

    def lost(self, space: Space) -> int:
        """Return the number up to which elements may have gone before all had them."""
        return self.streams[space].lost

    def vectors(self, space: Space) -> Sequence[VectorChange]:
        """Return the vector changes that are kept."""
        elements = self.streams[space].elements.values()
        return [element for element in elements if isinstance(element, VectorChange)]

    def read(self, space: Space, first: int, last: int, limit_bytes: int) -> LogPart | None:
        """Return elements up to a limit."""
        stream = self.streams[space]
        elements: list[Element] = []
        size_bytes = 0
        for at in range(bisect_left(stream.numbers, first), len(stream.numbers)):
            number = stream.numbers[at]
            if number > last:
                break
            if elements and size_bytes >= limit_bytes:
                return LogPart(number - 1, tuple(elements))
            element = stream.elements[number]
            size_bytes += element.size_bytes + 50 if isinstance(element, Data) else 50
            elements.append(element)
        return LogPart(last, tuple(elements))

    def append_vector(self, space: Space, old: Vector, new: Vector, incarnation: int) -> int:
        """Append a vector change."""
        stream = self.streams[space]
        stream.go_before()
        stream.append(VectorChange(stream.last + 1, old, new, incarnation))
        self.on_append(space)
        return stream.last

    def before_next(self, space: Space, call: Callable[[], None] | None) -> None:
        """Call a function before the next message."""
        self.streams[space].call_before_next(call)

    def append(self, space: Space, key: str, content: bytes, copies: tuple[str, ...] = ()) -> int | None:
        """Append a message if a binding matches one of its keys, and return its number."""
        stream = self.streams[space]
        if not any(stream.index.match(one) for one in (key, *copies)):
            return None
        stream.go_before()
        stream.append(Data(stream.last + 1, key, content, copies))
        self.on_append(space)
        return stream.last

    def trim(self, space: Space, upto: int) -> None:
        """Drop what nobody needs."""
        stream = self.streams[space]
        self.on_trim(space, stream.trimmed, upto)
        stream.drop(upto)

    def mark_lost(self, space: Space, upto: int) -> None:
        """Mark numbers that go before all had them."""
        self.streams[space].mark_lost(upto)

    def force_out(self, space: Space, upto: int) -> None:
        """Drop elements as a limit does."""
        stream = self.streams[space]
        if upto > stream.trimmed:
            self.mark_lost(space, upto)
            stream.drop(upto)

    def bind(self, space: Space, added: Iterable[str], removed: Iterable[str]) -> None:
        """Change the bindings of a stream."""
        stream = self.streams[space]
        for text in added:
            stream.index.add(stream.index.parse(text), space)
            stream.bound.add(text)
        for text in removed:
            stream.index.remove(stream.index.parse(text), space)
            stream.bound.discard(text)

    def crash(self) -> None:
        """Lose what is not durable."""
        for stream in self.streams.values():
            stream.crash()


def _nothing_trimmed(_space: Space, _trimmed: int, _upto: int) -> None:
    """Do nothing."""
