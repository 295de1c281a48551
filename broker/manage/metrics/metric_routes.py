"""The routes of the metrics. Prometheus asks for them without a login."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from broker.manage.api_route import ApiRoute
from broker.manage.metrics.exposition import CONTENT_TYPE
from broker.manage.metrics.scrape import Scrape
from broker.manage.needs import Needs
from broker.manage.pieces import PieceResponse

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["metric_routes"]


def metric_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", "/metrics", Needs.NOTHING, aggregated),
        ApiRoute("GET", "/metrics/per-object", Needs.NOTHING, per_object),
        ApiRoute("GET", "/metrics/detailed", Needs.NOTHING, detailed, repeats=("family", "vhost")),
    ]


async def aggregated(call: Call) -> Response:
    """Answer with the numbers of the whole broker."""
    return answer(Scrape(call.broker).aggregated())


async def per_object(call: Call) -> Response:
    """Answer with the numbers of each object."""
    return answer(Scrape(call.broker).per_object())


async def detailed(call: Call) -> Response:
    """Answer with the families that are asked for, of the vhosts that are asked for."""
    return answer(Scrape(call.broker).detailed(call.every("family"), call.every("vhost")))


def answer(text: AsyncGenerator[str, None]) -> Response:
    """Return an answer with a text in pieces."""
    return PieceResponse(encoded(text), media_type=CONTENT_TYPE)


async def encoded(text: AsyncGenerator[str, None]) -> AsyncGenerator[bytes, None]:
    """Yield a text as octets."""
    async with aclosing(text) as pieces:
        async for piece in pieces:
            if piece:
                yield piece.encode()
