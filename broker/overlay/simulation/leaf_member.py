"""A simulated leaf broker with its clients' bindings and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from broker.overlay.aggregation import Aggregation
from broker.overlay.interest import Interest
from broker.overlay.leaf import Leaf
from broker.overlay.packets import Conjunction, Space, StreamName
from broker.overlay.simulation.member import Dice, Scheduler, SimulatedBroker
from broker.overlay.simulation.memory_stream import MemoryStream
from broker.overlay.sink import Delivery


class LeafMember(SimulatedBroker):
    """A leaf with its streams in memory, which commits what it publishes and receives after a random delay."""

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
        self.after_event = self._take

    def start(self) -> None:
        """Start the broker."""
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
        """Make durable bindings; the broker learns of them after a random delay."""
        self._scheduler.after(self._dice.choice((0, 1, 40)), partial(self._tell_of, bindings))

    def _tell_of(self, bindings: Mapping[str, Conjunction]) -> None:
        self.leaf.bindings_changed([(name, conjunction, True) for name, conjunction in bindings.items()], ())
        self.poll()

    def publish(self, space: Space, key: str, content: bytes = b"", copies: tuple[str, ...] = ()) -> None:
        """Publish a message."""
        self.streams[space].publish(key, content, copies)

    def _take(self) -> None:
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
        """Commit the deliveries so far."""
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
        """Sync the elements appended so far; a crash before this loses them."""
        self._syncing = False
        for stream in self.streams.values():
            stream.sync()
        self.poll()
