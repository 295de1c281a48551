"""The fields of a message that an exchange may read besides the routing key, decoded on demand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from broker.amqp.content_header import Properties, decode_properties

__all__ = ["HeaderFields"]


class HeaderFields:
    """The message fields of a content header, which is decoded at the first read (routing's MessageFields)."""

    __slots__ = ("_header", "_properties")

    def __init__(self, header: bytes) -> None:
        self._header = header
        self._properties: Properties | None = None

    @property
    def headers(self) -> Mapping[str, Any]:
        """The header table, empty if there is none."""
        headers: Mapping[str, Any] | None = self._decoded().headers
        return headers or {}

    def property(self, name: str) -> str | None:
        """Return a property as text, a timestamp in seconds since 1970; None if it is absent."""
        value: Any = getattr(self._decoded(), name)
        if isinstance(value, datetime):
            return str(int(value.replace(tzinfo=value.tzinfo or UTC).timestamp()))
        return None if value is None else str(value)

    def _decoded(self) -> Properties:
        if self._properties is None:
            self._properties = decode_properties(self._header)
        return self._properties
