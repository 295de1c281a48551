"""The store of a broker that stands alone: ids from its slot managers, records in its own log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from broker.core.message.message import charge_of
from broker.core.publishing.message_store import MessageStore, Targets
from broker.store.record import PERSISTENT, TARGET

if TYPE_CHECKING:
    from broker.core.confirmable import ConfirmedPublishes
    from broker.core.message.message import Message
    from broker.core.queue.stream import Stream
    from broker.store.recorder import Recorder

__all__ = ["LocalStore"]

pack_target: Final = TARGET.pack


class LocalStore(MessageStore):
    """Accepts runs of messages for the streams of one vhost, and keeps them in its own log."""

    __slots__ = ("_calls", "_recorder")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._calls = 0  # of `accept`

    @property
    def progress(self) -> int:
        """A number that grows with each record."""
        return self._recorder.progress

    @property
    def needs_sync(self) -> bool:
        """Whether something was accepted that no confirm may follow yet."""
        return self._recorder.needs_sync

    @property
    def unwritten_bytes(self) -> int:
        """How many bytes of records no commit has taken."""
        return self._recorder.unwritten_bytes

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

        Cost: one record per message whatever its fan-out; slots are counted and workers woken once per stream that
            needs records, and once per stream and group of messages in a row for the others.
        """
        recorder = self._recorder
        persistent = messages[0].facts.persistent
        flags = PERSISTENT if persistent else 0
        self._calls += 1
        call = self._calls
        runs: list[tuple[Stream, list[Message]]] = []
        start = 0
        last = len(targets) - 1
        for place, target in enumerate(targets):
            stop = stops[place]
            recorded = target.durable if persistent else target.persisting
            others = target.transient if persistent else target.passing
            if place < last and not recorded and _equal(target.streams, targets[place + 1].streams):
                continue  # another key with the same streams, of which none needs a record
            if len(recorded) == 1:
                stream = recorded[0]
                if stream.before_next is not None:
                    stream.go_before()
                run = stream.gather(call, runs)
                message_id = stream.manager.next_id + len(run)
                octets = number + stream.octets if number else stream.octets
                for at in range(start, stop):
                    message = messages[at]
                    recorder.record(message, flags, message.envelope.route, octets, message_id)
                    run.append(message)
                    message_id += 1
            elif recorded:
                self._fan_out(messages[start:stop], recorded, runs, call, flags, number)
            if others and stop == start + 1:
                lone = messages[start].copy() if recorded and not persistent else messages[start]
                for stream in others:
                    stream.append_one(lone)
            elif others:
                group = messages[start:stop] if stop - start < len(messages) else messages
                if recorded and not persistent:
                    # A copy has no record: what a durable stream keeps without one must not point to another's.
                    group = [message.copy() for message in group]
                charge_bytes = charge_of(group)
                for stream in others:
                    stream.append(group, charge_bytes)
            start = stop
        for stream, run in runs:
            stream.end_gathering()
            stream.append(run, recorded=stream.durable if persistent else stream.persists_all)

    def used_before(self, mark: int, sequence: int, confirms: ConfirmedPublishes) -> None:
        """Do nothing: what this store accepted stays accepted."""

    def _fan_out(
        self,
        group: list[Message],
        recorded: tuple[Stream, ...],
        runs: list[tuple[Stream, list[Message]]],
        call: int,
        flags: int,
        number: bytes,
    ) -> None:
        """Append one record per message for several streams."""
        next_ids = []
        for stream in recorded:
            if stream.before_next is not None:
                stream.go_before()
            run = stream.gather(call, runs)
            next_ids.append(stream.manager.next_id + len(run))
            run += group
        self._record(group, recorded, next_ids, flags, number)

    def record_ahead(self, message: Message, recorded: list[Stream], number: bytes) -> None:
        """Append the record of a message that enters streams later, each with the next id that it gives."""
        last = recorded[-1]
        named = [pack_target(stream.number, stream.manager.next_id) for stream in recorded[:-1]]
        targets = number + b"".join(named) + last.octets
        flags = PERSISTENT if message.facts.persistent else 0
        self._recorder.record(message, flags, message.envelope.route, targets, last.manager.next_id)

    def _record(
        self, group: list[Message], recorded: Sequence[Stream], next_ids: list[int], flags: int, number: bytes
    ) -> None:
        numbers = [stream.number for stream in recorded[:-1]]
        octets = recorded[-1].octets
        for offset, message in enumerate(group):
            named = [pack_target(numbers[at], next_ids[at] + offset) for at in range(len(numbers))]
            named.append(octets)
            targets = number + b"".join(named)
            self._recorder.record(message, flags, message.envelope.route, targets, next_ids[-1] + offset)


def _equal(one: tuple[Stream, ...], other: tuple[Stream, ...]) -> bool:
    """Return whether two routes lead to the same streams; most lead to one."""
    if len(one) == 1 and len(other) == 1:
        return one[0] is other[0]
    return one == other
