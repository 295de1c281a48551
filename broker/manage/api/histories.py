"""GET /api/history: the samples of the last hour, for charts; of the broker, or of a queue that somebody looks at."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from broker.manage.answers import JSON, PieceResponse, encoded
from broker.manage.api.queues import queue_of
from broker.manage.api_route import ApiRoute
from broker.manage.counts import QUEUE_COUNTERS, QUEUE_NUMBERS, queue_key, queue_numbers
from broker.manage.gradual import pause
from broker.manage.needs import Needs

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.core.queue.queue import Queue
    from broker.manage.call import Call
    from broker.manage.history import History

__all__ = ["history_routes"]


def history_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", "/api/history", Needs.MONITORING, of_broker, ()),
        ApiRoute("GET", "/api/history/queues/{vhost}/{queue}", Needs.MANAGEMENT, of_queue, ()),
    ]


async def of_broker(call: Call) -> Response:
    """Answer with an hour of the broker's totals."""
    return history_answer(call.broker.samples.totals)


async def of_queue(call: Call) -> Response:
    """Answer with what is remembered of a queue; its history begins when somebody asks for it."""
    vhost, queue = queue_of(call)
    watched = call.broker.samples.watch(
        queue_key(vhost, queue), QUEUE_NUMBERS, QUEUE_COUNTERS, lambda: _numbers_of(queue)
    )
    return history_answer(watched)


def _numbers_of(queue: Queue) -> Sequence[int] | None:
    return None if queue.deleted else queue_numbers(queue)


def history_answer(history: History) -> Response:
    """Return an object of lists: `at` has the moments, each other name the rates or lengths at them."""
    return PieceResponse(_lists(history), media_type=JSON)


async def _lists(history: History) -> AsyncGenerator[bytes, None]:
    samples = history.since(0)
    times_ms = [time_ms for time_ms, _values in samples]
    yield b'{"at":' + encoded(times_ms)
    for place, name in enumerate(history.names):
        values: list[float | None] = [numbers[place] for _time_ms, numbers in samples]
        if place < history.counters:
            values = _rates(times_ms, [numbers[place] for _time_ms, numbers in samples])
        await pause()
        yield b"," + encoded(name) + b":" + encoded(values)
    yield b"}\n"


def _rates(times_ms: Sequence[int], counts: Sequence[int]) -> list[float | None]:
    """Return the rates between samples per second; the first one has none."""
    rates: list[float | None] = [None] * len(counts)
    for at in range(1, len(counts)):
        window_ms = times_ms[at] - times_ms[at - 1]
        if window_ms > 0:
            rates[at] = round(max(0, counts[at] - counts[at - 1]) * 1000 / window_ms, 1)
    return rates
