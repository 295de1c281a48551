"""A simulated leaf broker with its clients' bindings and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from broker.overlay.aggregation import Aggregation
from broker.overlay.interest import Interest
from broker.overlay.leaf import Leaf
from broker.overlay.packets import Conjunction, Data, Space, StreamName, Vector, VectorChange
from broker.overlay.simulation.member import Dice, Scheduler, SimulatedBroker
from broker.overlay.simulation.memory_log import MemoryLog
from broker.overlay.sink import Delivery, StreamGap
from broker.overlay.source import LeafState
from broker.overlay.virtual_time import later
from broker.routing.cover_index import covers
from broker.routing.pattern import Pattern, parse_pattern, split_words


@lru_cache(maxsize=100_000)
def wants(text: str, key: str) -> bool:
    """Return whether a pattern matches a key."""
    return covers(parse_pattern(text), Pattern(key, tuple(split_words(key)), literal=True))


@dataclass(slots=True, eq=False)
class SimulatedBinding:
    """A binding of a client: what it wants, whether it survives a crash, and its start point, 0 until it is told.

    `made` is the event of the simulation that made it, `got` the keys of the messages that were committed to it.
    """

    conjunction: Conjunction
    durable: bool
    start_point: int = 0
    made: int = 0
    got: set[int] = field(default_factory=set, repr=False)

    def begin(self, event: int) -> None:
        """Record the event that adds the binding."""
        self.made = event

    def start(self, virtual_time: int) -> None:
        """Record the start point."""
        self.start_point = virtual_time

    def matches(self, space: Space, keys: Iterable[str]) -> bool:
        """Return whether the binding asks for a message of a space with these keys."""
        return self.conjunction.space == space and any(wants(self.conjunction.pattern, key) for key in keys)

    def gets(self, space: Space, keys: Iterable[str], virtual_time: int) -> bool:
        """Return whether a message that was matched against a virtual time is for this binding."""
        return 0 < self.start_point <= virtual_time and self.matches(space, keys)


@dataclass(frozen=True, slots=True)
class SimulatedPublish:
    """A message that a client published: its number, or None if nobody wanted it, and the vector in force.

    Where publishing leaves forget their vectors it is the latest of all that were in force: leaves demand no less.
    `event` is the event of the simulation that published it. Numbers may be used again after a data folder was replaced
    by an older one; the element is the message itself wherever it goes.
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
        """Return what no other message has."""
        return id(self.element)


class LeafMember(SimulatedBroker):
    """A leaf whose streams, committed messages and state survive its crashes; everything else does not."""

    def __init__(
        self,
        name: str,
        neighbour: str,
        spaces: Sequence[Space],
        scheduler: Scheduler,
        dice: Dice,
        aggregation: Aggregation,
        patterns_max: int,
        *,
        forgets_vectors: bool,
    ) -> None:
        super().__init__(name, name, scheduler)
        self._forgets_vectors = forgets_vectors
        self._neighbour = neighbour
        self._aggregation = aggregation
        self._patterns_max = patterns_max
        self._dice = dice
        self._syncing = False
        self._committing = False
        self._telling = False
        self._uncommitted: list[Delivery] = []
        self._untold: list[tuple[dict[str, SimulatedBinding], tuple[str, ...]]] = []
        self.log = MemoryLog(spaces, self._appended)
        self.saved = LeafState()
        self.bindings: dict[str, SimulatedBinding] = {}
        self.published: dict[Space, list[SimulatedPublish]] = {space: [] for space in spaces}
        self.arrived: dict[int, int] = {}  # the virtual time of each message that was committed
        self.received_numbers: dict[StreamName, dict[int, int]] = {}
        self.positions: dict[StreamName, int] = {}
        self.messages: dict[int, SimulatedPublish] = {}  # by key
        self.lost_life: dict[Space, list[SimulatedPublish]] = {space: [] for space in spaces}  # of replaced folders
        self._incarnations: list[int] = []
        self.replaced = False
        self.copied: set[int] = set()  # keys of the messages that a copy of the folder still had for others
        self.gaps: list[StreamGap] = []
        self.virtual_times: list[int] = []
        self.on_commit: Callable[[str, Delivery, list[SimulatedBinding]], None] = _nothing_committed
        self.after_event = self._take

    def start(self) -> None:
        """Start the broker, or start it again with what has survived."""
        recovered = {name: binding for name, binding in self.bindings.items() if binding.durable}
        self.bindings = {}
        state = LeafState(self.saved.time_bound, self.saved.start_points, dict(self.positions))
        interest = Interest(
            self.node,
            (self._neighbour,),
            self._aggregation,
            self._patterns_max,
            self.name,
            persisted_bound=state.time_bound,
            incarnation=self._dice.randint(1, 1 << 40),
        )
        self._incarnations.append(0 if self._forgets_vectors else self._dice.randint(1, 1 << 60))
        self.broker = leaf = Leaf(
            self.name,
            self._neighbour,
            interest,
            self.log.streams,
            state,
            incarnation=self._incarnations[-1],
            forgets_vectors=self._forgets_vectors,
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

    def watch(self, on_commit: Callable[[str, Delivery, list[SimulatedBinding]], None]) -> None:
        """Call a function after a delivery is committed."""
        self.on_commit = on_commit

    @property
    def leaf(self) -> Leaf:
        """Return the running broker."""
        assert isinstance(self.broker, Leaf)
        return self.broker

    def change_bindings(self, added: dict[str, SimulatedBinding], removed: Iterable[str]) -> None:
        """Change bindings: they are in force at once, and the broker is told a little later."""
        removed = tuple(removed)
        for name in removed:
            self.bindings.pop(name, None)
        for binding in added.values():
            binding.begin(self._scheduler.count)
        self.bindings |= added
        self._untold.append((added, removed))
        if not self._telling:
            self._telling = True
            self._scheduler.after(self._dice.choice((0, 1, 40)), self._tell)

    def _tell(self) -> None:
        """Pass all changes to the broker as one batch, and save what it wants saved before it sends anything."""
        self._telling = False
        leaf = self.broker
        if not isinstance(leaf, Leaf):
            return
        came: dict[str, SimulatedBinding] = {}
        gone: list[str] = []
        untold, self._untold = self._untold, []
        for added, removed in untold:
            gone += removed
            came = {name: binding for name, binding in came.items() if name not in removed} | added
        leaf.bindings_changed([(name, binding.conjunction, binding.durable) for name, binding in came.items()], gone)
        for name, binding in came.items():
            binding.start(leaf.start_point(name))
        self.saved = leaf.state()
        self.virtual_times.append(leaf.interest.time(self.name))
        self.poll()

    def publish(self, space: Space, key: str, content: bytes = b"", copies: tuple[str, ...] = ()) -> None:
        """Publish a message."""
        vector = self.leaf.sources[space].vector
        if self._forgets_vectors and self.published[space]:
            vector = later(self.published[space][-1].vector, vector)
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
        """Return whether an incarnation began not later than another one."""
        return self._incarnations.index(incarnation) <= self._incarnations.index(other)

    def _take(self) -> None:
        leaf = self.leaf
        self._bind(leaf)
        deliveries = leaf.take_deliveries()
        if deliveries:
            self._uncommitted += deliveries
            if not self._committing:
                self._committing = True
                self._scheduler.after(self._dice.choice((1, 5, 150)), self._commit)
        elif not self._committing:
            self._drop_replaced(leaf)
        self.gaps += leaf.take_gaps()

    def _bind(self, leaf: Leaf) -> None:
        for space, added, removed in leaf.take_bindings():
            self.log.streams[space].bind(added, removed)

    def _commit(self) -> None:
        """Commit the deliveries so far."""
        self._committing = False
        deliveries, self._uncommitted = self._uncommitted, []
        leaf = self.broker
        if not isinstance(leaf, Leaf):
            return
        last: dict[StreamName, int] = {}
        for delivery in deliveries:
            data, space = delivery.data, delivery.stream.space
            getting = [
                binding
                for binding in self.bindings.values()
                if binding.gets(space, (data.key, *data.copies), delivery.virtual_time)
            ]
            self.on_commit(self.name, delivery, getting)
            number = data.number
            self.arrived[id(data)] = delivery.virtual_time
            for binding in getting:
                binding.got.add(id(data))
            self.received_numbers.setdefault(delivery.stream, {})[number] = delivery.virtual_time
            last[delivery.stream] = number
        for stream, number in last.items():
            leaf.committed(stream, number)
            self.positions[stream] = number
        if not self._uncommitted:
            self._drop_replaced(leaf)

    def _drop_replaced(self, leaf: Leaf) -> None:
        """Record the positions of newer incarnations in the place of those that they go on from."""
        replaced = leaf.take_replaced()
        for stream, sink in leaf.sinks.items() if replaced else ():
            if sink.position is not None:
                self.positions[stream] = sink.committed_upto
        for stream in replaced:
            self.positions.pop(stream, None)

    def _appended(self, space: Space) -> None:
        if not self._syncing:
            self._syncing = True
            self._scheduler.after(self._dice.randint(1, 5), self._sync)

    def _sync(self) -> None:
        """Make what was appended durable; a crash before has taken it away."""
        self._syncing = False
        for stream in self.log.streams.values():
            stream.sync()
        self.poll()


def _nothing_committed(_leaf: str, _delivery: Delivery, _getting: list[SimulatedBinding]) -> None:
    """Do nothing."""
