"""The interfaces of a queue for its levels, and of a worker for its queues.

Both are classes, not protocols: compiled code reads an attribute of a class without a lookup by name.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from mypy_extensions import mypyc_attr

from broker.core.message.message import Message
from broker.core.queue.consumer_ring import ConsumerRing
from broker.core.queue.rules import PLAIN, QueueRules
from broker.routing.bundle import Destination
from broker.routing.exchange import Exchange
from broker.slots.redeliveries import ReturnRun
from broker.slots.slot import Slot
from broker.slots.states import Owner

Q = TypeVar("Q")


@mypyc_attr(allow_interpreted_subclasses=True)
class LevelOwner(Destination[Exchange]):
    """The interface of a queue for its levels. A direct instance, NO_QUEUE, owns the empty level of a deleted queue.

    Shapes: ``awake`` is set while the queue is scheduled for delivery. ``lags`` is set while deliveries have fallen
        behind, so that publishers may have to wait.
    """

    __slots__ = ("awake", "consumers", "durable", "lags", "laned", "name", "prioritized", "rules", "strict")

    is_holding: bool = False  # the queue's only level is a holding level
    is_tap: bool = False  # messages that are routed only to such queues are unroutable

    def __init__(
        self, name: str = "", rules: QueueRules = PLAIN, *, durable: bool = False, strict: bool = False
    ) -> None:
        super().__init__()
        self.consumers = ConsumerRing(single_active=rules.single_active, yields=strict)
        self.awake = False
        self.lags = False
        self.durable = durable
        self.rules = rules
        self.name = name
        self.prioritized = False  # whether there are several levels
        self.strict = strict  # a quorum queue: it creates levels at first use, and delivers returned messages first
        self.laned = strict  # whether there may be messages that are delivered before all others

    @property
    def ready(self) -> int:
        """The number of messages that wait to be delivered."""
        return 0

    def wake(self) -> None:
        """Schedule the queue for delivery if it has messages and consumers."""

    def wake_worker(self) -> None:
        """Schedule the queue for delivery in this loop turn."""

    def serve_first(self) -> int:
        """Deliver messages before a method that counts or removes them; return the number delivered or expired."""
        return 0

    def returned(self) -> None:
        """Apply the rules to returned messages, and schedule their delivery."""

    def note_returned(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        """Record that messages were returned to the level of this priority."""

    def keep_until(
        self, message: Message, due_ms: int, returns: ReturnRun | None = None, *, number: bytes = b""
    ) -> None:
        """Hold a message until it is due. Shapes: `number` and `returns` are those of `Holding.keep`."""

    def level_numbered(self, number: int) -> object:
        """Return the level with a number, creating it if necessary, or None if the queue cannot have such a level."""

    def enforce(self) -> None:
        """Drop messages until the queue is within its limits."""


NO_QUEUE: Final = LevelOwner()


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueWorker(Generic[Q]):
    """The interface of a slot delivery worker for its queues."""

    owner: Owner

    @abstractmethod
    def wake(self, queue: Q) -> None:
        """Schedule the queue for delivery in this loop turn."""

    @abstractmethod
    def serve(self, queue: Q) -> None:
        """Deliver from the queue at once."""

    @abstractmethod
    def serve_first(self, queue: Q) -> int:
        """Deliver messages before a method that counts or removes them; return the number delivered or expired."""
