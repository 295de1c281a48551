"""Ends of connections: clean and silent, under an alarm, with unread output, and while the broker stops."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from broker.net.listener import STEPS
from broker.net.publisher_throttle import Stop
from broker.net.transport import CLOSE_TICKS, EOF_TICKS
from broker.server import BrokerServer
from broker.testing import Broker
from tests.deadline import wait_until_async
from tests.in_process import queue_of
from tests.raw_client import PeerGone, RawClient, body_frame, header_frame, method_frame, publish_frames
from tests.raw_talk import Sections, connect, consume, declare, mortal_broker, numbered, publish, talk

ALARM: Sections = {"memory": {"alarm_bytes": 1}}
"""A limit that any process has passed: the alarm stands from the start."""


@asynccontextmanager
async def timeless_broker(folder: Path, sections: Sections | None = None) -> AsyncIterator[BrokerServer]:
    """Yield a broker without timers, so that a connection that only a deadline closes stays open."""
    async with mortal_broker(folder, sections) as broker:
        broker._timers.close()
        yield broker


async def all_gone(broker: BrokerServer) -> None:
    """Return when the broker has no connections."""
    await wait_until_async(lambda: not broker.listener.transports, "the end of every connection", 10)


# ---- one connection --------------------------------------------------------------------------------------------------


async def test_an_end_without_a_last_word_is_an_end(tmp_path: Path) -> None:
    """A socket is closed even when no reply is due: after a silent refusal and after the client's close-ok."""
    async with timeless_broker(tmp_path) as broker:

        def refused() -> None:
            with RawClient("127.0.0.1", broker.listener.port) as client:
                client.greet()
                client.authenticate(password="wrong", capabilities={})
                client.expect_end()

        def failed() -> None:
            with connect(broker) as client:
                client.method(1, commands.Basic.Qos(prefetch_size=5))
                client.expect_connection_close(540)

        await talk(broker, refused)
        await talk(broker, failed)
        await all_gone(broker)


async def test_a_client_that_a_lost_node_drops_is_gone_without_a_turn(tmp_path: Path) -> None:
    """A node that was lost to its cluster may not act; it closes the sockets of those that answer its close all the
    same, also of a publisher that was blocked.
    """
    async with timeless_broker(tmp_path) as broker:
        loop = asyncio.get_running_loop()

        def dropped() -> None:
            with connect(broker) as idle, connect(broker) as blocked:
                loop.call_soon_threadsafe(drop_all)
                for client in (idle, blocked):
                    assert client.expect_connection_close(320).reply_text.endswith("lost")

        def drop_all() -> None:
            broker.turn.act_while(lambda: False)
            for place, transport in enumerate(list(broker.listener.transports)):
                if place:
                    transport.stop_reading(Stop.ALARM)
                transport.drop("lost")

        try:
            await talk(broker, dropped)
            await all_gone(broker)
        finally:
            broker.turn.act_while(lambda: True)


async def test_who_was_refused_is_not_late(tmp_path: Path) -> None:
    """A client that does not answer the refusal of its handshake has the usual close time.

    The time does not depend on the handshake's deadline, and the client is not logged as a slow one.
    """
    with ExitStack() as clients, capture_logs() as events:
        async with timeless_broker(tmp_path) as broker:

            def refused(vhost: str, password: str) -> None:
                client = clients.enter_context(RawClient("127.0.0.1", broker.listener.port))
                client.greet()
                client.authenticate(password=password)
                if password == "guest":
                    client.method(0, commands.Connection.TuneOk(channel_max=10, frame_max=131072, heartbeat=0))
                    client.method(0, commands.Connection.Open(virtual_host=vhost))
                client.skip_to(commands.Connection.Close, 0)

            await talk(broker, refused, "none", "guest")
            await talk(broker, refused, "/", "wrong")
            waiting = list(broker.listener.transports)
            assert len(waiting) == 2
            for transport in waiting:
                transport.handshake_late(1.0)
            assert not any(transport._socket.is_closing() for transport in waiting)
    assert not [event for event in events if event["event"] == "connection.handshake_late"]


async def test_nothing_follows_connection_close(tmp_path: Path) -> None:
    """A first publish under an alarm and a hard error in one read: only the error is sent, and close-ok is read."""
    async with timeless_broker(tmp_path, ALARM) as broker:
        with await talk(broker, connect, broker) as client:
            client.send(publish_frames(1, "", "x", b"m"), method_frame(1, commands.Basic.Qos(prefetch_size=5)))
            await talk(broker, client.expect_connection_close, 540)
            await all_gone(broker)


async def test_a_client_closes_its_socket_after_close_ok(tmp_path: Path) -> None:
    """The broker ends its output when the client has had its time, which steps of the clock stand for here."""
    async with timeless_broker(tmp_path) as broker:
        with await talk(broker, connect, broker) as client, await talk(broker, connect, broker) as other:
            closing = commands.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0)
            await talk(broker, client.call, 0, closing, commands.Connection.CloseOk)
            first, _ = broker.listener.transports
            for _ in range(EOF_TICKS):
                await talk(broker, declare, other, "q")  # whatever the broker sent before has arrived
                assert not client.readable(0)
                first.tick()
            await talk(broker, client.expect_end)


async def test_who_has_left_is_not_looked_after(tmp_path: Path) -> None:
    """A round of looks lasts a second. Whatever a look does to the socket of a client that left ends the broker."""
    async with timeless_broker(tmp_path) as broker:
        listener = broker.listener
        with await talk(broker, connect, broker), await talk(broker, connect, broker) as leaves:
            _, leaving = listener.transports
            while listener._step:
                listener.step()
            listener.step()
            await talk(broker, leaves.close)
            await wait_until_async(lambda: leaving not in listener.transports, "the end of the connection", 10)
            for _ in range(STEPS):
                listener.step()
            assert not leaving._closing_ticks


async def test_a_client_that_closes_and_does_not_read_is_let_go(tmp_path: Path) -> None:
    """A client that sends connection.close and reads nothing of its output is dropped."""
    async with mortal_broker(tmp_path) as broker:
        with (
            await talk(broker, lambda: connect(broker, receive_buffer_bytes=4096)) as client,
            await talk(broker, connect, broker) as publisher,
        ):

            def prepare() -> None:
                declare(publisher, "q")
                publish(publisher, "q", numbered(50, 100_000), mode=1)
                client.method(1, commands.Basic.Consume(queue="q", no_ack=True))
                publisher.close()

            await talk(broker, prepare)
            inside = queue_of(broker, "q")
            await wait_until_async(
                lambda: (
                    len(broker.listener.transports) == 1
                    and any(not transport.session.output_window.writable for transport in broker.listener.transports)
                ),
                "more output than the sockets take",
            )
            (transport,) = broker.listener.transports
            client.method(0, commands.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
            await wait_until_async(lambda: transport._finishing, "the end of the handshake")
            transport.close_silent()
            assert broker.listener.transports, "it has not read its last word"
            for _ in range(CLOSE_TICKS + 1):
                broker.listener._check(list(broker.listener.transports))
            await all_gone(broker)
            assert not inside.consumers


async def test_a_client_that_sends_on_behind_its_close_is_let_go(tmp_path: Path) -> None:
    """Data after the client's connection.close is read and dropped, until the deadline ends the connection."""
    async with mortal_broker(tmp_path) as broker:
        with await talk(broker, connect, broker) as client:
            close = commands.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
            late = publish_frames(1, "", "q", bytes(1000)) * 1000
            await talk(broker, client.send, method_frame(0, close), late)
            await talk(broker, client.expect, commands.Connection.CloseOk, 0)
            (transport,) = broker.listener.transports
            await talk(broker, client.send, late * 10)
            assert broker.listener.transports, "the client may take its time"
            assert not transport.connection.buffered_bytes
            for _ in range(CLOSE_TICKS + 1):
                broker.listener._check(list(broker.listener.transports))
            await all_gone(broker)


async def test_a_client_that_has_closed_does_not_keep_the_broker_from_stopping(tmp_path: Path) -> None:
    """A stop ends a client that sent connection.close and keeps its socket: with close-ok, without a reset."""
    with ExitStack() as clients, capture_logs() as events:
        async with timeless_broker(tmp_path) as broker:
            client = clients.enter_context(await talk(broker, connect, broker))
            client.method(0, commands.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
            (transport,) = broker.listener.transports
            await wait_until_async(lambda: transport._finishing, "close-ok")
        client.expect(commands.Connection.CloseOk, 0)
        with pytest.raises(PeerGone, match="end of file"):
            client.receive()
    assert not [event for event in events if event["event"] == "connection.dropped"]


async def test_a_publisher_that_dies_while_it_is_blocked_is_gone(tmp_path: Path) -> None:
    """No heartbeat is needed: what it had sent is read, then its end, and its exclusive queue goes."""
    async with timeless_broker(tmp_path, ALARM) as broker:
        client = await talk(broker, connect, broker)

        def blocked() -> None:
            declare(client, "q")
            client.call(1, commands.Queue.Declare(queue="own", exclusive=True), commands.Queue.DeclareOk)
            client.send(publish_frames(1, "", "q", b"m"))
            client.expect(commands.Connection.Blocked, 0)
            client.send(publish_frames(1, "", "q", bytes(1000)) * 50)

        await talk(broker, blocked)
        broker.listener._check(list(broker.listener.transports))
        assert len(broker.listener.transports) == 1, "it is still there"
        client.socket.close()

        async def gone() -> bool:
            broker.listener._check(list(broker.listener.transports))
            return not broker.listener.transports

        await wait_until_async(gone, "the end of the connection", 10)
        assert queue_of(broker, "q").ready == 51
        assert "own" not in broker.engines["/"].vhost.queues


async def test_unfinished_messages_count_under_an_alarm(tmp_path: Path) -> None:
    """A client that never finishes a message is blocked as well, and only the bytes sent so far are held."""
    async with mortal_broker(tmp_path, ALARM) as broker:
        with await talk(broker, connect, broker) as client:
            client.method(1, commands.Basic.Publish(exchange="", routing_key="q"))
            client.send(header_frame(1, 100_000_000), body_frame(1, bytes(100_000)))
            await talk(broker, client.expect, commands.Connection.Blocked, 0)
            (transport,) = broker.listener.transports
            held = transport.connection.unfinished_bytes
            assert 0 < held <= 100_000
            client.send(body_frame(1, bytes(100_000)))
            with await talk(broker, connect, broker) as other:  # the broker could have read more of the first
                await talk(broker, declare, other, "q")
            assert transport.connection.unfinished_bytes == held


# ---- while the broker stops ------------------------------------------------------------------------------------------


async def test_a_blocked_publisher_hears_that_the_broker_stops(tmp_path: Path) -> None:
    """A blocked publisher still answers close-ok to a stopping broker; confirmed messages survive."""
    with capture_logs() as events, ExitStack() as clients:
        async with mortal_broker(tmp_path, ALARM) as broker:
            client = clients.enter_context(await talk(broker, connect, broker))

            def begin() -> None:
                declare(client, "q", durable=True)
                client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
                properties = commands.Basic.Properties(delivery_mode=2)
                client.send(publish_frames(1, "", "q", b"confirmed", properties=properties))
                client.expect(commands.Connection.Blocked, 0)
                assert client.expect(commands.Basic.Ack, 1).delivery_tag == 1
                client.send(publish_frames(1, "", "q", b"unread", properties=properties) * 5)

            await talk(broker, begin)
            hearing = asyncio.create_task(asyncio.to_thread(client.expect_connection_close, 320))
        await hearing
    assert not [event for event in events if event["event"] == "connection.dropped"]
    async with mortal_broker(tmp_path) as broker:
        with await talk(broker, connect, broker) as client:
            assert queue_of(broker, "q").ready == 1
            assert await talk(broker, consume, client, "q", 1) == [b"confirmed"]


async def test_who_comes_while_the_broker_stops_is_turned_away(tmp_path: Path) -> None:
    """A socket that is accepted at the last moment is dropped, so that no stop waits for its good-bye."""
    async with mortal_broker(tmp_path) as broker:
        broker.listener.refuse_new()
        ours, theirs = socket.socketpair()
        with theirs:
            await asyncio.get_running_loop().create_connection(broker.listener._transport, sock=ours)
            assert not broker.listener.transports
            theirs.settimeout(5)
            assert await asyncio.to_thread(theirs.recv, 1) == b""


# ---- a reset -------------------------------------------------------------------------------------------------------


class ResetSocket:
    """A connection whose peer has reset it, which only the kernel knows, when its output is to be ended."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def write_eof(self) -> None:
        """Fail as a shutdown after a reset does."""
        self.asked += 1
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")


def test_a_reset_at_the_good_bye_ends_no_broker() -> None:
    """A client that resets its own connection ends neither the event-loop turn nor the broker."""
    with Broker() as broker:
        with RawClient("127.0.0.1", broker.port) as client:
            broker.wait_idle()
            transports: list[Any] = broker._call(lambda: list(broker.server.listener.transports))
            (transport,) = transports
            reset = transport._socket = ResetSocket(transport._socket)
            client.send(b"GET / HTTP/1.1\r\n")
            client.skip_to_end()
        assert reset.asked == 1
        with RawClient("127.0.0.1", broker.port) as other:
            other.open()
