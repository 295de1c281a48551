"""A message as JSON."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.content_header import decode_properties
from broker.core.definitions.export import json_table

if TYPE_CHECKING:
    from broker.delivery.queue_messages import Peeked

__all__ = ["body_fields", "message_row", "properties_row"]

PROPERTIES: Final = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "message_type", "user_id", "app_id", "cluster_id",
)  # fmt: skip


def message_row(message: Peeked, body_max_bytes: int) -> dict[str, Any]:
    """Return a message as JSON: its body as text if it is UTF-8, else in base64."""
    return {
        "id": message.message_id,
        "priority_level": message.priority_level,
        "exchange": message.exchange,
        "routing_key": message.key,
        "redelivered": message.redelivered,
        "properties": properties_row(message.header),
        **body_fields(message.body, body_max_bytes),
    }


def body_fields(content: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the fields of a body, and as much of it as requested."""
    shown = content[:max_bytes]
    try:
        body, encoding = _text(shown, complete=len(shown) == len(content)), "utf-8"
    except UnicodeDecodeError:
        body, encoding = b64encode(shown).decode(), "base64"
    return {
        "body_bytes": len(content),
        "body_complete": len(shown) == len(content),
        "body_encoding": encoding,
        "body": body,
    }


def _text(shown: bytes, *, complete: bool) -> str:
    """Return the text, without a character that was cut in two. Raises: UnicodeDecodeError."""
    try:
        return shown.decode()
    except UnicodeDecodeError as error:
        if complete or len(shown) - error.start > 3 or error.reason != "unexpected end of data":
            raise
        return shown[: error.start].decode()


def properties_row(header: bytes) -> dict[str, Any]:
    """Return the properties that a content header has."""
    decoded = decode_properties(header)
    found = {name: getattr(decoded, name, None) for name in PROPERTIES}
    return json_table({name: value for name, value in found.items() if value not in (None, "")})
