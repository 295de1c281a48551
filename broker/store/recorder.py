"""Append the records of one vhost to its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from crc32c import crc32c

from broker.slots.redeliveries import ReturnRun
from broker.slots.slot import Slot
from broker.store.message_log import APART_BYTES, MessageLog
from broker.store.record import (
    FRONT,
    MESSAGE,
    PREFIX_BYTES,
    Recorded,
    encode_queue_deleted,
    encode_requeued,
    encode_settled,
    encode_topology,
)
from broker.store.segment import OFFSET_BITS

ID_BYTES: Final = 8
_OCTETS: Final = [bytes((octet,)) for octet in range(256)]
pack_front: Final = FRONT.pack


class Recorder:
    """The writer of log records: one for each change that recovery needs.

    Callers identify messages by stream number and message id, not by the positions of their records. Records that are
    appended between two syncs are written together.
    """

    def __init__(self, log: MessageLog) -> None:
        self.log = log
        self._checksum_of = crc32c  # compiled code looks up a function of another package at every call
        self._synced = self._timestamp_ms = -1
        self._flags = self._header_bytes = 0
        self._targets = b""
        self._fronts: dict[int, bytes] = {}  # the part between prefix and targets, by the length of the route
        self._route_bytes = -1
        self._front = b""
        self._block = -1  # the message id without its last octet: 256 ids share a head
        self._head = b""  # the front, the targets, and the last message id without its last octet

    def record(self, message: Recorded, flags: int, route: bytes, targets: bytes, message_id: int) -> None:
        """Append the record of a message for all the streams that keep it on disk. HOT.

        Shapes: targets is `TARGET.pack(stream number, message id)` of each stream, joined, without the last message
            id, which is `message_id`.
        Cost: two copies of the message's bytes, none of a body of APART_BYTES outside transactions; and a checksum. The
            bytes before the last octet of the id are built once for neighbours of a stream that share their timestamp
            and lengths.
        """
        log = self.log
        header = message.header
        if (
            message.timestamp_ms != self._timestamp_ms
            or len(header) != self._header_bytes
            or log.synced != self._synced
            or flags != self._flags
            or len(targets) != len(self._targets)
            or len(route) != self._route_bytes
        ):
            self._build_front(message, flags, targets, len(route))
        if message_id >> 8 != self._block or targets is not self._targets:
            self._block = message_id >> 8
            self._targets = targets
            self._head = self._front + targets + self._block.to_bytes(ID_BYTES - 1, "big")
        body = message.body
        if len(body) >= APART_BYTES:
            begin = self._head + _OCTETS[message_id & 0xFF] + route + header
            size_bytes = len(begin) + len(body)
            checksum = self._checksum_of(body, self._checksum_of(begin))
            prefix = (size_bytes << 32 | checksum).to_bytes(PREFIX_BYTES, "big")
            position = log.append_apart(prefix + begin, body)
        else:
            content = b"%b%b%b%b%b" % (self._head, _OCTETS[message_id & 0xFF], route, header, body)  # copies once
            size_bytes = len(content)
            prefix = (size_bytes << 32 | self._checksum_of(content)).to_bytes(PREFIX_BYTES, "big")
            position = log.append(prefix, content)
        message.position = position  # hot: set directly
        message.record_bytes = PREFIX_BYTES + size_bytes  # hot: set directly

    def _build_front(self, message: Recorded, flags: int, targets: bytes, route_bytes: int) -> None:
        """Build the front of records for messages like this one; fronts for other lengths of routes stay cached."""
        synced, timestamp_ms, header_bytes = self.log.synced, message.timestamp_ms, len(message.header)
        if (
            timestamp_ms != self._timestamp_ms
            or header_bytes != self._header_bytes
            or synced != self._synced
            or flags != self._flags
            or len(targets) != len(self._targets)
        ):
            self._synced, self._timestamp_ms, self._flags = synced, timestamp_ms, flags
            self._header_bytes, self._targets = header_bytes, targets
            self._fronts.clear()
        front = self._fronts.get(route_bytes)
        if front is None:
            targets_bytes = len(targets) + ID_BYTES
            front = pack_front(synced, timestamp_ms, MESSAGE, flags, route_bytes, header_bytes, targets_bytes)
            self._fronts[route_bytes] = front
        self._route_bytes = route_bytes
        self._front = front
        self._block = -1  # the head begins with the front

    def keep(self, slot: Slot, messages: Sequence[Recorded]) -> None:
        """Keep the records of a slot's messages on disk for as long as the slot exists.

        Shapes: the messages are in the order of their records.
        """
        for segment in sorted({message.position >> OFFSET_BITS for message in messages}):
            if slot.add_segment(segment):
                self.log.add_live(segment, 1)

    def record_settled(self, timestamp_ms: int, number: int, ids: Sequence[int]) -> None:
        """Record that messages of a stream are settled. Shapes: ids are distinct and at least one, in any order."""
        self.log.append(encode_settled(self.log.synced, timestamp_ms, number, ids))

    def record_requeued(self, timestamp_ms: int, number: int, first_id: int, runs: Iterable[ReturnRun]) -> None:
        """Record how often messages were returned. Shapes: indexes of the runs count from `first_id`."""
        self.log.append(encode_requeued(self.log.synced, timestamp_ms, number, first_id, runs))

    def record_deleted(self, timestamp_ms: int, number: int) -> None:
        self.log.append(encode_queue_deleted(self.log.synced, timestamp_ms, number))

    def record_topology(self, timestamp_ms: int, change: Mapping[str, Any]) -> None:
        """Record one change of the durable topology. Raises: TypeError or ValueError when a value is not JSON."""
        self.log.append(encode_topology(self.log.synced, timestamp_ms, change))
