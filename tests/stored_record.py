"""Messages of the vhost's log as they were written, decoded from records or read by the store."""

from __future__ import annotations

from collections.abc import Iterable

from broker.store.reading import Maker
from broker.store.record import HEAD, HEAD_BYTES, INNER, MESSAGE, MOVED, PERSISTENT, route_names
from broker.store.store import VhostStore


class StoredMessage:
    """One message as it was read back.

    Shapes: ``route`` as ``encode_route`` made it; ``targets`` as in the record; ``size`` is the whole record's length.
    """

    __slots__ = ("body", "exchange", "flags", "header", "key", "position", "route", "size", "targets", "timestamp_ms")

    def __init__(
        self,
        position: int,
        size: int,
        timestamp_ms: int,
        flags: int,
        route: bytes,
        names: tuple[str, str],
        header: bytes,
        body: bytes,
        targets: bytes,
    ) -> None:
        self.position = position
        self.size = size
        self.timestamp_ms = timestamp_ms
        self.flags = flags
        self.route = route
        self.exchange, self.key = names
        self.header = header
        self.body = body
        self.targets = targets

    @property
    def persistent(self) -> bool:
        """Whether it was published with delivery-mode 2."""
        return bool(self.flags & PERSISTENT)


class StoredMessages(Maker[StoredMessage]):
    """The maker of messages as the log has them; neighbouring messages share the names of their routes."""

    def __init__(self) -> None:
        self._routes: dict[bytes, tuple[str, str]] = {}

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
        route = block[route_at:header_at]
        names = self._routes.get(route)
        if names is None:
            names = self._routes[route] = route_names(route)
        header, body, targets = block[header_at:body_at], block[body_at:stop], block[targets_at:route_at]
        return StoredMessage(position, size, timestamp_ms, flags, route, names, header, body, targets)


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

    Raises: ValueError if the record is of another kind or its parts do not fit its length.
    """
    _, _, _, timestamp_ms, kind, flags, route_bytes, header_bytes, targets_bytes = HEAD.unpack_from(record)
    route_at = HEAD_BYTES + targets_bytes
    header_at = route_at + route_bytes
    body_at = header_at + header_bytes
    if kind & ~INNER not in (MESSAGE, MOVED) or body_at > len(record):
        raise ValueError(f"a record of kind {kind} with {len(record)} bytes is no message")
    route = record[route_at:header_at]
    return StoredMessage(
        position,
        len(record),
        timestamp_ms,
        flags,
        route,
        route_names(route),
        record[header_at:body_at],
        record[body_at:],
        record[HEAD_BYTES:route_at],
    )
