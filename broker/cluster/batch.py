"""The batch that gathers for the next call: messages, settlements and used producer numbers. Pure.

A batch is committed by one call, as a whole or not at all. It is never cut, so a transaction, or a dead letter and the
settlement of its source, which are gathered in one piece, stay together.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final

from bitarray import bitarray

from broker.cluster.chunk import ChunkWriter
from broker.cluster.database_rows import SharedCall
from broker.core.confirmable import Confirmable
from broker.core.message.message import Message

__all__ = ["PART_BYTES", "GatheringBatch", "Share", "SharedSlot"]

PART_BYTES: Final = 1 << 20  # of a chunk in one row
SETTLEMENT_BYTES: Final = 32  # of a slot with settlements in a call, about
SIZE: Final = Struct(">i")


class SharedSlot:
    """A slot of the database, of which this node has messages.

    Shapes: ``number`` is 0 until the call that has the slot was answered.
    """

    __slots__ = ("count", "number", "stream")

    def __init__(self, stream: int, number: int, count: int) -> None:
        self.stream = stream
        self.number = number
        self.count = count

    def numbered(self, number: int) -> None:
        """Take the number that the commit gave."""
        self.number = number


class Share:
    """The messages of one stream in a batch.

    Shapes: one bit per message: ``mine`` are leased to this node from the start, ``free`` to nobody. ``brief`` has the
        indexes of those with a time to live of 0, ``queue`` is the number of the queue, ``records`` are those of the
        chunk. Only of a stream with limits there are ``sizes`` (of the bodies), ``messages`` and ``origins``: the
        publisher that waits for the message, and its number.
    """

    __slots__ = (
        "brief",
        "due_ms",
        "free",
        "messages",
        "mine",
        "origins",
        "queue",
        "records",
        "size_bytes",
        "sizes",
        "slot",
    )

    def __init__(self, stream: int, queue: int, *, limited: bool) -> None:
        self.slot = SharedSlot(stream, 0, 0)
        self.queue = queue
        self.brief: list[int] = []
        self.records: array[int] = array("I")
        self.mine = bitarray(endian="big")
        self.free = bitarray(endian="big")
        self.size_bytes = 0
        self.due_ms = 0
        self.sizes: list[bytes] | None = [] if limited else None
        self.messages: list[Message] = []
        self.origins: list[tuple[Confirmable, int] | None] = []

    def add(self, first: int, count: int, mine: int, size_bytes: int) -> None:
        """Append messages with consecutive records, of which the first `mine` are leased to this node."""
        self.records.extend(range(first, first + count))
        self.slot.count += count
        self.size_bytes += size_bytes
        self.mine.extend(b"\1" * mine)
        self.free.extend(bytes(mine))
        if mine < count:
            self.mine.extend(bytes(count - mine))
            self.free.extend(b"\1" * (count - mine))

    def note_due(self, due_ms: int) -> None:
        """Note when a delayed message is due; a share is due with its first message."""
        if not self.due_ms or due_ms < self.due_ms:
            self.due_ms = due_ms

    def note_brief(self, index: int) -> None:
        """Note a message with a time to live of 0."""
        self.brief.append(index)

    @property
    def brief_bits(self) -> bitarray:
        """The messages with a time to live of 0."""
        bits = bitarray(self.slot.count, "big")
        for index in self.brief:
            bits[index] = 1
        return bits

    def limit(self, message: Message, origin: tuple[Confirmable, int] | None) -> None:
        """Note a message that a queue with limits may refuse."""
        assert self.sizes is not None
        self.sizes.append(SIZE.pack(len(message.body)))
        self.messages.append(message)
        self.origins.append(origin)

    def release(self, indexes: Sequence[int]) -> None:
        """Free messages that were leased to this node: it has no consumer for them any more."""
        for index in indexes:
            self.mine[index] = 0
            self.free[index] = 1


class GatheringBatch:
    """Gathers what one call commits.

    Units: ``messages`` counts those that were added, ``size_bytes`` is the approximate size of the call.
    Invariant: ``synchronous`` is set when something in it must survive a crash of the database.
    """

    __slots__ = ("_settled", "_used", "confirms", "messages", "sent", "shares", "synchronous", "writer")

    def __init__(self) -> None:
        self.writer = ChunkWriter()
        self.shares: dict[int, Share] = {}  # by stream
        self.sent: list[Share] = []  # those of the call, in its order
        self.confirms: list[tuple[Confirmable, int]] = []  # what the commit confirms, and up to which number
        self.synchronous = False
        self.messages = 0
        self._settled: dict[SharedSlot, bitarray] = {}
        self._used: dict[str, list[list[int]]] = {}  # ranges of numbers by producer

    @property
    def size_bytes(self) -> int:
        """The approximate size of the call."""
        return self.writer.bytes + SETTLEMENT_BYTES * len(self._settled)

    @property
    def publishes(self) -> bool:
        """Whether it has messages or used numbers."""
        return bool(self.shares) or bool(self._used)

    @property
    def settles(self) -> bool:
        """Whether it has settlements."""
        return bool(self._settled)

    @property
    def limited(self) -> bool:
        """Whether it has messages that a full queue may refuse."""
        return any(share.sizes is not None for share in self.sent)

    def add(self, messages: list[Message], start: int, stop: int, due_ms: int) -> int:
        """Add the messages from place `start` to `stop` to the chunk, each once, and return the first record. HOT."""
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
        return first

    def share(self, stream: int, queue: int, *, limited: bool) -> Share:
        """Return the share of a stream of a queue; a new one if it has none."""
        share = self.shares.get(stream)
        if share is None:
            share = self.shares[stream] = Share(stream, queue, limited=limited)
        return share

    def settling(self, slot: SharedSlot) -> bitarray:
        """Return the bits of a slot in which the caller marks what is settled."""
        bits = self._settled.get(slot)
        if bits is None:
            bits = self._settled[slot] = bitarray(slot.count, "big")
        elif len(bits) < slot.count:  # a share that still grows
            bits.extend(bytes(slot.count - len(bits)))
        return bits

    def settlements(self) -> list[tuple[SharedSlot, bitarray]]:
        """Return what is settled, by slot."""
        return list(self._settled.items())

    def use(self, producer: str, sequence: int) -> None:
        """Note that a producer used a number."""
        ranges = self._used.get(producer)
        if ranges is None:
            self._used[producer] = [[sequence, sequence]]
        elif ranges[-1][1] + 1 == sequence:
            ranges[-1][1] = sequence
        else:
            ranges.append([sequence, sequence])

    def synchronize(self) -> None:
        """Let the database write the call to disk before it answers."""
        self.synchronous = True

    def wait(self, confirmable: Confirmable, upto: int) -> None:
        """Confirm work once the call is committed."""
        self.confirms.append((confirmable, upto))

    # -- the call -----------------------------------------------------------------------------------------------------

    def close(self) -> SharedCall | None:
        """Return the call, None when there is nothing to commit; nothing is added afterwards.

        What was settled since it was added is not part of the call, and neither is a stream without other messages.
        Streams and slots ascend, which is the order of the locks. The number of every settled slot is known by now.
        """
        settled = self._settled
        wanted = self._leave_out_settled(settled)
        sent = self.sent
        parts: list[bytes] = []
        if sent:
            streams = [share.slot.stream for share in sent]
            chunk = self.writer.encode(streams, [share.records for share in sent], wanted)
            parts = [chunk[at : at + PART_BYTES] for at in range(0, len(chunk), PART_BYTES)]
        slots = sorted([slot for slot in settled if slot.number], key=_place_of)
        used = [(producer, one[0], one[1]) for producer, ranges in sorted(self._used.items()) for one in ranges]
        if not (sent or slots or used):
            return None
        brief = [share for share in sent if share.brief]
        return SharedCall(
            parts=parts,
            s_stream=[share.slot.stream for share in sent],
            s_count=[share.slot.count for share in sent],
            s_bytes=[share.size_bytes for share in sent],
            s_mine=[share.mine for share in sent],
            s_free=[share.free for share in sent],
            s_due=[share.due_ms or None for share in sent],
            s_sizes=[None if share.sizes is None else b"".join(share.sizes) for share in sent],
            t_stream=[slot.stream for slot in slots],
            t_number=[slot.number for slot in slots],
            t_bits=[settled[slot] for slot in slots],
            u_producer=[one[0] for one in used],
            u_first=[one[1] for one in used],
            u_last=[one[2] for one in used],
            n_stream=[share.slot.stream for share in brief],
            n_queue=[share.queue for share in brief],
            n_bits=[share.brief_bits for share in brief],
        )

    def _leave_out_settled(self, settled: dict[SharedSlot, bitarray]) -> bytearray | None:
        """Note the shares of the call in ``sent``, without the messages that were settled since.

        Return for each record whether it is still wanted, None when all are.
        """
        left_out = False
        for stream in sorted(self.shares):
            share = self.shares[stream]
            gone = settled.pop(share.slot, None)
            if gone is not None:
                gone.extend(bytes(share.slot.count - len(gone)))
                share.mine &= ~gone
                left_out = True
                if not share.mine.any() and not share.free.any():
                    continue
            self.sent.append(share)
        if not left_out:
            return None
        wanted = bytearray(len(self.writer))
        for share in self.sent:
            for index in (share.mine | share.free).search(1):
                wanted[share.records[index]] = 1
        return wanted

    def committed(self, number: int) -> None:
        """Take the number that the commit gave to all slots of the call."""
        for share in self.sent:
            share.slot.numbered(number)

    def refused(self, taken: Sequence[int]) -> list[tuple[Share, int]]:
        """Return (share, index) of each message that its stream did not take.

        Shapes: `taken` has for each share of the call how many of its messages the stream took, the first ones.
        """
        found: list[tuple[Share, int]] = []
        for share, count in zip(self.sent, taken, strict=True):
            if count < share.slot.count:
                found += [(share, index) for index in range(count, share.slot.count)]
        return found


def _place_of(slot: SharedSlot) -> tuple[int, int]:
    return slot.stream, slot.number
