"""GET /api/live: a stream of numbers as server-sent events, for the web page.

The broker's totals come with each sample that is taken anyway; the numbers of a queue are read once a second. So a
page that is open costs the broker next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from broker.manage.answers import encoded
from broker.manage.api.live_overview import LiveOverview
from broker.manage.api.live_queue import LiveQueue
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs
from broker.manage.payer import payer
from broker.manage.pieces import PieceResponse
from broker.manage.refusal import HttpRefused, bad_request

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call
    from broker.manage.client import ApiClient

__all__ = ["live_routes"]

Value = dict[str, Any]
Topic = Callable[[], Awaitable["Value | None"]]

LOOK_S: Final = 1.0
QUIET_MAX: Final = 15  # looks without anything to tell, before a comment shows that the stream lives
TOPICS_MAX: Final = 8
OVERVIEW: Final = "overview"
QUEUE: Final = "queue"
HEADERS: Final = {"X-Accel-Buffering": "no"}  # a proxy would hold the events back


def live_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [ApiRoute("GET", "/api/live", Needs.MANAGEMENT, Streams().open, ("topics",))]


class Streams:
    """The open streams. Invariant: at most http.streams_max; the user with most of them pays for one more."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[ApiClient, str] = {}  # with the user's name, oldest first

    async def open(self, call: Call) -> Response:
        """Answer with the values of topics as they change: "overview", "queue/VHOST/QUEUE" with quoted names.

        Raises: HttpRefused: 503 when there are too many streams, and no user has more than this one.
        """
        names = list(dict.fromkeys(call.query.get("topics", OVERVIEW).split(",")))
        if len(names) > TOPICS_MAX:
            raise bad_request(f"a stream has at most {TOPICS_MAX} topics")
        topics = {name: topic_of(name, call) for name in names}
        full, user = len(self._open) >= call.broker.settings().http.streams_max, call.user.name
        if full and payer(self._open.values(), user) == user:
            raise HttpRefused(503, "too many live streams; http.streams_max limits them")
        return PieceResponse(self._events(call, topics), headers=HEADERS, media_type="text/event-stream")

    async def _events(self, call: Call, topics: dict[str, Topic]) -> AsyncGenerator[bytes, None]:
        told: dict[str, Value] = {}
        quiet = 0
        self._make_room(call)
        self._open[call.client] = call.user.name
        call.client.endless = True
        try:
            while call.lasts():  # a logout, and a changed password or tag, end the stream
                events = []
                for name, read in topics.items():
                    value = await read()
                    if value is not None and value != told.get(name):
                        told[name] = value
                        events.append(b"data: " + encoded({"topic": name, "value": value}) + b"\n\n")
                quiet = 0 if events else quiet + 1
                if quiet == QUIET_MAX:
                    quiet = 0
                    events = [b": nothing new\n\n"]
                if events:
                    yield b"".join(events)
                await asyncio.sleep(LOOK_S)
        finally:
            self._open.pop(call.client, None)

    def _make_room(self, call: Call) -> None:
        """End the oldest stream of the user with most, if there are too many."""
        if self._open and len(self._open) >= call.broker.settings().http.streams_max:
            pays = payer(self._open.values(), call.user.name)
            oldest = next((client for client, user in self._open.items() if user == pays), None)
            if oldest is not None:
                del self._open[oldest]
                oldest.abort()


def topic_of(name: str, call: Call) -> Topic:
    """Return what reads the value of a topic. Raises: HttpRefused (400) for what names none."""
    if name == OVERVIEW:
        return LiveOverview(call).read
    words = [unquote(word) for word in name.split("/")]
    if len(words) == 3 and words[0] == QUEUE:
        return LiveQueue(call, words[1], words[2]).read
    raise bad_request(f"no topic '{name[:80]}': there are overview and queue/VHOST/QUEUE")
