"""The ports between core and the store of its messages: accept, lease, settle, return and read.

A store keeps the messages of one vhost. It has one stream for each queue, or for each priority level of a queue, and
cuts a stream into slots. Core knows messages, slots and indexes in slots; segments and positions stay in the store.

The broker's own store is `LocalStore`, `SlotManager`, `Stream` and `SlotReader`. A store that several brokers share has
to fit the same ports: it accepts a run in one call, gives ids when that call is committed, leases parts of slots to
nodes, and reads a slot from wherever it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.core.message.message import Message
    from broker.core.publishing.local_store import Targets
    from broker.core.queue.stream import Stream
    from broker.slots.slot import Slot
    from broker.slots.states import Owner

__all__ = ["MessageStore", "Settlements", "SlotLeases", "SlotReads"]


class MessageStore(Protocol):
    """Accepts messages."""

    def accept(self, messages: list[Message], targets: list[Targets], stops: list[int], number: bytes = b"", /) -> None:
        """Put a run of messages into their streams, in order.

        Returns no ids: a shared store knows them after its commit. What the messages wait for before they are confirmed
        is the committer's concern.
        Shapes: ``targets[n]`` are the streams of the messages up to place ``stops[n]``.
        """


class SlotLeases(Protocol):
    """Leases the slots of one stream."""

    def get(self, owner: Owner, /) -> Slot | None:
        """Lease the lowest slot with ready messages to an owner; None when there is none now, though one may come."""

    def give_back(self, slot: Slot, /) -> None:
        """Return a lease: the ready messages of the slot are for any owner again, those handed out stay unacked."""


class Settlements(Protocol):
    """Ends or returns what was handed out of the slots of one stream."""

    def settle(self, slot: Slot, indexes: Sequence[int], /) -> None:
        """Settle messages for good; a store may write that down later, with its next call."""

    def requeue(self, slot: Slot, indexes: Sequence[int], /) -> None:
        """Return messages to their places, with one delivery more each."""


class SlotReads(Protocol):
    """Reads slots whose messages are not in memory."""

    def read(self, stream: Stream, slot: Slot, then: Callable[[], None], /) -> None:
        """Bring the messages of a slot into memory and call `then` on the loop, or when the slot is gone."""
