"""A conversation with a misbehaving broker ends with the reason, and the others continue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from broker.perf import wire
from broker.perf.faults import BrokenStream, Fault, Refusal, Stalled
from broker.perf.peer import Script, closing
from broker.perf.scenarios import connections
from broker.perf.scenarios.connections import Conversation
from tests.deadline import DEADLINE_S

HEARTBEAT = wire.frame(wire.HEARTBEAT, 0, b"")
OPEN_OK = wire.method(1, wire.CHANNEL_OPEN_OK, wire.long_string(b""))
REFUSED = wire.method(
    1, wire.CHANNEL_CLOSE, b"\x01\x94" + wire.short_string("NOT_FOUND - no queue 'q'") + b"\x00\x32\x00\x0a"
)
FORCED = wire.method(0, wire.CONNECTION_CLOSE, b"\x01\x40" + wire.short_string("CONNECTION_FORCED") + bytes(4))


class Listener:
    """Accepts connections, and lets the test write on each."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.ended: list[Conversation] = []
        self.port = 0

    async def dial(self, heartbeat_s: float = 0) -> tuple[Conversation, asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a new conversation, and the broker's end of it."""
        made = partial(Conversation, self.ended.append, heartbeat_s)
        _, talk = await asyncio.get_running_loop().create_connection(made, "127.0.0.1", self.port)
        return (talk, *(await self.accepted.get()))


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    """Provide a listener, and close it with everything it accepted."""
    made, writers = Listener(), []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        made.accepted.put_nowait((reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    for writer in writers:
        writer.close()
    server.close()


def asking(times: int = 1, request: bytes = wire.method(1, wire.CHANNEL_OPEN, b"\x00")) -> Script:
    """Open channel 1 this many times."""
    for _ in range(times):
        yield request, wire.CHANNEL_OPEN_OK


async def test_an_answer_brings_the_next_request(listener: Listener) -> None:
    """Three answers, one split into bytes and among heartbeats, end a script of three; the connection stays."""
    talk, reader, broker = await listener.dial()
    script = asyncio.create_task(talk.follow(asking(3)))
    for answer in (OPEN_OK, HEARTBEAT + OPEN_OK + HEARTBEAT):
        await reader.readexactly(13)
        broker.write(answer)
    await reader.readexactly(13)
    for byte in HEARTBEAT + OPEN_OK:
        broker.write(bytes((byte,)))
        await asyncio.sleep(0)
    assert await script
    assert (talk.fault, listener.ended) == (None, [])
    talk.end()


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (REFUSED, Refusal, "404 NOT_FOUND - no queue 'q'"),
        (wire.method(1, wire.CONFIRM_SELECT_OK), Refusal, "unexpectedly"),
        (wire.frame(wire.BODY, 1, b"x"), BrokenStream, "an unexpected frame of type 3"),
        (None, Refusal, "the broker closed the socket"),
    ],
)
async def test_a_script_hears_why_it_cannot_go_on(
    listener: Listener, answer: bytes | None, kind: type[Fault], text: str
) -> None:
    """The script ends with the reason in the conversation, and another conversation continues."""
    talk, reader, broker = await listener.dial()
    other, _, others_broker = await listener.dial()
    script = asyncio.create_task(talk.follow(asking()))
    await reader.readexactly(13)  # unread input would make the close a reset
    if answer is None:
        broker.close()
    else:
        broker.write(answer)
    assert not await script
    assert isinstance(talk.fault, kind)
    assert text in str(talk.fault)
    assert listener.ended == [talk]
    assert not await talk.follow(asking())
    others_broker.write(OPEN_OK)
    assert await other.follow(asking())
    other.end()


async def test_an_idle_connection_that_is_closed_is_noticed(listener: Listener) -> None:
    """The end of an idle connection that the broker closed is reported."""
    talk, _, broker = await listener.dial()
    broker.write(wire.method(0, wire.CONNECTION_BLOCKED, wire.short_string("memory")) + FORCED)
    async with asyncio.timeout(DEADLINE_S):
        while listener.ended != [talk]:  # noqa: ASYNC110  the conversation tells a function
            await asyncio.sleep(0)
    assert "320 CONNECTION_FORCED" in str(talk.fault)


async def test_an_answer_that_comes_twice_is_a_fault(listener: Listener) -> None:
    """The second answer to one request is a method that nobody asked for."""
    talk, reader, broker = await listener.dial()
    script = asyncio.create_task(talk.follow(asking()))
    await reader.readexactly(13)
    broker.write(OPEN_OK + OPEN_OK)
    await script
    assert "unexpectedly" in str(talk.fault)


async def test_a_close_that_is_asked_for_is_no_fault(listener: Listener) -> None:
    """close-ok ends a connection without a fault, also when the broker closes the socket right after it."""
    talk, reader, broker = await listener.dial()
    script = asyncio.create_task(talk.follow(closing()))
    await reader.readexactly(7)
    broker.write(wire.method(0, wire.CONNECTION_CLOSE_OK))
    broker.close()
    assert await script
    assert (talk.fault, listener.ended) == (None, [talk])


async def test_heartbeats_go_out_to_those_that_are_open(listener: Listener) -> None:
    """Open connections send heartbeats, with or without a script; closed ones send none."""
    held, reader, _ = await listener.dial(heartbeat_s=0.02)
    gone, gone_reader, _ = await listener.dial(heartbeat_s=0.02)
    gone.end()
    assert await reader.readexactly(3 * len(HEARTBEAT)) == 3 * HEARTBEAT
    assert await gone_reader.read() == b""
    assert held.fault is None
    held.end()


async def test_a_broker_that_says_nothing_is_not_waited_for(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script without an answer ends; an idle connection continues."""
    idle, _, _ = await listener.dial()
    talk, _, _ = await listener.dial()
    monkeypatch.setattr(connections, "CALL_LIMIT_S", 0.05)
    assert not await talk.follow(asking())
    assert isinstance(talk.fault, Stalled)
    assert listener.ended == [talk]
    idle.end()


async def test_a_request_larger_than_the_kernel_takes_is_sent_whole(listener: Listener) -> None:
    """A slow broker receives every byte of a large request."""
    request = wire.frame(wire.METHOD, 1, bytes(8 << 20))
    talk, reader, broker = await listener.dial()
    script = asyncio.create_task(talk.follow(asking(request=request)))
    assert await reader.readexactly(len(request)) == request
    broker.write(OPEN_OK)
    await script
    talk.end()
