"""Ports: the functions that queues and their levels call in the layers around them."""

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
    """Raise: the placeholder of a port that the vhost has not connected."""
    raise AssertionError("the vhost has not connected this port")


@dataclass(slots=True, kw_only=True)
class LevelPorts(Generic[S]):
    """The functions of the store, the pager, the reader and the dead letters of its vhost that a level needs. ``kept``
    is called with each slot that begins to hold messages in memory. ``read`` loads a paged-out slot and then calls
    back. ``measure`` finds the body sizes of a paged-out slot. ``dead_letter`` publishes a dead letter. ``accept`` adds
    a message to a level, with the moment at which it is due and the other targets of its record, and returns its slot
    and index; messages accepted and settled in a ``transaction`` survive a crash together or not at all. ``settled``
    collects the levels whose settlements are logged at the end of the loop turn. ``credit`` holds publishers back.
    ``sliced`` runs work that takes several turns. ``keep_poisoned`` is the setting of that name, and ``with_poisoned``
    calls back once the queue for a queue's poisoned messages exists.
    """

    store: VhostStore
    kept: Callable[[S, Slot], None]
    read: Callable[[S, Slot, Callable[[], None]], None]
    measure: Callable[[S, Slot], None]
    clock: Clock
    deadlines: Deadlines
    keep_poisoned: bool = False
    dead_letter: Callable[[LevelOwner, Message, str], None] = _unconnected
    with_poisoned: Callable[[str, Callable[[], None]], None] = _unconnected
    accept: Callable[[Message, S, int, bytes], tuple[Slot, int]] = _unconnected
    transaction: Callable[[], AbstractContextManager[None]] = nullcontext
    window_messages: int = 1000
    window_bytes: int = 1 << 20
    settled: list[S] = field(default_factory=list)
    credit: PublishCredit = field(default_factory=PublishCredit)
    sliced: SlicedWork = field(init=False)

    def __post_init__(self) -> None:
        self.sliced = SlicedWork(self.clock, self.deadlines)

    def take_settings(self, *, keep_poisoned: bool) -> None:
        """Apply changed settings."""
        self.keep_poisoned = keep_poisoned


@dataclass(slots=True, kw_only=True)
class QueuePorts(LevelPorts[S], Generic[S, Q]):
    """The additional functions that a queue needs; one object serves all queues of a vhost. ``assign`` assigns a new
    queue to a worker, ``retire`` removes a deleted one. ``unused`` is called with a queue that expired. ``moments``
    returns when the messages of a paged-out slot are due. ``fetch`` reads some messages of paged-out slots by their
    ids, the first ones first. ``kind_of`` returns the class of a new queue by its name, and by whether its declaration
    was lost; ``level_of`` creates each level of a queue, given its priority, its number, and whether a durable one
    persists all messages. ``holding_of`` creates the `Holding` of a queue and a level.
    """

    assign: Callable[[Q], QueueWorker[Q]]
    retire: Callable[[Q], None]
    moments: Callable[[S, Slot, Callable[[Sequence[int]], None]], None]
    fetch: Callable[[S, Sequence[tuple[int, Slot]], Callable[[Mapping[int, Message | None]], None]], None]
    kind_of: Callable[[str, bool], Callable[..., Q]]
    level_of: Callable[[LevelOwner, int, int, QueuePorts[S, Q], bool], S]
    unused: Callable[[Q], None] = _unconnected
    holding_of: Callable[[Q, S], Any] = _unconnected

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
        """Clear the references to the vhost, because it is deleted."""
        nothing: Any = lambda *_: None  # noqa: E731 - one function for four types
        self.holding_of = self.dead_letter = self.with_poisoned = self.unused = nothing
