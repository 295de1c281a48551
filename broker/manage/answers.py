"""Answers: JSON values, long lists in pieces, and those without a body."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from itertools import islice
from typing import Any, Final

from msgspec.json import Encoder
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from broker.manage.gradual import pause

__all__ = ["JSON", "PieceResponse", "created", "encoded", "json_answer", "no_content", "rows_answer"]

JSON: Final = "application/json"
encode: Final = Encoder().encode
ROWS_AT_ONCE: Final = 100  # rows that are made and encoded between two turns of the loop
PIECE_BYTES: Final = 64 << 10


class PieceResponse(Response):
    """Sends pieces as they come; each waits until the client has room for it.

    The listener cancels it when the client disconnects. HEAD gets the headers, and no piece is made.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        self._pieces = pieces
        self.status_code = status_code
        self.media_type = self.media_type if media_type is None else media_type
        self.background = None
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        async with aclosing(self._pieces) as pieces:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with a JSON value. Cost: linear; a long list is for `rows_answer`."""
    return Response(encoded(value) + b"\n", status, headers, media_type=JSON)


def rows_answer(
    rows: Iterable[Any], before: bytes = b"[", after: bytes = b"]\n", *, at_once: int = ROWS_AT_ONCE
) -> Response:
    """Return an answer with a list of JSON values, which are taken from `rows` and encoded in pieces.

    Between two pieces the loop does other work, so what `rows` reads may change. `before` and `after` surround the
    rows: a list, or an object that ends with one. `at_once` rows should take less than a millisecond.
    """
    return PieceResponse(pieces(iter(rows), before, after, at_once), media_type=JSON)


def created() -> Response:
    """Return the answer to a PUT that has made something."""
    return Response(status_code=201)


def no_content() -> Response:
    """Return the answer to a change that left nothing to say."""
    return Response(status_code=204)


def encoded(value: Any) -> bytes:
    """Return a value as JSON."""
    try:
        return encode(value)
    except OverflowError:  # a parameter may be an integer of any length
        return json.dumps(value, separators=(",", ":")).encode()


async def pieces(rows: Iterator[Any], before: bytes, after: bytes, at_once: int) -> AsyncGenerator[bytes, None]:
    """Yield a list in pieces that are worth a write; the loop turns more often than that, after `at_once` rows."""
    piece = bytearray(before)
    separator = b""
    while made := list(islice(rows, at_once)):
        piece += separator
        piece += encoded(made)[1:-1]
        separator = b","
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
        await pause()
    yield bytes(piece + after)
