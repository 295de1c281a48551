"""A simulated leaf broker with its clients' bindings and messages, and its streams in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from broker.overlay.aggregation import Aggregation
from broker.overlay.interest import Interest
from broker.overlay.leaf import Leaf
from broker.overlay.packets import Conjunction, Data, Element, Space, StreamName, Vector, VectorChange
from broker.overlay.simulation.member import Dice, Scheduler, SimulatedBroker
from broker.overlay.sink import Delivery
from broker.overlay.source import LogPart
from broker.routing.index import TopicIndex


class MemoryStream:
    """One stream in memory, with the bindings that route messages into it. `on_append` is called after each append.

    It implements `StreamLog`.
    """

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
        return [element for element in self.elements.values() if isinstance(element, VectorChange)]

    def read(self, first: int, last: int, limit_bytes: int) -> LogPart | None:
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
        self._run_before_next()
        return self._append(VectorChange(self.last + 1, old, new, incarnation))

    def publish(self, key: str, content: bytes, copies: tuple[str, ...] = ()) -> int | None:
        """Append a message and return its number, or return None if no binding matches any of its keys."""
        if not any(self.index.match(routing_key) for routing_key in (key, *copies)):
            return None
        self._run_before_next()
        return self._append(Data(self.last + 1, key, content, copies))

    def before_next(self, call: Callable[[], None] | None) -> None:
        self._before_next = call

    def _run_before_next(self) -> None:
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
        self.lost = max(self.lost, upto)

    def trim(self, upto: int) -> None:
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
        for text in added:
            self.index.add(self.index.parse(text), self._space)
        for text in removed:
            self.index.remove(self.index.parse(text), self._space)


class LeafMember(SimulatedBroker):
    """A simulated leaf. It commits published and received messages after a random delay."""

    def __init__(
        self,
        name: str,
        neighbour: str,
        spaces: Sequence[Space],
        scheduler: Scheduler,
        dice: Dice,
        aggregation: Aggregation,
        patterns_max: int,
    ) -> None:
        super().__init__(name, name, scheduler)
        self._neighbour = neighbour
        self._make_interest = partial(Interest, name, (neighbour,), aggregation, patterns_max, name)
        self._dice = dice
        self._syncing = False
        self._committing = False
        self._uncommitted: list[Delivery] = []
        self.streams: Mapping[Space, MemoryStream] = {space: MemoryStream(space, self._appended) for space in spaces}
        self.delivered = 0
        self.after_event = self._process_results

    def start(self) -> None:
        interest = self._make_interest(incarnation=self._dice.randint(1, 1 << 40))
        incarnation = self._dice.randint(1, 1 << 60)
        leaf = self.broker = Leaf(self.name, self._neighbour, interest, self.streams, incarnation=incarnation)
        leaf.bindings_changed((), ())
        self.poll()

    @property
    def leaf(self) -> Leaf:
        """The running broker."""
        assert isinstance(self.broker, Leaf)
        return self.broker

    def bind(self, bindings: Mapping[str, Conjunction]) -> None:
        """Add durable bindings after a random delay."""
        self._scheduler.after(self._dice.choice((0, 1, 40)), partial(self._change_bindings, bindings))

    def _change_bindings(self, bindings: Mapping[str, Conjunction]) -> None:
        self.leaf.bindings_changed([(name, conjunction, True) for name, conjunction in bindings.items()], ())
        self.poll()

    def publish(self, space: Space, key: str, content: bytes = b"", copies: tuple[str, ...] = ()) -> None:
        self.streams[space].publish(key, content, copies)

    def _process_results(self) -> None:
        leaf = self.leaf
        self._bind(leaf)
        deliveries = leaf.take_deliveries()
        if deliveries:
            self._uncommitted += deliveries
            if not self._committing:
                self._committing = True
                self._scheduler.after(self._dice.choice((1, 5, 150)), self._commit)

    def _bind(self, leaf: Leaf) -> None:
        for space, added, removed in leaf.take_bindings():
            self.streams[space].bind(added, removed)

    def _commit(self) -> None:
        self._committing = False
        deliveries, self._uncommitted = self._uncommitted, []
        last: dict[StreamName, int] = {}
        for delivery in deliveries:
            self._deliver(delivery)
            last[delivery.stream] = delivery.data.number
        for stream, number in last.items():
            self._committed(stream, number)

    def _deliver(self, delivery: Delivery) -> None:
        self.delivered += 1

    def _committed(self, stream: StreamName, number: int) -> None:
        self.leaf.committed(stream, number)

    def _appended(self, _space: Space) -> None:
        if not self._syncing:
            self._syncing = True
            self._scheduler.after(self._dice.randint(1, 5), self._sync)

    def _sync(self) -> None:
        """Make the elements appended so far durable, and send what depends on that."""
        self._syncing = False
        for stream in self.streams.values():
            stream.sync()
        self.poll()
