"""A queue as its levels see it, and a worker as its queues see it.

Both are classes, not protocols: compiled code finds an attribute of a class without looking it up by its name.
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
    """A queue as its levels see it; this class alone is the owner of a deleted queue's levels, and does nothing.

    Invariant: ``awake`` is set while the worker has the queue on its list, ``lags`` while the worker has left messages
        that the consumers had room for.
    """

    __slots__ = ("awake", "consumers", "durable", "lags", "laned", "name", "prioritized", "rules", "strict")

    is_holding: bool = False  # its own level is a holding level
    is_tap: bool = False  # it belongs to a tap: a message that reached nothing else was unroutable

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
        self.prioritized = False  # it has several levels, one for each priority
        self.strict = strict  # its levels are created as they are used, and returned messages are delivered first
        self.laned = strict  # some messages are delivered before all others: returned ones in a strict queue, due ones

    @property
    def ready(self) -> int:
        """Messages that wait to be delivered."""
        return 0

    def wake(self) -> None:
        """Schedule the queue for delivery when it has messages and consumers."""

    def wake_worker(self) -> None:
        """Schedule the queue for delivery in this loop turn."""

    def serve_first(self) -> int:
        """Deliver before a method that would see the messages; return the number delivered."""
        return 0

    def returned(self) -> None:
        """Apply the rules to returned messages, and deliver them again."""

    def note_returned(self, priority: int, slot: Slot, indexes: Sequence[int]) -> None:
        """Record that messages of a priority's level were returned."""

    def keep_until(
        self, message: Message, due_ms: int, returns: ReturnRun | None = None, *, number: bytes = b""
    ) -> None:
        """Hold a message until it is due. Shapes: `number` and `returns` as of `Holding.keep`."""

    def level_numbered(self, number: int) -> object:
        """Return the level with a number, creating it if the queue may have it."""

    def enforce(self) -> None:
        """Drop messages until the queue is within its limits."""


NO_QUEUE: Final = LevelOwner()


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueWorker(Generic[Q]):
    """The slot delivery worker as a queue sees it."""

    owner: Owner

    @abstractmethod
    def wake(self, queue: Q) -> None:
        """Schedule the queue for delivery in this loop turn."""

    @abstractmethod
    def serve(self, queue: Q) -> None:
        """Deliver from the queue at once."""

    @abstractmethod
    def serve_first(self, queue: Q) -> int:
        """Deliver from the queue before a method that would see its messages; return the number delivered."""
