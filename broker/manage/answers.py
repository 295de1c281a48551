"""Answers with JSON values, with long lists in pieces, or without a body; each piece has a deadline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from email.utils import formatdate
from itertools import islice
from typing import Any, Final

from msgspec.json import Encoder
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from broker.administration.slices import pause
from broker.event_log import get_logger
from broker.manage.client import ApiClient
from broker.manage.refusal import HttpRefused
from broker.store.damage import StoreFailed

__all__ = ["Response"]

JSON: Final = "application/json"
encode: Final = Encoder().encode
ROWS_AT_ONCE: Final = 100  # rows generated and encoded in one turn of the loop
PIECE_BYTES: Final = 64 << 10
COMMON_HEADERS: Final = (
    (b"server", b"SlotMQ"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)

_log = get_logger()


class PieceResponse(Response):
    """A response that sends pieces as they are generated, as fast as the client reads them.

    A HEAD request gets only the headers.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
        ended: Callable[[], Awaitable[None] | None] | None = None,
    ) -> None:
        """Call `ended` after the answer, even if it was not sent completely."""
        self._pieces = pieces
        self._ended = ended
        self.status_code = status_code
        self.media_type = self.media_type if media_type is None else media_type
        self.background = None
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._pieces) as pieces:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                if scope["method"] != "HEAD":
                    async for piece in pieces:
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if self._ended is not None and (ending := self._ended()) is not None:
                await ending


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with a JSON value. Cost: O(size) in one turn, so use `rows_answer` for a long list."""
    return Response(encoded(value) + b"\n", status, headers, media_type=JSON)


def rows_answer(
    rows: Iterable[Any], before: bytes = b"[", after: bytes = b"]\n", *, at_once: int = ROWS_AT_ONCE
) -> Response:
    """Return an answer with a list of JSON values, read from `rows` and encoded in slices.

    The loop does other work between two slices, so objects that `rows` reads may change. `before` and `after` are the
    JSON text around the rows. A slice of `at_once` rows should take less than a millisecond.
    """
    return PieceResponse(pieces(iter(rows), before, after, at_once), media_type=JSON)


def object_answer(value: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with a JSON object that is encoded in pieces; its values may be long lists or iterators."""
    return PieceResponse(object_pieces(value), headers=headers, media_type=JSON)


def created() -> Response:
    """Return the answer to a PUT that has created an object."""
    return Response(status_code=201)


def no_content() -> Response:
    """Return the answer to a change without a result."""
    return Response(status_code=204)


def encoded(value: Any) -> bytes:
    """Return a value as JSON."""
    try:
        return encode(value)
    except OverflowError:  # an integer of a parameter can have any length
        return json.dumps(value, separators=(",", ":")).encode()


async def pieces(rows: Iterator[Any], before: bytes, after: bytes, at_once: int) -> AsyncGenerator[bytes, None]:
    """Yield the JSON text of a list in pieces; the loop does other work after every `at_once` rows."""
    piece = bytearray(before)
    separator = b""
    while chunk := list(islice(rows, at_once)):
        piece += separator
        piece += encoded(chunk)[1:-1]
        separator = b","
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
        await pause()
    yield bytes(piece + after)


async def object_pieces(value: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield the JSON text of an object in pieces."""
    before = b"{"
    for name, inner in value.items():
        head = before + encoded(name) + b":"
        if isinstance(inner, (list, Iterator)):
            async for piece in pieces(iter(inner), head + b"[", b"]", ROWS_AT_ONCE):
                yield piece
        else:
            yield head + encoded(inner)
        before = b","
    yield b"}\n" if before == b"," else b"{}\n"


def refusal_response(refused: HttpRefused, *, rabbitmq: bool = False) -> Response:
    """Return the answer for a refusal; `rabbitmq` selects RabbitMQ's error names."""
    headers = dict(refused.headers)
    if refused.fatal:
        headers["Connection"] = "close"
    return json_answer(refused.fields(rabbitmq=rabbitmq), refused.status, headers)


@asynccontextmanager
async def answering(scope: Scope, send: Send) -> AsyncIterator[Send]:
    """Yield a `send` for the answer to one request; an error in the block closes the connection."""
    client: ApiClient = scope["state"]["client"]
    client.begin()
    try:
        yield _sending(send, client)
    except asyncio.CancelledError:
        if not client.is_gone():
            raise
    except StoreFailed as failed:
        _log.warning("http.answer_broken_off", conn=client.peer.name, reason=str(failed))
        client.abort()
    except TimeoutError:
        _log.debug("http.client_lost", conn=client.peer.name)
        client.abort()
    except Exception as error:  # noqa: BLE001 - one request must not end the broker
        _log.error("http.answer_broken_off", conn=client.peer.name, exc_info=error)
        client.abort()
    finally:
        client.done()


def _sending(send: Send, client: ApiClient) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = list(message["headers"])
            names = {name.lower() for name, _value in own}
            common = [
                (b"date", formatdate(usegmt=True).encode()),
                *(pair for pair in COMMON_HEADERS if pair[0] not in names),
            ]
            if client.last and b"connection" not in names:
                common.append((b"connection", b"close"))
            message["headers"] = common + own
        async with asyncio.timeout(client.timeout_s):
            await send(message)

    return sending
