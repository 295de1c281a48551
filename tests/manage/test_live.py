"""The stream of live numbers and the last hour of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.manage.api import live
from broker.server import BrokerServer
from tests.deadline import DEADLINE_S
from tests.http_talk import ask, basic
from tests.in_process import client_of, running_broker

HTTP: dict[str, Any] = {"enabled": True, "port": 0, "sample_interval_ms": 500, "streams_max": 2}
OVERVIEW = "/api/live?topics=overview"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for news more often."""
    monkeypatch.setattr(live, "POLL_S", 0.02)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    """Provide a broker with its HTTP API."""
    async with running_broker(tmp_path, http=HTTP) as broker:
        yield broker


class Level:
    """An open stream of events."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def next(self, topic: str = "overview") -> Any:
        """Return the next value of a topic."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                line = await self._reader.readline()
                assert line, "the stream ended"
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if event["topic"] == topic:
                        return event["value"]

    async def end(self) -> None:
        """Wait until the stream ends."""
        async with asyncio.timeout(DEADLINE_S):
            await self._reader.readuntil(b"\r\n0\r\n\r\n")

    async def breaks_off(self) -> None:
        """Wait until the connection ends in the middle of the stream."""
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await self.end()


@asynccontextmanager
async def level_of(broker: BrokerServer, path: str, user: tuple[str, str] = ("guest", "guest")) -> AsyncIterator[Level]:
    """Open a stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.manage.port())
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {basic(user)['Authorization']}\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"text/event-stream" in head, head
    try:
        yield Level(reader)
    finally:
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()


async def test_the_totals_come_with_each_sample(broker: BrokerServer) -> None:
    """Each value is a later sample, with rates, lengths, limits and what is connected."""
    async with client_of(broker) as channel, level_of(broker, OVERVIEW) as stream:
        await channel.declare_queue("counted")
        before = await stream.next()
        for _ in range(5):
            await channel.default_exchange.publish(aio_pika.Message(b"x"), "counted")
        async with asyncio.timeout(DEADLINE_S):
            told = await stream.next()
            while told["messages_ready"] < 5:
                told = await stream.next()
        assert told["at"] > before["at"]
        assert (told["queues"], told["connections"], told["channels"], told["exchanges"]) == (1, 1, 1, 7)
        assert told["mem_limit"] > told["mem_used"] > 0
        assert (told["alarms"], told["blocked"]) == ([], 0)
        hour = (await ask(broker, "GET", "/api/history")).json
        assert len(hour["at"]) == len(hour["publish"]) == len(hour["messages_ready"]) >= 2
        assert hour["at"] == sorted(hour["at"]) and hour["messages_ready"][-1] == 5
        assert hour["publish"][0] is None and max(hour["publish"][1:]) > 0


async def test_a_queue_is_followed_through_its_deletion(broker: BrokerServer) -> None:
    """Its numbers come when they change; a deleted queue is gone, and a new one of that name begins without rates."""
    topic = "queue/%2F/a%2Cb"
    async with client_of(broker) as channel:
        queue = await channel.declare_queue("a,b")
        async with level_of(broker, f"/api/live?topics={topic.replace('%', '%25')}") as stream:
            first = await stream.next(topic)
            assert (first["messages_ready"], first["publish"], first["state"]) == (0, None, "running")
            await channel.default_exchange.publish(aio_pika.Message(b"x"), "a,b")
            told = await stream.next(topic)
            while told["messages_ready"] == 0:  # the first value repeats once: its rates are known then
                told = await stream.next(topic)
            assert told["publish"] > 0
            hour = (await ask(broker, "GET", "/api/history/queues/%2F/a%2Cb")).json
            assert hour["messages_ready"][-1] == 1
            await queue.delete(if_empty=False)
            while told != {"gone": True}:
                told = await stream.next(topic)
            await channel.declare_queue("a,b")
            again = await stream.next(topic)
            assert (again["messages_ready"], again["publish"]) == (0, None)
    assert (await ask(broker, "GET", "/api/history/queues/%2F/nothing")).status == 404


async def test_streams_are_bounded(broker: BrokerServer) -> None:
    """Beyond http.streams_max, 503 names the setting; a stream that ends makes room."""
    async with level_of(broker, OVERVIEW) as one:
        await one.next()
        async with level_of(broker, OVERVIEW) as other:
            await other.next()
            status, _error, reason = (await ask(broker, "GET", OVERVIEW)).refusal
            assert (status, "http.streams_max" in reason) == (503, True)
        while (await ask(broker, "HEAD", OVERVIEW)).status == 503:
            pass
        async with level_of(broker, OVERVIEW) as another:
            await another.next()
    for topics in ("nothing", "queue/a", ",".join(map(str, range(9)))):
        assert (await ask(broker, "GET", f"/api/live?topics={topics}")).status == 400


async def test_streams_of_one_user_leave_room_for_others(broker: BrokerServer) -> None:
    """The oldest stream of who has most ends for another user's, and no user's only one."""
    for name in ("alice", "bob", "carol"):
        broker.administration.users.add(name, "s3cret", ["administrator"])
    async with level_of(broker, OVERVIEW, ("alice", "s3cret")) as oldest:
        await oldest.next()
        async with (
            level_of(broker, OVERVIEW, ("alice", "s3cret")) as kept,
            level_of(broker, OVERVIEW, ("bob", "s3cret")) as other,
        ):
            await other.next()
            await oldest.breaks_off()
            assert (await ask(broker, "GET", OVERVIEW, user=("carol", "s3cret"))).status == 503
            await kept.next()
            await other.next()


async def test_a_stream_ends_with_the_rights_it_began_with(broker: BrokerServer) -> None:
    """A user sees own vhosts only; a password that changes ends the stream, and so does the end of the broker."""
    users, permissions = broker.administration.users, broker.administration.permissions
    users.add("clerk", "one", ["management"])
    clerk = ("clerk", "one")
    assert (await ask(broker, "GET", "/api/live?topics=queue/%252F/q", user=clerk)).status == 401
    permissions.set("clerk", "/", "", "", ".*")
    async with client_of(broker) as channel:
        await channel.declare_queue("q")
        async with level_of(broker, "/api/live?topics=overview,queue/%252F/q", clerk) as stream:
            told = await stream.next()
            assert told["queues"] == 1 and told["connections"] == 0  # of this user
            assert "mem_used" not in told and "disk_free" not in told
            assert (await stream.next("queue/%2F/q"))["messages_ready"] == 0
            permissions.clear("clerk", "/")
            assert await stream.next("queue/%2F/q") == {"gone": True}
            users.set_password("clerk", "two")
            await stream.end()
    assert (await ask(broker, "GET", "/api/history", user=("clerk", "two"))).status == 401


async def test_a_stream_does_not_delay_the_end_of_the_broker(tmp_path: Path) -> None:
    """An open stream is broken off when the broker stops."""
    async with AsyncExitStack() as streams:
        async with running_broker(tmp_path, http=HTTP) as broker:
            stream = await streams.enter_async_context(level_of(broker, OVERVIEW))
            await stream.next()
        await stream.breaks_off()
