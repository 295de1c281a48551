"""The port between core and the message store. A standalone broker has a `LocalStore`, a node of a cluster a shared
store. Core knows messages and levels; segments, positions and calls of a database stay in the store.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Final

from broker.core.confirmable import ConfirmedPublishes, Refusable
from broker.core.message.message import Message
from broker.core.queue.level import Level
from broker.routing.cache import ResolvedPublish
from broker.routing.route import Route
from broker.slots.slot import Slot
from broker.store.record import due_target

UNROUTED: Final = Route(())


class Targets(ResolvedPublish):
    """The levels of a message, split by whether they need a record of it; most come from a cached route.

    Shapes: ``durable`` need a record of a persistent message, ``transient`` are the others; ``persisting`` need a
        record of a transient message too, ``passing`` are the others.
    """

    __slots__ = ("durable", "levels", "passing", "persisting", "transient")

    def __init__(self, levels: tuple[Level, ...], route: Route = UNROUTED) -> None:
        super().__init__(route)
        self.levels = levels
        only = levels[0] if len(levels) == 1 else None
        if only is not None:  # the usual case; the code below gives the same result at five times the cost
            self.durable = levels if only.durable else ()
            self.transient = () if only.durable else levels
            self.persisting = levels if only.persists_all else ()
            self.passing = () if only.persists_all else levels
            return
        durable = tuple([level for level in levels if level.durable])
        persisting = tuple([level for level in durable if level.persists_all])
        self.durable = levels if len(durable) == len(levels) else durable  # usually they are the same
        self.transient = tuple([level for level in levels if not level.durable]) if durable else levels
        self.persisting = persisting
        self.passing = tuple([level for level in levels if not level.persists_all]) if persisting else levels


class MessageStore:
    """Accept runs of messages for the levels of one vhost.

    Shapes: ``enters_later`` says whether a message may be recorded before it enters its levels, ``refuses_later``
        whether accepted messages may still be refused. ``origin`` is the publisher whose message is being posted, and
        its number, if it waits for a confirm.
    """

    enters_later: bool = True
    refuses_later: bool = False

    def __init__(self) -> None:
        self.origin: tuple[Refusable, int] | None = None

    def note_origin(self, origin: tuple[Refusable, int] | None) -> None:
        """Set the origin of the message that is posted next, None afterwards."""
        self.origin = origin

    @property
    @abstractmethod
    def progress(self) -> int:
        """A number that grows with accepted work: if it has not changed, a confirm has nothing new to wait for."""

    @property
    @abstractmethod
    def needs_sync(self) -> bool:
        """Whether something was accepted that no confirm may follow yet."""

    @property
    @abstractmethod
    def unwritten_bytes(self) -> int:
        """Accepted bytes that are not committed yet."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Return a context whose accepted and settled messages take effect together or not at all."""

    @abstractmethod
    def accept(
        self,
        messages: list[Message],
        targets: list[Targets],
        stops: list[int],
        number: bytes = b"",
        confirms: ConfirmedPublishes | None = None,
    ) -> None:
        """Put a run of messages into their levels, in order. HOT.

        It returns no ids, because a shared store knows them only after its commit.
        Shapes: ``targets[n]`` are those of the messages up to place ``stops[n]``; all messages are persistent or none
            is. `number` is what a producer's sequence or a due time adds to the targets of each message. `confirms` is
            about to number the messages, one after another; only a store that refuses later needs it.
        """

    def accept_one(self, message: Message, level: Level, due_ms: int, number: bytes) -> tuple[Slot, int]:
        """Put a message into a level of a standalone store, as `accept` does, and return its slot and index there.

        Units: `due_ms` is the moment at which it is due, 0 for one that is not delayed.
        """
        self.accept([message], [Targets((level,))], [1], number + due_target(due_ms) if due_ms else number)
        manager = level.manager
        message_id = manager.next_id - 1
        slot = next(slot for slot in reversed(manager.slots.values()) if slot.first <= message_id)
        return slot, message_id - slot.first

    def used_before(self, mark: int, sequence: int, confirms: ConfirmedPublishes) -> None:
        """Record that a message was published again under a number already used, which a store may still refuse."""

    def record_ahead(self, message: Message, recorded: list[Level], number: bytes) -> None:
        """Append the record of a message that enters its levels later; only for stores with ``enters_later``."""
        raise NotImplementedError
