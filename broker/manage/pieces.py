"""An answer that is made and sent in pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["PieceResponse"]


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
