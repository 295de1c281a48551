"""The message store of a standalone broker: message ids from its slot managers, records in its own log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from broker.core.confirmable import ConfirmedPublishes
from broker.core.message.message import Message, charge_of
from broker.core.publishing.message_store import MessageStore, Targets
from broker.core.queue.level import Level
from broker.store.record import PERSISTENT, TARGET
from broker.store.recorder import Recorder

pack_target: Final = TARGET.pack


class LocalStore(MessageStore):
    """Accept runs of messages for the levels of one vhost, and store them in its own log."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    @property
    def progress(self) -> int:
        """A number that grows with each record."""
        return self._recorder.log.position

    @property
    def needs_sync(self) -> bool:
        """Whether accepted messages still wait for a sync before they can be confirmed."""
        return self._recorder.log.needs_sync

    @property
    def unwritten_bytes(self) -> int:
        """The number of octets of records that are not committed yet."""
        return self._recorder.log.pending_bytes

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context: after a crash, either all accepts and settlements within it are in effect or none."""
        return self._recorder.log.group()

    def accept(
        self,
        messages: list[Message],
        targets: list[Targets],
        stops: list[int],
        number: bytes = b"",
        confirms: ConfirmedPublishes | None = None,
    ) -> None:
        """Assign ids to messages, append a record for each that needs one, and append them to their levels. HOT.

        Cost: one record per message whatever its fan-out, and one step per level for consecutive messages with equal
            levels.
        """
        persistent = messages[0].facts.persistent
        start = 0
        last = len(targets) - 1
        for place, target in enumerate(targets):
            if place < last and _equal(target.levels, targets[place + 1].levels):
                continue  # the next routing key has the same levels: its messages join these
            stop = stops[place]
            recorded = target.durable if persistent else target.persisting
            others = target.transient if persistent else target.passing
            group = messages if stop - start == len(messages) else messages[start:stop]
            if recorded:
                self._append_recorded(group, recorded, number)
            if others and len(group) == 1:
                lone = group[0].copy() if recorded and not persistent else group[0]
                for level in others:
                    level.append_one(lone)
            elif others:
                if recorded and not persistent:
                    # Copies have no record: these levels must not refer to the record of the other levels.
                    group = [message.copy() for message in group]
                charge_bytes = charge_of(group)
                for level in others:
                    level.append(group, charge_bytes)
            start = stop

    def _append_recorded(self, group: list[Message], recorded: Sequence[Level], number: bytes) -> None:
        """Append one record per message for all its levels, and append the messages to the levels. HOT."""
        recorder = self._recorder
        flags = PERSISTENT if group[0].facts.persistent else 0
        for level in recorded:
            if level.before_next is not None:
                level.run_before_next()
        last = recorded[-1]
        octets = number + last.octets if number else last.octets
        message_id = last.manager.next_id
        charge_bytes = 0
        several = len(recorded) > 1
        for offset, message in enumerate(group):
            if several:
                octets = number + _targets_before(recorded, offset) + last.octets
            recorder.record(message, flags, message.envelope.route, octets, message_id)
            charge_bytes += message.charge
            message_id += 1
        for level in recorded:
            level.append(group, charge_bytes, recorded=True)

    def record_ahead(self, message: Message, recorded: list[Level], number: bytes) -> None:
        """Append the record of a message that enters its levels later; its ids are the next ids of the levels."""
        last = recorded[-1]
        flags = PERSISTENT if message.facts.persistent else 0
        targets = number + _targets_before(recorded, 0) + last.octets
        self._recorder.record(message, flags, message.envelope.route, targets, last.manager.next_id)


def _targets_before(recorded: Sequence[Level], offset: int) -> bytes:
    """Return all targets of a record except the last, each with the id `offset` after the level's next id."""
    return b"".join([pack_target(level.number, level.manager.next_id + offset) for level in recorded[:-1]])


def _equal(one: tuple[Level, ...], other: tuple[Level, ...]) -> bool:
    """Return whether two tuples of levels are equal; most have a single level."""
    if len(one) == 1 and len(other) == 1:
        return one[0] is other[0]
    return one == other
