"""Ports: the functions of other layers that queues and their levels call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from broker.core.deadlines import Clock, Deadlines
from broker.core.message.message import Message
from broker.core.publish_credit import PublishCredit
from broker.core.queue.level_owner import LevelOwner, QueueWorker
from broker.core.sliced_work import SlicedWork
from broker.slots.slot import Slot
from broker.store.store import VhostStore

S = TypeVar("S")
Q = TypeVar("Q")


def _unconnected(*_arguments: Any) -> Any:
    """Stand in for a port that the vhost has not connected. Raises: AssertionError."""
    raise AssertionError("the vhost has not connected this port")


@dataclass(slots=True, kw_only=True)
class QueuePorts(Generic[S, Q]):
    """The functions and shared objects that a queue and its levels use; all queues of a vhost share one instance.

    Store: `opened` is called with each slot that is opened in memory. `read` loads a paged-out slot and then calls
    back. `measure` finds the body sizes of its messages. `moments` calls back with the times at which they are due.
    `fetch` reads messages of paged-out slots by their ids, in order, and may stop before the last one.

    Workers: `assign` assigns a new queue to a worker, and `retire` removes a deleted one. `settled` collects the levels
    whose settlements are logged at the end of the loop turn. `credit` holds publishers back. `sliced` runs work that
    takes several turns.

    Vhost: `dead_letter` publishes a dead letter. `with_poisoned` calls back once the queue for poisoned messages exists
    or could not be declared; `keep_poisoned` is the setting. `accept` adds a message to a level, with the moment at
    which it is due and the octets before the targets of its record, and returns its slot and index. After a crash,
    all accepts and settlements of a `transaction` are in effect, or none. `unused` is called with a queue that has
    expired.

    Factories: `kind_of` returns the class of a new queue by its name. `level_of` creates a level of a queue, given its
    priority, its number, and whether it records transient messages. `holding_of` creates the `Holding` of a queue and a
    level.
    """

    store: VhostStore
    opened: Callable[[S, Slot], None]
    read: Callable[[S, Slot, Callable[[], None]], None]
    measure: Callable[[S, Slot], None]
    moments: Callable[[S, Slot, Callable[[Sequence[int]], None]], None]
    fetch: Callable[[S, Sequence[tuple[int, Slot]], Callable[[Mapping[int, Message | None]], None]], None]
    assign: Callable[[Q], QueueWorker[Q]]
    retire: Callable[[Q], None]
    kind_of: Callable[[str], Callable[..., Q]]
    level_of: Callable[[LevelOwner, int, int, QueuePorts[S, Q], bool], S]
    deadlines: Deadlines
    clock: Clock = field(init=False)
    window_messages: int = 1000
    window_bytes: int = 1 << 20
    settled: list[S] = field(default_factory=list)
    credit: PublishCredit = field(default_factory=PublishCredit)
    sliced: SlicedWork = field(init=False)
    keep_poisoned: bool = False
    dead_letter: Callable[[LevelOwner, Message, str], None] = _unconnected
    with_poisoned: Callable[[str, Callable[[], None]], None] = _unconnected
    accept: Callable[[Message, S, int, bytes], tuple[Slot, int]] = _unconnected
    transaction: Callable[[], AbstractContextManager[None]] = nullcontext
    unused: Callable[[Q], None] = _unconnected
    holding_of: Callable[[Q, S], Any] = _unconnected

    def __post_init__(self) -> None:
        self.clock = self.deadlines.clock
        self.sliced = SlicedWork(self.deadlines)

    def apply_settings(self, *, keep_poisoned: bool) -> None:
        self.keep_poisoned = keep_poisoned

    def connect(
        self,
        accept: Callable[[Message, S, int, bytes], tuple[Slot, int]],
        transaction: Callable[[], AbstractContextManager[None]],
        holding_of: Callable[[Q, S], Any],
        dead_letter: Callable[[LevelOwner, Message, str], None],
        with_poisoned: Callable[[str, Callable[[], None]], None],
        unused: Callable[[Q], None],
    ) -> None:
        """Set the ports of the vhost, which is created after this object."""
        self.accept, self.transaction, self.holding_of = accept, transaction, holding_of
        self.dead_letter, self.with_poisoned, self.unused = dead_letter, with_poisoned, unused

    def end(self) -> None:
        """Clear the references to the vhost's queues and exchanges, because the vhost is deleted."""
        nothing: Any = lambda *_: None  # noqa: E731 - one function for four types
        self.holding_of = self.dead_letter = self.with_poisoned = self.unused = nothing
