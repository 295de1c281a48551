"""The store of a broker that stands alone: ids from its slot managers, records in its own log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from broker.core.message.message import charge_of
from broker.routing.cache import ResolvedPublish
from broker.routing.route import Route
from broker.store.record import PERSISTENT, TARGET

if TYPE_CHECKING:
    from broker.core.confirmable import ConfirmedPublishes, Refusable
    from broker.core.message.message import Message
    from broker.core.queue.stream import Stream
    from broker.store.recorder import Recorder

__all__ = ["LocalStore", "Targets"]


UNROUTED: Final = Route(())
pack_target: Final = TARGET.pack


class Targets(ResolvedPublish):
    """The streams that a message goes to, split by which of them need a record of it; most by a cached route.

    Shapes: ``durable`` need a record of a persistent message, ``transient`` are the others; ``persisting`` need a
        record of a transient message too, ``passing`` are the others.
    """

    __slots__ = ("durable", "passing", "persisting", "streams", "transient")

    def __init__(self, streams: tuple[Stream, ...], route: Route = UNROUTED) -> None:
        super().__init__(route)
        durable = tuple([stream for stream in streams if stream.durable])
        persisting = tuple([stream for stream in durable if stream.persists_all])
        self.streams = streams
        self.durable = streams if len(durable) == len(streams) else durable  # mostly they are the same
        self.transient = tuple([stream for stream in streams if not stream.durable]) if durable else streams
        self.persisting = persisting
        self.passing = tuple([stream for stream in streams if not stream.persists_all]) if persisting else streams


class LocalStore:
    """Accepts runs of messages for the streams of one vhost.

    It is the MessageStore of `message_store`. Compiled code names this class, because a call of a protocol's method
    looks the method up by its name.
    Shapes: ``origin`` is the publisher whose message is being posted, and its number, if it waits for a confirm: a
        store that several brokers share knows later whether a full queue refuses the message.
    """

    __slots__ = ("_recorder", "origin")

    enters_later: bool = True  # a message may be recorded before it enters its streams
    refuses_later: bool = False  # what was accepted may still be refused

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.origin: tuple[Refusable, int] | None = None

    def note_origin(self, origin: tuple[Refusable, int] | None) -> None:
        """Note whose message is posted next, None after that."""
        self.origin = origin

    @property
    def progress(self) -> int:
        """A number that grows with each record: where it has not changed, no confirm has anything new to wait for."""
        return self._recorder.progress

    @property
    def needs_sync(self) -> bool:
        """Whether something was accepted that no confirm may follow yet."""
        return self._recorder.needs_sync

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context in which all that is accepted and settled counts together or not at all after a crash."""
        return self._recorder.transaction()

    def accept(
        self,
        messages: list[Message],
        targets: list[Targets],
        stops: list[int],
        number: bytes = b"",
        confirms: ConfirmedPublishes | None = None,
    ) -> None:
        """Give messages their ids, append a record for each that needs one, and append them to their streams. HOT.

        Shapes: ``targets[n]`` are those of the messages up to place ``stops[n]``; all messages are persistent or none
            is. `number` is what a producer's sequence or a due time adds to the targets of each record. `confirms` is
            about to number the messages, one after the other; only a store that refuses later needs it.
        Cost: one record per message whatever its fan-out; slots are counted and workers woken once per stream and group
            of messages in a row with the same streams.
        """
        persistent = messages[0].facts.persistent
        start = 0
        last = len(targets) - 1
        for place, target in enumerate(targets):
            if place < last and _equal(target.streams, targets[place + 1].streams):
                continue  # another key with the same streams
            stop = stops[place]
            recorded = target.durable if persistent else target.persisting
            others = target.transient if persistent else target.passing
            group = messages if stop - start == len(messages) else messages[start:stop]
            if recorded:
                self._append_recorded(group, recorded, number)
            if others and len(group) == 1:
                lone = group[0].copy() if recorded and not persistent else group[0]
                for stream in others:
                    stream.append_one(lone)
            elif others:
                if recorded and not persistent:
                    # A copy has no record: what a durable stream keeps without one must not point to another's.
                    group = [message.copy() for message in group]
                charge_bytes = charge_of(group)
                for stream in others:
                    stream.append(group, charge_bytes)
            start = stop

    def used_before(self, mark: int, sequence: int, confirms: ConfirmedPublishes) -> None:
        """Hear that a message whose number was used was published again; what this store accepted stays accepted."""

    def _append_recorded(self, group: list[Message], recorded: Sequence[Stream], number: bytes) -> None:
        """Append one record per message for all its streams, and the messages to each of them. HOT."""
        recorder = self._recorder
        flags = PERSISTENT if group[0].facts.persistent else 0
        for stream in recorded:
            if stream.before_next is not None:
                stream.go_before()
        last = recorded[-1]
        octets = number + last.octets if number else last.octets
        message_id = last.manager.next_id
        charge_bytes = 0
        for offset, message in enumerate(group):
            if len(recorded) > 1:
                octets = number + _targets_before(recorded, offset) + last.octets
            recorder.record(message, flags, message.envelope.route, octets, message_id)
            charge_bytes += message.charge
            message_id += 1
        for stream in recorded:
            stream.append(group, charge_bytes, recorded=True)

    def record_ahead(self, message: Message, recorded: list[Stream], number: bytes) -> None:
        """Append the record of a message that enters streams later, each with the next id that it gives."""
        last = recorded[-1]
        flags = PERSISTENT if message.facts.persistent else 0
        targets = number + _targets_before(recorded, 0) + last.octets
        self._recorder.record(message, flags, message.envelope.route, targets, last.manager.next_id)


def _targets_before(recorded: Sequence[Stream], offset: int) -> bytes:
    """Return the targets of a record but the last; each names the id that its stream gives after `offset` others."""
    return b"".join([pack_target(stream.number, stream.manager.next_id + offset) for stream in recorded[:-1]])


def _equal(one: tuple[Stream, ...], other: tuple[Stream, ...]) -> bool:
    """Return whether two routes lead to the same streams; most lead to one."""
    if len(one) == 1 and len(other) == 1:
        return one[0] is other[0]
    return one == other
