"""Numbers for the charts of the web page. /api/live streams them as server-sent events, and /api/history answers with
those of the last hour. Totals change with the broker's samples; the numbers of a queue are read once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final
from urllib.parse import unquote

from broker import __version__
from broker.administration.slices import pause
from broker.manage.answers import JSON, PieceResponse, Response, encoded
from broker.manage.api.queues import queue_of, sampled_queue
from broker.manage.call import ApiRoute, Call, Needs, visible_sessions, visible_vhosts
from broker.manage.counts import (
    LENGTHS,
    MESSAGE_STATS,
    QUEUE_COUNTERS,
    QUEUE_NUMBERS,
    TOTAL_NUMBERS,
    counts_of,
    lengths_of,
    message_numbers,
    queue_numbers,
)
from broker.manage.history import History
from broker.manage.refusal import bad_request, not_authorised
from broker.net.alarm_watch import watermarks
from broker.operations.rows import queue_state

Value = dict[str, Any]
Topic = Callable[[], Awaitable["Value | None"]]

POLL_S: Final = 1.0
QUIET_MAX: Final = 15  # polls without changes before a comment shows that the stream is alive
TOPICS_MAX: Final = 8
COUNTERS: Final = len(MESSAGE_STATS)
VHOST_NUMBERS: Final = (*MESSAGE_STATS, *LENGTHS, "queues", "consumers")
OVERVIEW: Final = "overview"
QUEUE: Final = "queue"
HEADERS: Final = {"X-Accel-Buffering": "no"}  # otherwise a proxy would buffer the events


async def open_stream(call: Call) -> Response:
    """Stream the values of topics as they change: "overview", and "queue/VHOST/QUEUE" with quoted names.

    Raises: HttpRefused, for example 503 if there are too many streams.
    """
    names = list(dict.fromkeys(call.query.get("topics", OVERVIEW).split(",")))
    if len(names) > TOPICS_MAX:
        raise bad_request(f"a stream has at most {TOPICS_MAX} topics")
    topics = {name: topic_of(name, call) for name in names}
    streams, limit = call.broker.streams, call.broker.settings().http.streams_max
    streams.enter(call.client, call.user.name, limit, "too many live streams; http.streams_max limits them")
    call.client.answer_endlessly()
    ended = partial(streams.leave, call.client)
    return PieceResponse(_events(call, topics), headers=HEADERS, media_type="text/event-stream", ended=ended)


async def _events(call: Call, topics: dict[str, Topic]) -> AsyncGenerator[bytes, None]:
    sent: dict[str, Value] = {}
    quiet = 0
    while call.lasts():  # a logout, and a changed password or tag, end the stream
        events = []
        for name, read in topics.items():
            value = await read()
            if value is not None and value != sent.get(name):
                sent[name] = value
                events.append(b"data: " + encoded({"topic": name, "value": value}) + b"\n\n")
        quiet = 0 if events else quiet + 1
        if quiet == QUIET_MAX:
            quiet = 0
            events = [b": nothing new\n\n"]
        if events:
            yield b"".join(events)
        await asyncio.sleep(POLL_S)


def topic_of(name: str, call: Call) -> Topic:
    """Return the reader of a topic's value. Raises: HttpRefused (400) for an unknown topic."""
    if name == OVERVIEW:
        return LiveOverview(call).read
    words = [unquote(word) for word in name.split("/")]
    if len(words) == 3 and words[0] == QUEUE:
        return LiveQueue(call, words[1], words[2]).read
    raise bad_request(f"no topic '{name[:80]}': there are overview and queue/VHOST/QUEUE")


class LiveOverview:
    """Read the totals for one stream: those of the broker, or of the vhosts that the caller sees."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._before: Sequence[int] | None = None
        self._before_ms = 0
        self._began_ms = call.broker.samples.now_ms - int(call.broker.facts()["uptime_s"] * 1000)

    async def read(self) -> dict[str, Any] | None:
        """Return the totals at the newest sample, or None without a new one. Cost: at most O(connections + queues)."""
        call, samples = self._call, self._call.broker.samples
        if not len(samples.totals):
            samples.tick()  # the broker has just started; the next poll finds a sample
            return None
        at_ms, numbers = samples.totals.last(1)[-1]
        if at_ms == self._before_ms:
            return None
        monitoring = call.may(Needs.MONITORING)
        names: Sequence[str] = TOTAL_NUMBERS
        before, before_ms = self._before, self._before_ms
        if not monitoring:
            names, numbers = VHOST_NUMBERS, await self._of_vhosts()
        elif before is None and len(earlier := samples.totals.last(2)) == 2:
            before_ms, before = earlier[0]
        self._before, self._before_ms = numbers, at_ms
        value: dict[str, Any] = dict(zip(names[COUNTERS:], numbers[COUNTERS:], strict=True))
        value |= rates_between(MESSAGE_STATS, before, numbers, at_ms - before_ms)
        return {"at": at_ms, **value, **self._facts(at_ms, whole=monitoring)}

    async def _of_vhosts(self) -> list[int]:
        vhosts = visible_vhosts(self._call)
        counts, lengths = counts_of(self._call.broker.statistics, vhosts), await lengths_of(vhosts)
        return [*message_numbers(counts), *lengths.numbers, lengths.queues, lengths.consumers]

    def _facts(self, at_ms: int, *, whole: bool) -> dict[str, Any]:
        call, broker = self._call, self._call.broker
        sessions = visible_sessions(call)
        alarms = broker.facts()["alarms"] if broker.unready() else []
        facts: dict[str, Any] = {
            "node": broker.node_name,
            "version": __version__,
            "uptime_ms": at_ms - self._began_ms,
            "connections": len(sessions),
            "channels": sum([len(session.connection.channels) for session in sessions]),
            "exchanges": sum([len(vhost.exchanges) for vhost in visible_vhosts(call)]),
            "alarms": alarms if whole else [{"kind": alarm["kind"]} for alarm in alarms],
        }
        if whole:
            settings = broker.settings()
            limits = {one.kind: one.limit_bytes for one in watermarks(settings)}
            facts |= {
                "mem_limit": limits["memory"],
                "disk_free_limit": limits["disk"],
                "connections_max": settings.server.connections_max,
                "blocked": len(broker.listener.blocked_sessions()),
            }
        return facts


def rates_between(
    names: Sequence[str], before: Sequence[int] | None, after: Sequence[int], window_ms: int
) -> dict[str, float | None]:
    """Return the rates of counters between two readings, or None for each if `before` is None. Units: per second."""
    if before is None:
        return dict.fromkeys(names)
    pairs = zip(names, before, after, strict=False)
    return {name: _rate(earlier, count, window_ms) for name, earlier, count in pairs}


def _rate(before: int, after: int, window_ms: int) -> float | None:
    return round(max(0, after - before) * 1000 / window_ms, 1) if window_ms > 0 else None


class LiveQueue:
    """Read a queue for one stream. Between two reads, the queue may be deleted and declared again."""

    def __init__(self, call: Call, vhost: str, name: str) -> None:
        """Check the vhost. Raises: HttpRefused (401) if the caller does not see it."""
        if not call.sees_vhost(vhost):
            raise not_authorised("User not authorised to access virtual host")
        self._call = call
        self._vhost = vhost
        self._name = name
        self._number = -1
        self._before: Sequence[int] | None = None
        self._before_ms = 0

    async def read(self) -> dict[str, Any]:
        """Return the numbers of the queue, or {"gone": true} if the caller sees no such queue. Cost: O(levels)."""
        vhost = self._call.broker.administration.vhosts.get(self._vhost)
        queue = None if vhost is None else vhost.queues.get(self._name)
        if queue is None or not self._call.sees_vhost(self._vhost):
            self._before = None
            return {"gone": True}
        numbers, at_ms = queue_numbers(queue), self._call.broker.samples.now_ms
        before = self._before if queue.number == self._number else None
        value: dict[str, Any] = dict(zip(QUEUE_NUMBERS[QUEUE_COUNTERS:], numbers[QUEUE_COUNTERS:], strict=True))
        value |= rates_between(QUEUE_NUMBERS[:QUEUE_COUNTERS], before, numbers, at_ms - self._before_ms)
        self._before, self._before_ms, self._number = numbers, at_ms, queue.number
        policies = {"policy": queue.policy, "operator_policy": queue.operator_policy}
        return {**value, "consumers": len(queue.consumers), "state": queue_state(queue), **policies}


async def of_broker(call: Call) -> Response:
    """Answer with the broker's totals of the last hour."""
    return history_answer(call.broker.samples.totals)


async def of_queue(call: Call) -> Response:
    """Answer with the history of a queue; it begins with the first request."""
    return history_answer(call.broker.samples.watch(sampled_queue(*queue_of(call))))


def history_answer(history: History) -> Response:
    """Answer with an object of lists: the times of the samples in `at`, and the rates or lengths of each number."""
    return PieceResponse(_lists(history), media_type=JSON)


async def _lists(history: History) -> AsyncGenerator[bytes, None]:
    samples = history.last(len(history))
    times_ms = [time_ms for time_ms, _values in samples]
    yield b'{"at":' + encoded(times_ms)
    for place, name in enumerate(history.names):
        values: list[float | None] = [numbers[place] for _time_ms, numbers in samples]
        if place < history.counters:
            # Per second; the first sample has no rate.
            values = [None, *(_rate(a[place], b[place], end - at) for (at, a), (end, b) in pairwise(samples))]
        await pause()
        yield b"," + encoded(name) + b":" + encoded(values)
    yield b"}\n"


ROUTES: Final = (
    ApiRoute("GET", "/api/live", Needs.MANAGEMENT, open_stream, ("topics",)),
    ApiRoute("GET", "/api/history", Needs.MONITORING, of_broker, ()),
    ApiRoute("GET", "/api/history/queues/{vhost}/{queue}", Needs.MANAGEMENT, of_queue, ()),
)
