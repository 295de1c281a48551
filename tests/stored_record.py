"""Messages of a vhost's log, decoded from records or read by the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from broker.store.reading import MessageBuilder
from broker.store.record import HEAD, HEAD_BYTES, INNER, MESSAGE, MOVED, PERSISTENT, route_names
from broker.store.store import VhostStore


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message read from the log.

    Shapes: ``route`` is encoded by ``encode_route``, ``targets`` as in the record; ``size`` is the record's length.
    """

    position: int
    size: int
    timestamp_ms: int
    flags: int
    route: bytes
    header: bytes
    body: bytes
    targets: bytes

    @property
    def exchange(self) -> str:
        """The exchange of its route."""
        return route_names(self.route)[0]

    @property
    def key(self) -> str:
        """The routing key of its route."""
        return route_names(self.route)[1]

    @property
    def persistent(self) -> bool:
        """Whether it was published with delivery-mode 2."""
        return bool(self.flags & PERSISTENT)


class StoredMessages(MessageBuilder[StoredMessage]):
    """Makes StoredMessage objects of records."""

    def make(
        self,
        position: int,
        size: int,
        timestamp_ms: int,
        flags: int,
        block: bytes,
        targets_at: int,
        route_at: int,
        header_at: int,
        body_at: int,
        stop: int,
    ) -> StoredMessage:
        """Return one message."""
        ends = (targets_at, route_at, header_at, body_at, stop)
        targets, route, header, body = [block[at:end] for at, end in pairwise(ends)]
        return StoredMessage(position, size, timestamp_ms, flags, route, header, body, targets)


def read_slot(
    store: VhostStore,
    number: int,
    first: int,
    end: int,
    wanted: Iterable[int] | None = None,
    segments: Iterable[int] | None = None,
) -> list[StoredMessage | None]:
    """Return the messages of a slot on disk, as `StoredSlots.read` does."""
    return store.slots.read(number, first, end, wanted, segments, StoredMessages())


def decode_message(position: int, record: bytes) -> StoredMessage:
    """Return the message of a complete MESSAGE or MOVED record.

    Raises: ValueError if the record has another kind or its parts exceed its length.
    """
    _, _, _, timestamp_ms, kind, flags, route_bytes, header_bytes, targets_bytes = HEAD.unpack_from(record)
    route_at = HEAD_BYTES + targets_bytes
    header_at = route_at + route_bytes
    body_at = header_at + header_bytes
    if kind & ~INNER not in (MESSAGE, MOVED) or body_at > len(record):
        raise ValueError(f"a record of kind {kind} with {len(record)} bytes is no message")
    places = (HEAD_BYTES, route_at, header_at, body_at, len(record))
    return StoredMessages().make(position, len(record), timestamp_ms, flags, record, *places)
