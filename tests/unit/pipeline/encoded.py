"""Encoded properties for tests."""

from __future__ import annotations

from typing import Any

from broker.amqp.header_edit import edit_header
from broker.amqp.wire import PROPERTIES_AT

__all__ = ["properties"]


def properties(headers: dict[str, Any], **texts: str) -> bytes:
    """Return the encoded properties of a content header, starting with the flags."""
    return edit_header(bytes(PROPERTIES_AT + 2), set_headers=headers, set_properties=texts)[PROPERTIES_AT:]
