"""The batch collected for the next call: messages, settlements and used producer numbers. Pure.

A batch is committed by one call. PostgreSQL alone decides which messages a full queue refuses: the answer to the call
names them, and the batch has the publisher of each. Transactions, and messages with a producer's number, are atomic:
either all their queues accept them or none does. PostgreSQL executes a call with atomic work completely or not at all.
If it refuses the call, the batch is sent again without the refused messages and the atomic work to which they belong.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from bitarray import bitarray

from broker.cluster.chunk import ChunkWriter
from broker.cluster.database_rows import SharedCall
from broker.cluster.shared_slot import SharedSlot
from broker.core.confirmable import Confirmable, Refusable
from broker.core.message.message import Message

PART_BYTES: Final = 1 << 20  # a row of a chunk table contains at most this much of a chunk
SETTLEMENT_BYTES: Final = 32  # the approximate size of a slot with settlements in a call
Number = tuple[str, int]  # a producer and its sequence number
Origin = tuple[Refusable, int]  # the publisher that waits for a confirm, and the number of its publish


class Share:
    """The messages of one level in a batch.

    Shapes: one bit per message: ``mine`` are leased to this node from the start, ``free`` to no node; ``refused`` are
        left out after a refusal by PostgreSQL. ``sent_mine`` and ``sent_free`` are the bits sent with the call.
        ``brief`` are the indexes of messages that have a time to live of 0 and are not dead-lettered; ``queue`` is the
        number of the queue, ``records`` are places in the chunk. If ``sized``, the call contains each body's size.
    """

    def __init__(self, level: int, queue: int) -> None:
        self.slot = SharedSlot(level, 0, 0)
        self.queue = queue
        self.brief: list[int] = []
        self.records: array[int] = array("I")
        self.mine = bitarray(endian="big")
        self.free = bitarray(endian="big")
        self.sent_mine = self.mine
        self.sent_free = self.free
        self.refused: bitarray | None = None
        self.size_bytes = 0
        self.due_ms = 0
        self.sized = False

    def add(self, first: int, count: int, mine: int, size_bytes: int) -> None:
        """Append messages with consecutive records, of which the first `mine` are leased to this node."""
        self.records.extend(range(first, first + count))
        self.slot.grow(count)
        self.size_bytes += size_bytes
        self.mine.extend(b"\1" * mine)
        self.free.extend(bytes(mine))
        if mine < count:
            self.mine.extend(bytes(count - mine))
            self.free.extend(b"\1" * (count - mine))

    def note_due(self, due_ms: int) -> None:
        """Record when a message is due; the share is due with its earliest message."""
        if not self.due_ms or due_ms < self.due_ms:
            self.due_ms = due_ms

    def send_sizes(self) -> None:
        """Send the size of each body with the call, because the queue may limit bytes."""
        self.sized = True

    @property
    def brief_bits(self) -> bitarray:
        """The messages in `brief`, one bit per message of the share."""
        bits = bitarray(self.slot.count, "big")
        for index in self.brief:
            bits[index] = 1
        return bits

    def release(self, indexes: Sequence[int]) -> None:
        """Free messages that were leased to this node, because no consumer here has room for them."""
        for index in indexes:
            self.mine[index] = 0
            self.free[index] = 1

    def refuse(self, bits: bitarray) -> None:
        """Omit messages from the next attempt."""
        self.refused = bits if self.refused is None else self.refused | bits

    def prepare(self, settled: bitarray | None) -> bool:
        """Compute the bits to send, without settled and refused messages, and return whether any remain."""
        self.sent_mine, self.sent_free = self.mine, self.free
        if settled is not None:
            self.sent_mine = self.mine & ~(settled + bitarray(self.slot.count - len(settled), "big"))
        if self.refused is not None:
            self.sent_free = self.free & ~self.refused
        return not self.is_reduced or self.sent_mine.any() or self.sent_free.any()

    @property
    def is_reduced(self) -> bool:
        """Whether the call has fewer messages than were added."""
        return self.sent_mine is not self.mine or self.sent_free is not self.free


class AtomicWork:
    """A transaction or a move: PostgreSQL executes its records and settlements completely or not at all.

    Shapes: its records are ``first`` <= record < ``stop``; ``settled`` maps slots to the messages that it settles.
    """

    def __init__(self, first: int, origin: Origin | None) -> None:
        self.first = self.stop = first
        self.origin = origin
        self.settled: dict[SharedSlot, bitarray] = {}

    def end(self, stop: int) -> None:
        self.stop = stop


class LeftOut(NamedTuple):
    """Work that is removed from a batch after a refusal.

    Shapes: ``origins`` are publishes and transactions to refuse, ``records`` are messages left out of all their queues.
        ``settled`` are messages that were not settled after all, ``producers`` those whose numbers were not used.
    """

    origins: list[Origin]
    records: set[int]
    settled: list[tuple[SharedSlot, bitarray]]
    producers: set[str]


class GatheringBatch:
    """Collect the work of one call.

    Shapes: ``sent`` are the shares of the call, in order. ``confirms`` pairs each publisher or transaction with the
        number up to which the commit confirms it.
    Invariant: ``synchronous`` is set when part of the work must survive a crash of the database.
    """

    def __init__(self) -> None:
        self.writer = ChunkWriter()
        self.shares: dict[int, Share] = {}  # by level
        self.sent: list[Share] = []
        self.confirms: list[tuple[Confirmable, int]] = []
        self.synchronous = False
        self.messages = 0
        self._starts: list[int] = []  # the first record of each run of one publisher
        self._origins: list[Origin | None] = []  # the origin of the first record of each run
        self._atomic: list[AtomicWork] = []
        self._open: AtomicWork | None = None
        self._settled: dict[SharedSlot, bitarray] = {}  # outside atomic work
        self._settlements = 0  # slots with settlements, atomic ones included
        self._used: dict[Number, int] = {}  # the record that a producer's number belongs to, or -1
        self._numbers: dict[int, Number] = {}  # by record
        self._also: dict[int, list[Origin]] = {}  # by record: later publishes that repeated its number

    @property
    def size_bytes(self) -> int:
        return self.writer.bytes + SETTLEMENT_BYTES * self._settlements

    @property
    def publishes(self) -> bool:
        """Whether the batch has messages or used numbers."""
        return bool(self.shares) or bool(self._used)

    @property
    def settles(self) -> bool:
        """Whether the batch has settlements."""
        return self._settlements > 0

    def add(self, messages: list[Message], start: int, stop: int, due_ms: int, origin: Origin | None) -> int:
        """Add the messages start <= place < stop to the chunk, each once, and return the first record. HOT.

        Their publishes have consecutive numbers; the number in `origin` is that of `messages[0]`.
        """
        writer = self.writer
        first = len(writer.bodies)
        for at in range(start, stop):
            message = messages[at]
            facts = message.facts
            timestamp_ms = message.timestamp_ms
            expiration_ms = facts.expiration_ms
            expires_ms = 0 if expiration_ms is None else timestamp_ms + expiration_ms
            writer.add(timestamp_ms, expires_ms, due_ms, message.envelope.route, message.header, message.body)
        self.messages += stop - start
        if origin is not None:
            self._starts.append(first)
            self._origins.append((origin[0], origin[1] + start))
        elif self._origins and self._origins[-1] is not None:
            self._starts.append(first)
            self._origins.append(None)
        return first

    def origin_of(self, record: int) -> Origin | None:
        """Return the publisher of a record, and the number of its publish, or None if nobody waits for a confirm."""
        place = bisect_right(self._starts, record) - 1
        origin = self._origins[place] if place >= 0 else None
        return None if origin is None else (origin[0], origin[1] + record - self._starts[place])

    def share(self, level: int, queue: int) -> Share:
        """Return the share of a level of a queue, creating it if necessary."""
        share = self.shares.get(level)
        if share is None:
            share = self.shares[level] = Share(level, queue)
        return share

    def settling(self, slot: SharedSlot) -> bitarray:
        """Return the bits of a slot, in which the caller marks settled messages."""
        settled = self._settled if self._open is None else self._open.settled
        bits = settled.get(slot)
        if bits is None:
            bits = settled[slot] = bitarray(slot.count, "big")
            self._settlements += 1
        elif len(bits) < slot.count:  # the slot of a share, which has grown
            bits.extend(bytes(slot.count - len(bits)))
        return bits

    def settlements(self) -> list[tuple[SharedSlot, bitarray]]:
        """Return the settled messages by slot; a slot may occur more than once."""
        return [one for settled in (self._settled, *(one.settled for one in self._atomic)) for one in settled.items()]

    def use(self, producer: str, sequence: int, record: int) -> None:
        """Record that a producer used a number for a record, or for -1 if the message has no record in the batch."""
        self._used[producer, sequence] = record
        if record >= 0:
            self._numbers[record] = (producer, sequence)

    def use_again(self, producer: str, sequence: int, origin: Origin) -> None:
        """Record a publish that repeats a number of this batch, so that it is refused if the first publish is."""
        record = self._used.get((producer, sequence), -1)
        if record >= 0:
            self._also.setdefault(record, []).append(origin)

    def synchronize(self) -> None:
        """Make the database write the call to disk before it answers."""
        self.synchronous = True

    def wait(self, confirmable: Confirmable, upto: int) -> None:
        """Confirm work once the call is committed."""
        self.confirms.append((confirmable, upto))

    def begin_atomic(self, origin: Origin | None) -> None:
        """Begin work that PostgreSQL executes completely or not at all."""
        assert self._open is None
        self._open = AtomicWork(len(self.writer.bodies), origin)
        self._atomic.append(self._open)

    def end_atomic(self) -> None:
        work, self._open = self._open, None
        assert work is not None
        work.end(len(self.writer.bodies))

    # -- the call -----------------------------------------------------------------------------------------------------

    def close(self) -> SharedCall | None:
        """Return the call, or None if there is nothing to commit. Nothing is added afterwards; after `leave_out` or
        `leave_all_out` it may be called again.

        A message that was settled after it was added is omitted, and so is a level that has no other messages.
        Levels and slots ascend, the order in which PostgreSQL locks them. Slots of earlier batches have numbers by now.
        """
        settled = self._all_settled()
        sent = self.sent = [share for _, share in sorted(self.shares.items()) if share.prepare(settled.get(share.slot))]
        parts: list[bytes] = []
        if sent:
            levels = [share.slot.level for share in sent]
            chunk = self.writer.encode(levels, [share.records for share in sent], self._wanted())
            parts = [chunk[at : at + PART_BYTES] for at in range(0, len(chunk), PART_BYTES)]
        slots = sorted([slot for slot in settled if slot.number], key=attrgetter("place"))
        used = self._ranges_used()
        if not (sent or slots or used):
            return None
        brief = [share for share in sent if share.brief]
        return SharedCall(
            atomic=bool(self._atomic) or bool(self._numbers),
            parts=parts,
            s_level=[share.slot.level for share in sent],
            s_count=[share.slot.count for share in sent],
            s_bytes=[share.size_bytes for share in sent],
            s_mine=[share.sent_mine for share in sent],
            s_free=[share.sent_free for share in sent],
            s_due=[share.due_ms or None for share in sent],
            s_sizes=[self._sizes(share) if share.sized else None for share in sent],
            t_level=[slot.level for slot in slots],
            t_number=[slot.number for slot in slots],
            t_bits=[settled[slot] for slot in slots],
            u_producer=[one[0] for one in used],
            u_first=[one[1] for one in used],
            u_last=[one[2] for one in used],
            n_level=[share.slot.level for share in brief],
            n_queue=[share.queue for share in brief],
            n_bits=[share.brief_bits for share in brief],
        )

    def _all_settled(self) -> Mapping[SharedSlot, bitarray]:
        """Return all settled messages, each slot once."""
        if not self._atomic:
            return self._settled
        settled: dict[SharedSlot, bitarray] = {}
        for slot, bits in self.settlements():
            short, long = sorted((settled.get(slot, bitarray(endian="big")), bits), key=len)
            settled[slot] = long | (short + bitarray(len(long) - len(short), "big"))
        return settled

    def _wanted(self) -> bytearray | None:
        """Return for each record whether a node will read it, or None if all will be read."""
        if not any(share.is_reduced for share in self.sent) and len(self.sent) == len(self.shares):
            return None
        wanted = bytearray(len(self.writer.bodies))
        for share in self.sent:
            for index in (share.sent_mine | share.sent_free).search(1):
                wanted[share.records[index]] = 1
        return wanted

    def _sizes(self, share: Share) -> bytes:
        """Return the sizes of the bodies of a share, as int4 in network byte order."""
        bodies = self.writer.bodies
        sizes = array("i", [len(bodies[record]) for record in share.records])
        if sys.byteorder == "little":
            sizes.byteswap()
        return sizes.tobytes()

    def _ranges_used(self) -> list[tuple[str, int, int]]:
        """Return the used numbers as producer, first and last of each range."""
        ranges: list[tuple[str, int, int]] = []
        for producer, sequence in sorted(self._used):
            if ranges and ranges[-1][0] == producer and ranges[-1][2] + 1 == sequence:
                ranges[-1] = producer, ranges[-1][1], sequence
            else:
                ranges.append((producer, sequence, sequence))
        return ranges

    def committed(self, number: int) -> None:
        """Set the number of the call's slots, which the commit assigned."""
        for share in self.shares.values():
            share.slot.numbered(number)

    # -- what PostgreSQL refused --------------------------------------------------------------------------------------

    def leave_out(self, refused: Iterable[tuple[Share, bitarray]]) -> LeftOut:
        """Omit refused messages, and the atomic work to which they belong, from the next attempt."""
        left_out = LeftOut([], set(), [], set())
        for share, bits in refused:
            share.refuse(bits)
            for index in bits.search(1):
                self._leave_out(share.records[index], left_out)
        gone = left_out.records
        if gone:
            for share in self.shares.values():
                share.refuse(bitarray([record in gone for record in share.records], "big"))
        return left_out

    def leave_all_out(self) -> LeftOut:
        """Omit all messages, because PostgreSQL would refuse them every time. If there are none, omit everything."""
        left_out = self.leave_out([(share, share.mine | share.free) for share in self.shares.values()])
        if not self.shares:
            left_out.settled.extend(self.settlements())
            left_out.origins.extend([work.origin for work in self._atomic if work.origin is not None])
            left_out.producers.update([producer for producer, _ in self._used])
            self._settled.clear()
            self._atomic.clear()
            self._used.clear()
            self._settlements = 0
        self.shares.clear()  # their slots never get a number, so messages delivered before the commit are not settled
        return left_out

    def _leave_out(self, record: int, left_out: LeftOut) -> None:
        """Omit a refused record, and the atomic work to which it belongs."""
        if record in left_out.records:
            return
        for work in self._atomic:
            if work.first <= record < work.stop:
                self._atomic.remove(work)
                left_out.records.update(range(work.first, work.stop))
                left_out.settled.extend(work.settled.items())
                self._settlements -= len(work.settled)
                if work.origin is not None:
                    left_out.origins.append(work.origin)
                for one in range(work.first, work.stop):
                    self._unuse(one, left_out)
                return
        if record in self._numbers:
            left_out.records.add(record)
            self._unuse(record, left_out)
        if (origin := self.origin_of(record)) is not None:
            left_out.origins.append(origin)

    def _unuse(self, record: int, left_out: LeftOut) -> None:
        """Let the number of a record be used again."""
        number = self._numbers.pop(record, None)
        if number is not None:
            del self._used[number]
            left_out.producers.add(number[0])
            left_out.origins.extend(self._also.pop(record, ()))
