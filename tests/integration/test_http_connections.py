"""Connections of HTTP clients: what they may send, how fast, how many there may be, and how long each is kept."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from tests.deadline import DEADLINE_S
from tests.http_talk import Web, ask, await_no_clients, raw, request, statuses, until_closed
from tests.in_process import running_broker

HTTP: dict[str, Any] = {"enabled": True, "port": 0}


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_a_long_header_is_refused(tmp_path: Path) -> None:
    """A long header gets 431 before the login is checked; the limit is the setting's."""
    async with running_broker(tmp_path / "data", http={**HTTP, "header_max_bytes": 2048}) as broker:
        assert (await ask(broker, "GET", "/healthz", X="a" * 1500)).status == 200
        said = await ask(broker, "GET", "/healthz", X="a" * 2000)
        assert said.refusal == (431, "header_too_large", "a header has at most 2048 bytes")


async def test_a_long_body_is_refused_whether_its_length_is_told_or_not(tmp_path: Path) -> None:
    """A long body gets 413, with or without a declared length; a short chunked body is read."""

    def chunks(count: int) -> Iterator[bytes]:
        yield b"{"
        for _ in range(count):
            yield b" " * 100
        yield b"}"

    async with running_broker(tmp_path / "data", http={**HTTP, "body_max_bytes": 1024}) as broker:
        assert (await ask(broker, "POST", "/v1/seal", b"{" + b" " * 1022 + b"}")).status == 200
        assert (await ask(broker, "POST", "/v1/seal", b"{" + b" " * 1023 + b"}")).status == 413
        assert (await ask(broker, "POST", "/v1/seal", chunks(10))).status == 200
        assert (await ask(broker, "POST", "/v1/seal", chunks(11))).status == 413
        assert (await ask(broker, "POST", "/v1/seal", b"[]")).refusal[:2] == (400, "bad_request")


async def test_a_refusal_reaches_a_client_that_is_still_sending(tmp_path: Path) -> None:
    """The broker reads and drops further data for a while, because a reset would destroy its answer."""
    async with running_broker(tmp_path / "data", http={**HTTP, "body_max_bytes": 64 << 10}) as broker:

        def talk() -> bytes:
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                client.settimeout(DEADLINE_S)
                client.connect(("127.0.0.1", broker.manage.port()))
                client.sendall(request("POST", "/v1/seal", Content_Length="900000") + b" " * 900_000)
                return until_closed(client)

        assert statuses(await asyncio.to_thread(talk)) == [413]


async def test_a_body_that_nobody_reads_is_not_taken_for_ever(tmp_path: Path) -> None:
    """A client without a login gets its 401, and its connection ends before it has sent a large body."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:

        def talk() -> int:
            sent = 0
            with socket.create_connection(("127.0.0.1", broker.manage.port()), DEADLINE_S) as client:
                client.sendall(request("POST", "/v1/seal", None, Content_Length=str(1 << 30)))
                assert statuses(client.recv(1000)) == [401]
                try:
                    while sent < 1 << 30:
                        sent += client.send(b" " * (1 << 20))
                except ConnectionError:
                    pass
            return sent

        assert await asyncio.to_thread(talk) < 100 << 20


async def test_a_client_that_waits_for_leave_is_told_to_go_on(tmp_path: Path) -> None:
    """Expect: 100-continue is answered for a body that will be read, and not for one that is too long."""
    async with running_broker(tmp_path / "data", http={**HTTP, "body_max_bytes": 1024}) as broker:

        def talk(length: str) -> bytes:
            head = request("POST", "/v1/seal", Expect="100-continue", Content_Length=length, Connection="close")
            with socket.create_connection(("127.0.0.1", broker.manage.port()), DEADLINE_S) as client:
                client.sendall(head)
                first = client.recv(1 << 16)
                if first.startswith(b"HTTP/1.1 100 "):
                    client.sendall(b"{}")
                return first + until_closed(client)

        assert statuses(await asyncio.to_thread(talk, "2")) == [100, 200]
        assert statuses(await asyncio.to_thread(talk, "1025")) == [413]


async def test_a_client_that_sends_slowly_has_so_much_time(tmp_path: Path) -> None:
    """A request that does not finish in time gets 408; a connection without a request is only closed."""
    async with running_broker(tmp_path / "data", http={**HTTP, "timeout_ms": 200}) as broker:
        port = broker.manage.port()
        assert statuses(await asyncio.to_thread(raw, port, b"GET /healthz HT")) == [408]
        body_missing = request("POST", "/v1/seal", Content_Length="5") + b"{"
        assert statuses(await asyncio.to_thread(raw, port, body_missing)) == [408]
        body_not_read = request("GET", "/healthz", Content_Length="5")
        assert statuses(await asyncio.to_thread(raw, port, body_not_read)) == [200]
        assert await asyncio.to_thread(raw, port) == b""
        assert statuses(await asyncio.to_thread(raw, port, request("GET", "/healthz"))) == [200]  # and idle after it


async def test_a_drop_at_a_time_is_no_way_to_stay(tmp_path: Path) -> None:
    """The deadline is that of the whole request, so a single byte does not restart it."""
    async with running_broker(tmp_path / "data", http={**HTTP, "timeout_ms": 300}) as broker:

        def drip() -> list[int]:
            with socket.create_connection(("127.0.0.1", broker.manage.port()), DEADLINE_S) as client:
                ended = threading.Event()
                found: list[bytes] = []

                def listen() -> None:
                    found.append(until_closed(client))
                    ended.set()

                listener = threading.Thread(target=listen)
                listener.start()
                sent = 0
                while not ended.wait(0.05):
                    assert sent < 200, "ten seconds of drops, and it still listens"
                    sent += 1
                    try:
                        client.sendall(b"GET / HTTP/1.1\r\n" if sent == 1 else b"x")
                    except OSError:
                        break
                listener.join(DEADLINE_S)
                return statuses(found[0])

        assert await asyncio.to_thread(drip) == [408]


# -- connections -------------------------------------------------------------------------------------------------------


async def test_a_connection_is_kept_for_many_requests(tmp_path: Path) -> None:
    """A connection serves many requests, and refusals that were read to their end do not close it."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        web = Web(broker.manage.port())
        await web.later("GET", "/healthz")
        first = web.connection.sock.getsockname()
        for method, path in (("GET", "/v1/store"), ("POST", "/nowhere"), ("HEAD", "/v1/seals"), ("GET", "/v1/seals")):
            await web.later(method, path)
            assert web.connection.sock.getsockname() == first
        web.close()
        await await_no_clients(broker)


async def test_requests_sent_ahead_are_answered_in_order(tmp_path: Path) -> None:
    """Pipelining: one packet of five requests and half of a sixth is answered in order."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        sent = [
            request("GET", "/healthz"),
            request("GET", "/nowhere"),
            request("POST", "/v1/seal", Content_Length="2") + b"{}",
            request("HEAD", "/v1/store"),
            request("GET", "/v1/store", None, Connection="close"),
            b"GET /healthz HTTP/1.1\r\n",
        ]
        answers = await asyncio.to_thread(raw, broker.manage.port(), b"".join(sent))
        assert statuses(answers) == [200, 404, 200, 200, 401]


async def test_a_body_that_breaks_off_the_protocol_is_refused_where_it_is_read(tmp_path: Path) -> None:
    """A malformed chunk is 400, also when it comes later; who needs no body answers, and both connections end."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        for path, status in (("/v1/seal", 400), ("/healthz", 405)):
            head = request("POST", path, Transfer_Encoding="chunked")
            for sent in ([head + b"zz\r\n"], [head, b"1\r\n{\r\n", b"zz\r\n"]):
                assert statuses(await asyncio.to_thread(raw, broker.manage.port(), *sent)) == [status]


async def test_a_client_that_has_said_its_last_is_still_answered(tmp_path: Path) -> None:
    """A client that shuts down its sending side after the request still gets its answer."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:

        def talk() -> bytes:
            with socket.create_connection(("127.0.0.1", broker.manage.port()), DEADLINE_S) as client:
                client.sendall(request("GET", "/v1/store"))
                client.shutdown(socket.SHUT_WR)
                return until_closed(client)

        assert statuses(await asyncio.to_thread(talk)) == [200]


async def test_what_speaks_another_protocol_is_told_so(tmp_path: Path) -> None:
    """AMQP, TLS, HTTP/2 and noise get one answer and a close, and are not logged as errors of the broker."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        with capture_logs() as events:
            for octets, status in (
                (b"AMQP\x00\x00\x09\x01", 400),
                (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
                (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
                (b"\x00" * 50_000, 400),
            ):
                assert statuses(await asyncio.to_thread(raw, broker.manage.port(), octets)) == [status]
    assert [event for event in events if event["log_level"] == "error"] == []
