"""The routes of the metrics. Prometheus asks for them without a login."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.manage.answers import PieceResponse
from broker.manage.api_route import ApiRoute
from broker.manage.metrics.metric import CONTENT_TYPE
from broker.manage.metrics.scrape import FAMILY_NAMES, Scrape
from broker.manage.metrics.shared_scrapes import SharedScrapes
from broker.manage.needs import Needs

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["metric_routes"]


def metric_routes() -> list[ApiRoute]:
    """Return the routes."""
    answers = MetricAnswers(SharedScrapes())
    return [
        ApiRoute("GET", "/metrics", Needs.NOTHING, answers.aggregated),
        ApiRoute("GET", "/metrics/per-object", Needs.NOTHING, answers.per_object),
        ApiRoute("GET", "/metrics/detailed", Needs.NOTHING, answers.detailed, repeats=("family", "vhost")),
    ]


@dataclass(frozen=True, slots=True)
class MetricAnswers:
    """Answers scrapes, each with a text that all share who ask for the same."""

    shared: SharedScrapes

    async def aggregated(self, call: Call) -> Response:
        """Answer with the numbers of the whole broker."""
        return self._answer(call, "aggregated", lambda: Scrape(call.broker).aggregated())

    async def per_object(self, call: Call) -> Response:
        """Answer with the numbers of each object."""
        return self._answer(call, "per-object", lambda: Scrape(call.broker).per_object())

    async def detailed(self, call: Call) -> Response:
        """Answer with the families that are asked for, of the vhosts that are asked for."""
        families = FAMILY_NAMES & set(call.every("family"))
        asked = call.every("vhost")
        vhosts = call.broker.administration.vhosts.keys() & set(asked) if asked else None
        key = ("detailed", families, None if vhosts is None else frozenset(vhosts))
        return self._answer(call, key, lambda: Scrape(call.broker).detailed(families, vhosts))

    def _answer(self, call: Call, key: Hashable, make: Callable[[], AsyncGenerator[str, None]]) -> Response:
        shared_s = call.broker.settings().metrics.shared_ms / 1000
        return PieceResponse(self.shared.pieces(key, call.client, make, shared_s), media_type=CONTENT_TYPE)
