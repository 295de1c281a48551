"""The interface of the message store, which hides log segments and database calls: a standalone broker has a
`LocalStore`, a node of a cluster a shared store.
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
    """The levels that a message enters, split by whether they need a record of it; most are cached with a route.

    Shapes: the ``durable`` levels need a record of a persistent message, the ``transient`` ones do not. The
        ``persisting`` levels need a record of a transient message too, the ``passing`` ones do not.
    """

    __slots__ = ("durable", "levels", "passing", "persisting", "transient")

    def __init__(self, levels: tuple[Level, ...], route: Route = UNROUTED) -> None:
        super().__init__(route)
        self.levels = levels
        only = levels[0] if len(levels) == 1 else None
        if only is not None:  # the usual case, at a fifth of the cost of the code below
            self.durable = levels if only.durable else ()
            self.transient = () if only.durable else levels
            self.persisting = levels if only.persists_all else ()
            self.passing = () if only.persists_all else levels
            return
        durable = tuple([level for level in levels if level.durable])
        persisting = tuple([level for level in durable if level.persists_all])
        self.durable = levels if len(durable) == len(levels) else durable  # share one tuple if possible
        self.transient = tuple([level for level in levels if not level.durable]) if durable else levels
        self.persisting = persisting
        self.passing = tuple([level for level in levels if not level.persists_all]) if persisting else levels


class MessageStore:
    """Accept runs of messages for the levels of one vhost.

    Shapes: ``enters_later`` is set if a message may be recorded before it enters its levels, ``refuses_later`` if
        accepted messages may still be refused. ``origin`` is the publisher of the message that is being posted, and
        the message's number, if the publisher waits for a confirm.
    """

    enters_later: bool = True
    refuses_later: bool = False

    def __init__(self) -> None:
        self.origin: tuple[Refusable, int] | None = None

    def note_origin(self, origin: tuple[Refusable, int] | None) -> None:
        """Set the origin of the message that is posted next; None clears it afterwards."""
        self.origin = origin

    @property
    @abstractmethod
    def progress(self) -> int:
        """A number that grows with accepted work: while it does not change, there is nothing new to wait for."""

    @property
    @abstractmethod
    def needs_sync(self) -> bool:
        """Whether accepted work must be synced or committed before it can be confirmed."""

    @property
    @abstractmethod
    def unwritten_bytes(self) -> int:
        """The number of accepted octets that are not committed yet."""

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
        """Add a run of messages to their levels, in order. HOT.

        It returns no ids, because a shared store knows them only after its commit.
        Shapes: `targets[n]` are the targets of `messages[stops[n - 1]:stops[n]]`; the first ones start at index 0. All
            messages are persistent or none is. `number` is prepended to the targets in each record: a producer's
            sequence number, a due time, or both. `confirms` will number the messages consecutively; only a store that
            refuses later needs it.
        """

    def accept_one(self, message: Message, level: Level, due_ms: int, number: bytes) -> tuple[Slot, int]:
        """Add a message to a level of a standalone store, as `accept` does, and return its slot and index.

        Units: `due_ms` is the moment at which the message is due, 0 if it is not delayed.
        """
        self.accept([message], [Targets((level,))], [1], number + due_target(due_ms) if due_ms else number)
        manager = level.manager
        message_id = manager.next_id - 1
        slot = next(slot for slot in reversed(manager.slots.values()) if slot.first <= message_id)
        return slot, message_id - slot.first

    def used_before(self, mark: int, sequence: int, confirms: ConfirmedPublishes) -> None:
        """Record that a message repeats the sequence number of a publish that a shared store may still refuse."""

    def record_ahead(self, message: Message, recorded: list[Level], number: bytes) -> None:
        """Append the record of a message that enters its levels later. Invariant: `enters_later` is set."""
        raise NotImplementedError
