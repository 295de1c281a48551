"""Producers: publishers that number their messages, so that each number is published once, however often it is sent.

A producer has a name, which belongs to the user who used it first, and an id. The record of a message contains the
producer's id and the message's sequence number, so both are in the log together with the message or not at all. The
broker also has producers of its own: each records the position that the broker has reached in a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from broker.amqp.errors import ChannelError
from broker.core.deadlines import Deadlines
from broker.core.names import RESERVED
from broker.core.publishing.sequences import OwnSequence, Room, Sequences, block_of
from broker.store.record import PRODUCER, TARGET

DAY_MS: Final = 86_400_000
CHECKS_PER_EXPIRY: Final = 16  # searches for expired producers during one expiry time
BLOCKS_PER_CHANGE: Final = 64  # more would take long to encode, while other threads wait for the interpreter lock

Change = dict[str, Any]
_CHECK: Final = ("producers", "check")  # the key of the deadline
pack_target: Final = TARGET.pack
NOBODY: Final = ""  # the owner of the broker's own producers


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """The limits on remembered producers of a vhost: their number, their time without use, and their memory."""

    producers_max: int = 10_000
    expiry_ms: int = 7 * DAY_MS
    max_bytes: int = 64 << 20


class Producer:
    """One producer of a vhost.

    Invariant: ``number`` is never reused for another producer. ``mark``, which is ``number`` with the bit PRODUCER,
        identifies the producer in the targets of a record.
    """

    __slots__ = ("claimed_ms", "forgotten", "mark", "name", "number", "owner", "sequences")

    def __init__(self, name: str, owner: str, number: int, claimed_ms: int, room: Room) -> None:
        self.name = name
        self.owner = owner
        self.number = number
        self.mark = number | PRODUCER
        self.claimed_ms = claimed_ms
        self.forgotten = False
        self.sequences = Sequences(room) if owner else OwnSequence(room)

    @property
    def reached(self) -> int:
        """The highest number that this producer, one of the broker's own, has used, or -1 at first."""
        assert isinstance(self.sequences, OwnSequence)
        return self.sequences.highest

    def forget(self) -> None:
        """Record that the producer was discarded: its name may be claimed again."""
        self.forgotten = True

    def target(self, sequence: int) -> bytes:
        """Return the octets that precede the targets in the record of a numbered message."""
        return pack_target(self.mark, sequence)


class Producers:
    """Store the producers of a vhost by name. Invariant: a producer is journaled before a record refers to it."""

    def __init__(
        self,
        vhost_name: str,
        deadlines: Deadlines,
        journal: Callable[[Change], None],
        limits: ProducerLimits,
    ) -> None:
        self._vhost_name = vhost_name
        self._clock = deadlines.clock
        self._deadlines = deadlines
        self._journal = journal
        self._limits = limits
        self._by_name: dict[str, Producer] = {}
        self._names: dict[int, str] = {}  # by mark
        self._next_number = 1
        self._room = Room()
        self._full_until_ms = 0  # set when the memory is used up: no block expires before that moment
        self._snapshot_ms = 0  # the moment of the last snapshot

    @property
    def vhost_name(self) -> str:
        return self._vhost_name

    def require(self, name: str, user_name: str) -> None:
        """Check that a user's publish may use a producer. Raises: Postponed while another node of a cluster has it."""

    def of(self, name: str, user_name: str) -> Producer:
        """Return the producer with a name; a new one belongs to the user.

        Raises: ChannelError 403 if it belongs to another user or a new name is reserved, 406 at the limit.
        """
        producer = self._by_name.get(name)
        if producer is None:
            producer = self._claim(name, user_name)
        elif producer.owner != user_name:
            raise ChannelError(
                403, f"access to producer '{name}' in vhost '{self._vhost_name}' refused for user '{user_name}'"
            )
        return producer

    def own(self, name: str) -> Producer:
        """Return one of the broker's own producers, claiming it if necessary. Shapes: its name begins with `amq.`."""
        producer = self._by_name.get(name)
        return self._claim_now(name, NOBODY) if producer is None else producer

    def disown(self, producer: Producer) -> None:
        """Discard a producer. This is permanent after the next checkpoint."""
        producer.forget()
        del self._by_name[producer.name]
        del self._names[producer.mark]

    def owned_by_broker(self) -> list[Producer]:
        """Return the broker's own producers. Cost: O(producers)."""
        return [producer for producer in self._by_name.values() if producer.owner == NOBODY]

    def advance(self, producer: Producer, upto: int) -> None:
        """Record that one of the broker's own producers has used all numbers up to `upto`."""
        producer.sequences.add(upto, self._clock.now_ms)
        self._journal({"change": "producer_used", "producer": producer.number, "runs": [[upto, upto + 1]]})

    def check_room(self, producer: Producer, sequence: int) -> None:
        """Check that there is memory for a number. Raises: ChannelError 406.

        Cost: O(1); O(blocks) if the memory is used up and blocks may have expired since the last check.
        """
        if block_of(sequence) in producer.sequences.blocks or self._room.used_bytes < self._limits.max_bytes:
            return
        now_ms = self._clock.now_ms
        if now_ms > self._full_until_ms:
            self.forget_unused(but=producer)
            used = (block.used_ms for known in self._by_name.values() for block in known.sequences.blocks.values())
            self._full_until_ms = min(used, default=now_ms) + self._limits.expiry_ms
        if self._room.used_bytes >= self._limits.max_bytes:
            raise ChannelError(
                406,
                f"cannot take x-seq {sequence} of producer '{producer.name}': "
                f"producer bytes limit in vhost '{self._vhost_name}' ({self._limits.max_bytes}) is reached",
            )

    def forget_unused(self, but: Producer | None = None) -> None:
        """Discard producers and numbers that were not used within the expiry, and schedule the next check. The producer
        `but` is about to be used, so only its numbers are discarded.
        """
        now_ms, expiry_ms = self._clock.now_ms, self._limits.expiry_ms
        for producer in list(self._by_name.values()):
            producer.sequences.forget(now_ms - expiry_ms)
            unused = producer.owner and not producer.sequences.blocks
            if producer is not but and unused and producer.claimed_ms < now_ms - expiry_ms:
                self.disown(producer)
        if self._by_name:
            self._schedule_check()

    def _schedule_check(self) -> None:
        at_ms = self._clock.now_ms + self._limits.expiry_ms // CHECKS_PER_EXPIRY + 1
        self._deadlines.set(_CHECK, at_ms, self.forget_unused)

    def name_of(self, mark: int) -> str:
        return self._names[mark]

    def _claim(self, name: str, user_name: str) -> Producer:
        if name.startswith(RESERVED):
            raise ChannelError(403, f"producer name '{name}' contains reserved prefix '{RESERVED}*'")
        limit = self._limits.producers_max
        if len(self._by_name) >= limit:
            self.forget_unused()
        if len(self._by_name) >= limit:
            raise ChannelError(
                406,
                f"cannot claim producer '{name}': producer limit in vhost '{self._vhost_name}' ({limit}) is reached",
            )
        return self._claim_now(name, user_name)

    def _claim_now(self, name: str, owner: str) -> Producer:
        producer = self._add(name, owner, self._next_number, self._clock.now_ms)
        self._journal(_claimed(producer))
        return producer

    def _add(self, name: str, owner: str, number: int, claimed_ms: int) -> Producer:
        self._next_number = max(self._next_number, number + 1)
        producer = self._by_name[name] = Producer(name, owner, number, claimed_ms, self._room)
        self._names[producer.mark] = name
        if self._deadlines.at_ms(_CHECK) is None:
            self._schedule_check()
        return producer

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def snapshot(self) -> Callable[[], Iterator[Change]]:
        """Return a function that yields the changes that create the current producers; a thread may call it.

        Cost: a copy of the bits; numbers that were used in order have no bits.
        """
        next_number = self._next_number
        copies = []
        for producer in self._by_name.values():
            producer.sequences.shrink(self._snapshot_ms)
            copies.append((producer.number, _claimed(producer), producer.sequences.copy()))
        self._snapshot_ms = self._clock.now_ms

        def changes() -> Iterator[Change]:
            if next_number > 1:
                yield {"change": "producer_numbers", "next": next_number}
            for number, claimed, copy in copies:
                yield claimed
                for at in range(0, len(copy), BLOCKS_PER_CHANGE):
                    blocks = list(Sequences.written(copy[at : at + BLOCKS_PER_CHANGE]))
                    yield {"change": "producer_blocks", "producer": number, "blocks": blocks}

        return changes

    def restore(self, changes: list[Change]) -> None:
        """Restore the producers from the changes in the store.

        Numbers used since the last checkpoint count as used now, because the log does not contain the time.
        """
        by_number: dict[int, Producer] = {}
        now_ms = self._clock.now_ms
        for change in changes:
            kind = change["change"]
            if kind == "producer_claimed":
                number = change["producer"]
                if number not in by_number:
                    by_number[number] = self._add(change["name"], change["owner"], number, change["at_ms"])
            elif kind == "producer_numbers":
                self._next_number = max(self._next_number, change["next"])
            elif (producer := by_number.get(change["producer"])) is None:
                continue  # the producer was discarded
            elif kind == "producer_blocks":
                for block in change["blocks"]:
                    producer.sequences.read(block)
            else:
                for first, end in change["runs"]:
                    producer.sequences.add_range(first, end, now_ms)
        self.forget_unused()


def _claimed(producer: Producer) -> Change:
    return {
        "change": "producer_claimed",
        "producer": producer.number,
        "name": producer.name,
        "owner": producer.owner,
        "at_ms": producer.claimed_ms,
    }
