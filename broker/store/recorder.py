"""The recorder: writes the records of one vhost into its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from crc32c import crc32c

from broker.slots.slot import Slot
from broker.store.message_log import MessageLog
from broker.store.record import (
    FRONT,
    MESSAGE,
    PREFIX_BYTES,
    encode_purged,
    encode_queue_deleted,
    encode_requeued,
    encode_settled,
    encode_topology,
)
from broker.store.recorded import Recorded
from broker.store.segment import OFFSET_BITS

__all__ = ["Recorder"]

ID_BYTES: Final = 8
LARGE_BYTES: Final = 32 << 10  # a body of this size is not copied into its record: the copy would be held until written
Stored = TypeVar("Stored", bound=Recorded)
_OCTETS: Final = [bytes((octet,)) for octet in range(256)]
pack_front: Final = FRONT.pack


class Recorder:
    """Writes one record for each thing that recovery has to know.

    Messages are named by stream number and message id; where their records lie is known here and below. Everything
    that comes between two syncs of the log is appended at once and written later.
    """

    __slots__ = ("_fields", "_front", "_log")

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._fields = (-1, 0, 0, 0, 0, 0, 0)
        self._front = b""  # it holds these fields; the next record mostly has the same ones

    @property
    def progress(self) -> int:
        """A number that grows with each record: where it has not changed, nothing was recorded in between."""
        return self._log.position

    @property
    def needs_sync(self) -> bool:
        """Whether a record was appended that no confirm may follow yet."""
        return self._log.needs_sync

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context in which all records count together or not at all after a crash; see MessageLog.group()."""
        return self._log.group()

    def record(self, messages: list[Stored], flags: int, route: bytes, targets: bytes, first_id: int) -> None:
        """Append the records of messages of one route for all the streams that keep them on disk. HOT.

        Shapes: targets is ``TARGET.pack(stream number, message id)`` of each stream, joined, without the last message
            id, which is `first_id` for the first message and one more for each that follows.
        Cost: one copy of each message's bytes, but not of a large body, and a checksum. What stands in front of the
            last octet of the id, and what stands between it and the body, is made once for neighbours that share
            content header and moment; the first 28 bytes of it are made once for records whose fields are the same.
        """
        log = self._log
        checksum_of = crc32c  # compiled code looks a function of another package up at each call
        route_bytes = len(route)
        targets_bytes = len(targets) + ID_BYTES
        header = b""
        timestamp_ms = -1
        head = middle = b""
        large = False
        message_id = first_id
        for message in messages:
            octet = message_id & 0xFF
            if message.header is not header or message.timestamp_ms != timestamp_ms or not octet:
                header = message.header
                timestamp_ms = message.timestamp_ms
                fields = (log.synced, timestamp_ms, MESSAGE, flags, route_bytes, len(header), targets_bytes)
                if fields != self._fields:
                    self._front = pack_front(*fields)
                    self._fields = fields
                head = self._front + targets + (message_id >> 8).to_bytes(ID_BYTES - 1, "big")
                middle = route + header
                large = len(message.body) >= LARGE_BYTES  # as long as the header, which has the size, is the same
            if large:
                body = message.body
                begin = b"".join((head, _OCTETS[octet], middle))
                size_bytes = len(begin) + len(body)
                checksum = checksum_of(body, checksum_of(begin))
                prefix = (size_bytes << 32 | checksum).to_bytes(PREFIX_BYTES, "big")
                position = log.append_body(prefix + begin, body)
            else:
                content = b"".join((head, _OCTETS[octet], middle, message.body))
                size_bytes = len(content)
                prefix = (size_bytes << 32 | checksum_of(content)).to_bytes(PREFIX_BYTES, "big")
                position = log.append_content(prefix, content)
            message.position = position  # hot: written here
            message.record_bytes = PREFIX_BYTES + size_bytes  # hot: written here
            message_id += 1

    def keep(self, slot: Slot, messages: Sequence[Recorded]) -> None:
        """Keep the records of messages, which were appended to a slot, on disk as long as the slot is there.

        Shapes: the messages are in the order of their records.
        """
        first = messages[0].position >> OFFSET_BITS
        last = messages[-1].position >> OFFSET_BITS
        if first == last and first in slot.segments:
            return
        for segment in sorted({message.position >> OFFSET_BITS for message in messages}):
            if slot.add_segment(segment):
                self._log.add_live(segment, 1)

    def record_settled(self, timestamp_ms: int, number: int, ids: Sequence[int]) -> None:
        """Record that messages of a stream are settled. Shapes: ids are distinct and at least one, in any order."""
        self._log.append(encode_settled(self._log.synced, timestamp_ms, number, ids))

    def record_requeued(self, timestamp_ms: int, number: int, counts: Mapping[int, int]) -> None:
        """Record how often messages that came back were delivered in all. Shapes: counts by message id."""
        self._log.append(encode_requeued(self._log.synced, timestamp_ms, number, counts))

    def record_purged(self, timestamp_ms: int, number: int, upto: int, excepted: Sequence[int]) -> None:
        """Record that every message up to and including id `upto` is settled but for the excepted."""
        self._log.append(encode_purged(self._log.synced, timestamp_ms, number, upto, excepted))

    def record_deleted(self, timestamp_ms: int, number: int) -> None:
        """Record that a stream is gone for good."""
        self._log.append(encode_queue_deleted(self._log.synced, timestamp_ms, number))

    def record_topology(self, timestamp_ms: int, change: Mapping[str, Any]) -> None:
        """Record one change of the durable topology. Raises: TypeError when a value is not JSON."""
        self._log.append(encode_topology(self._log.synced, timestamp_ms, change))
