"""One answer: a status, headers, and a body in memory or a part of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from broker.net.http.refusal import HttpRefused

if TYPE_CHECKING:
    from broker.store.files import File

__all__ = ["BYTES", "JSON", "Answer", "FilePart", "json_answer", "refusal_answer"]

JSON: Final = ("Content-Type", "application/json")
BYTES: Final = ("Content-Type", "application/octet-stream")


@dataclass(frozen=True, slots=True)
class FilePart:
    """The part of an open file to send; the sender closes the file."""

    file: File
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. Invariant: it has `part` or `body`; a 304 has neither."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    part: FilePart | None = None
    close: bool = False

    @property
    def size_bytes(self) -> int:
        """How long the body is."""
        return len(self.body) if self.part is None else self.part.size_bytes


def json_answer(value: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Return an answer with a JSON value. Cost: linear; the caller passes a long list as `bytes`."""
    return Answer(status, encoded(value), (JSON, *headers))


def refusal_answer(refused: HttpRefused) -> Answer:
    """Return the answer for a refusal."""
    fields: Mapping[str, str] = {"error": refused.word, "reason": refused.reason}
    return Answer(refused.status, encoded(fields), (JSON, *refused.headers), close=refused.fatal)


def encoded(value: Any) -> bytes:
    """Return a value as a line of JSON."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
