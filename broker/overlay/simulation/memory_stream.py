"""The stream of a simulated leaf, in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from broker.overlay.packets import Data, Element, Space, Vector, VectorChange
from broker.overlay.source import LogPart
from broker.routing.index import TopicIndex


class MemoryStream:
    """One stream, and the bindings that draw messages into it. `on_append` is called after each append."""

    def __init__(self, space: Space, on_append: Callable[[Space], None]) -> None:
        self._space = space
        self._on_append = on_append
        self.index = TopicIndex()
        self.elements: dict[int, Element] = {}
        self.numbers: list[int] = []
        self.last = self.durable = self.trimmed = self.lost = 0
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
        self._on_append(self._space)
        return self.last

    def sync(self) -> None:
        """Make all elements durable."""
        self.durable = self.last

    def mark_lost(self, upto: int) -> None:
        """Mark numbers that go before all had them."""
        self.lost = max(self.lost, upto)

    def trim(self, upto: int) -> None:
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
        for text in removed:
            self.index.remove(self.index.parse(text), self._space)
