"""A simulated leaf that can crash, with records of the messages its clients published and received."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from broker.overlay.leaf import Leaf
from broker.overlay.packets import Conjunction, Data, Space, StreamName, Vector, VectorChange
from broker.overlay.simulation.leaf_member import LeafMember
from broker.overlay.sink import Delivery, StreamGap
from broker.overlay.source import LeafState
from broker.routing.cover_index import covers
from broker.routing.pattern import Pattern, parse_pattern, split_words
from tests.overlay.faulty_log import MemoryLog


@lru_cache(maxsize=100_000)
def wants(text: str, key: str) -> bool:
    """Return whether a pattern matches a key."""
    return covers(parse_pattern(text), Pattern(key, tuple(split_words(key)), literal=True))


@dataclass(slots=True, eq=False)
class SimulatedBinding:
    """A client's binding. `durable` ones survive a crash; `start_point` is 0 until the broker knows the binding.

    `made` is the number of the simulation event that made it, `got` the keys of the messages committed to it.
    """

    conjunction: Conjunction
    durable: bool
    start_point: int = 0
    made: int = 0
    got: set[int] = field(default_factory=set, repr=False)

    def matches(self, space: Space, keys: Iterable[str]) -> bool:
        """Return whether the binding matches a message of a space with these keys."""
        return self.conjunction.space == space and any(wants(self.conjunction.pattern, key) for key in keys)

    def gets(self, space: Space, keys: Iterable[str], virtual_time: int) -> bool:
        """Return whether the binding gets a message that was matched at a virtual time."""
        return 0 < self.start_point <= virtual_time and self.matches(space, keys)


@dataclass(frozen=True, slots=True)
class SimulatedPublish:
    """A message that a client published, with its number, or None if no leaf wanted it, and the current vector.

    `event` is the number of the simulation event that published it. Numbers may repeat after a data folder was replaced
    by an older one; the element object identifies the message everywhere.
    """

    number: int | None
    keys: tuple[str, ...]
    vector: Vector
    event: int
    size_bytes: int
    element: Data | None = field(repr=False)
    incarnation: int = 0

    @property
    def key(self) -> int:
        """Return a unique identity."""
        return id(self.element)


class FaultyLeaf(LeafMember):
    """A leaf that can crash. Its streams, committed messages and state survive; everything else is lost."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        spaces = list(self.streams)
        self.log = MemoryLog(spaces, self._appended)
        self.streams = self.log.streams
        self._telling = False
        self._untold: list[tuple[dict[str, SimulatedBinding], tuple[str, ...]]] = []
        self.saved = LeafState()
        self.bindings: dict[str, SimulatedBinding] = {}
        self.published: dict[Space, list[SimulatedPublish]] = {space: [] for space in spaces}
        self.arrived: dict[int, int] = {}  # virtual times of committed messages, by key
        self.received_numbers: dict[StreamName, dict[int, int]] = {}
        self.positions: dict[StreamName, int] = {}
        self.messages: dict[int, SimulatedPublish] = {}  # by key
        self.lost_life: dict[Space, list[SimulatedPublish]] = {
            space: []  # lost in crashes and with replaced folders
            for space in spaces
        }
        self._incarnations: list[int] = []
        self.replaced = False
        self.copied: set[int] = set()  # keys of the messages in restored folders
        self.gaps: list[StreamGap] = []
        self.virtual_times: list[int] = []
        self.on_commit: Callable[[str, Delivery, list[SimulatedBinding]], None] = lambda _leaf, _delivery, _got: None

    def start(self) -> None:
        """Start the broker with the surviving state."""
        recovered = {name: binding for name, binding in self.bindings.items() if binding.durable}
        self.bindings = {}
        state = LeafState(self.saved.time_bound, self.saved.start_points, dict(self.positions))
        interest = self._make_interest(persisted_bound=state.time_bound, incarnation=self._dice.randint(1, 1 << 40))
        self._incarnations.append(self._dice.randint(1, 1 << 60))
        self.broker = leaf = Leaf(
            self.name, self._neighbour, interest, self.log.streams, state, incarnation=self._incarnations[-1]
        )
        self._uncommitted = []
        self.bindings = recovered
        self._untold = [(recovered, ())]
        self._tell()
        self._bind(leaf)

    def crash(self) -> None:
        """Lose everything that is not durable."""
        super().crash()
        self._uncommitted = []
        self.log.crash()
        for space, messages in self.published.items():
            durable = self.log.streams[space].durable
            self.published[space] = [m for m in messages if m.number is None or m.number <= durable]
            self.lost_life[space] += messages[len(self.published[space]) :]

    def change_bindings(self, added: dict[str, SimulatedBinding], removed: Iterable[str]) -> None:
        """Change bindings at once, and notify the broker a little later."""
        removed = tuple(removed)
        for name in removed:
            self.bindings.pop(name, None)
        for binding in added.values():
            binding.made = self._scheduler.count
        self.bindings |= added
        self._untold.append((added, removed))
        if not self._telling:
            self._telling = True
            self._scheduler.after(self._dice.choice((0, 1, 40)), self._tell)

    def _tell(self) -> None:
        """Pass all changes to the broker as one batch, and save its state before it sends anything."""
        self._telling = False
        leaf = self.broker
        if not isinstance(leaf, Leaf):
            return
        new: dict[str, SimulatedBinding] = {}
        dropped: list[str] = []
        untold, self._untold = self._untold, []
        for added, removed in untold:
            dropped += removed
            new = {name: binding for name, binding in new.items() if name not in removed} | added
        leaf.bindings_changed([(name, binding.conjunction, binding.durable) for name, binding in new.items()], dropped)
        for name, binding in new.items():
            binding.start_point = leaf.subscriptions.start(name)
        self.saved = leaf.state()
        self.virtual_times.append(leaf.interest.time(self.name))
        self.poll()

    def publish(self, space: Space, key: str, content: bytes = b"", copies: tuple[str, ...] = ()) -> None:
        """Publish a message."""
        vector = self.leaf.sources[space].vector
        number = self.log.streams[space].publish(key, content, copies)
        element = None if number is None else self.log.streams[space].elements[number]
        assert not isinstance(element, VectorChange)
        size_bytes = len(content)
        message = SimulatedPublish(
            number, (key, *copies), vector, self._scheduler.count, size_bytes, element, self._incarnations[-1]
        )
        self.published[space].append(message)
        self.messages[message.key] = message

    def began(self, incarnation: int, other: int) -> bool:
        """Return whether an incarnation began no later than another."""
        return self._incarnations.index(incarnation) <= self._incarnations.index(other)

    def _process_results(self) -> None:
        super()._process_results()
        if not self._committing:
            self._drop_replaced(self.leaf)
        self.gaps += self.leaf.take_gaps()

    def _commit(self) -> None:
        if not self.is_running:
            self._committing = False
            self._uncommitted = []
            return
        super()._commit()
        if not self._uncommitted:
            self._drop_replaced(self.leaf)

    def _deliver(self, delivery: Delivery) -> None:
        data, space = delivery.data, delivery.stream.space
        getting = [
            binding
            for binding in self.bindings.values()
            if binding.gets(space, (data.key, *data.copies), delivery.virtual_time)
        ]
        self.on_commit(self.name, delivery, getting)
        self.arrived[id(data)] = delivery.virtual_time
        for binding in getting:
            binding.got.add(id(data))
        self.received_numbers.setdefault(delivery.stream, {})[data.number] = delivery.virtual_time

    def _committed(self, stream: StreamName, number: int) -> None:
        super()._committed(stream, number)
        self.positions[stream] = number

    def _drop_replaced(self, leaf: Leaf) -> None:
        """Replace the positions of former incarnations with those of the incarnations that continue them."""
        replaced = leaf.take_replaced()
        for stream, sink in leaf.sinks.items() if replaced else ():
            if sink.position is not None:
                self.positions[stream] = sink.committed_upto
        for stream in replaced:
            self.positions.pop(stream, None)
