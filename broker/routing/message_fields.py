"""The properties of a message that exchanges may read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class MessageFields(Protocol):
    """The properties of one message, as exchanges read them."""

    @property
    def headers(self) -> Mapping[str, Any]:
        """Return the decoded header table; empty if there is none."""

    def property(self, name: str) -> str | None:
        """Return message_id, correlation_id or timestamp (in seconds since 1970, as decimal digits); None if absent."""
