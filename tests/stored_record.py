"""Decodes messages from records of the vhost's log."""

from __future__ import annotations

from broker.store.record import HEAD, HEAD_BYTES, INNER, MESSAGE, MOVED, StoredMessage, route_names


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
