"""Messages as the API shows them, with RabbitMQ's names."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

from broker.operations.message_row import properties_row

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ENCODINGS", "payload_fields", "shown_properties"]

ENCODINGS: Final = ("auto", "base64")


def shown_properties(header: bytes) -> Mapping[str, Any]:
    """Return the properties of a content header."""
    found = properties_row(header)
    return {"type" if name == "message_type" else name: value for name, value in found.items()}


def payload_fields(body: bytes, encoding: str, bytes_max: int | None) -> dict[str, Any]:
    """Return the fields of a body: as text if it is UTF-8 and the encoding is auto, else in base64.

    A body that is cut in the middle of a character is shown without that character.
    """
    shown = body if bytes_max is None else body[:bytes_max]
    text = _text(shown, cut=len(shown) < len(body)) if encoding == "auto" else None
    return {
        "payload_bytes": len(body),
        "payload": b64encode(shown).decode() if text is None else text,
        "payload_encoding": "base64" if text is None else "string",
    }


def _text(shown: bytes, *, cut: bool) -> str | None:
    try:
        return shown.decode()
    except UnicodeDecodeError as error:
        if cut and error.reason == "unexpected end of data":
            return shown[: error.start].decode()
        return None
