"""The HTTP server as clients see it: logins, limits, and connections that are kept, closed, slow or too many."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.process import ready_line
from broker.server import BrokerServer
from broker.settings import Settings
from broker.store.damage import FolderBusy
from broker.vhosts.offline import OfflineVhost
from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S, wait_until_async
from tests.http_talk import Web, ask, raw, request, statuses, until_closed
from tests.in_process import running_broker

HTTP: dict[str, Any] = {"enabled": True, "port": 0}


def port_of(broker: BrokerServer) -> int:
    """Return the port of the HTTP server."""
    return broker.manage.port()


def status_of(client: socket.socket) -> int:
    """Return the status of the next answer, which is read to its end."""
    answer = HTTPResponse(client)
    answer.begin()
    answer.read()
    return answer.status


async def talks_end(broker: BrokerServer) -> None:
    """Wait until the broker has no HTTP connections."""

    async def over() -> bool:
        return not broker.manage.clients()

    await wait_until_async(over, "no conversation is left")


# -- requests of a supervisor ----------------------------------------------------------------------------------------


async def test_a_broker_without_http_listens_nowhere_else(tmp_path: Path) -> None:
    """HTTP is off unless the settings enable it."""
    async with running_broker(tmp_path / "data") as broker:
        assert broker.manage.url() is None
        assert "HTTP" not in ready_line(broker)


async def test_health_and_readiness_need_no_login(tmp_path: Path) -> None:
    """Health and readiness need no login, and the ready line gives their address."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        for path in ("/healthz", "/readyz"):
            said = await ask(broker, "GET", path, user=None)
            assert (said.status, said.json) == (200, {"status": "ok"})
        assert f", HTTP at http://127.0.0.1:{port_of(broker)}/, data in " in ready_line(broker)


async def test_a_broker_in_alarm_lives_and_is_not_ready(tmp_path: Path) -> None:
    """A broker in alarm is alive but not ready: publishers are blocked, and a restart would not help."""
    async with running_broker(tmp_path / "data", http=HTTP, memory={"alarm_bytes": 1}) as broker:
        said = await ask(broker, "GET", "/readyz", user=None)
        assert (said.status, said.json) == (503, {"status": "unready", "reasons": ["memory alarm"]})
        said = await ask(broker, "GET", "/readyz?unready=404", user=None)
        assert (said.status, said.json) == (404, {"status": "unready", "reasons": ["memory alarm"]})
        assert (await ask(broker, "GET", "/readyz?unready=200", user=None)).status == 400
        assert (await ask(broker, "GET", "/healthz", user=None)).status == 200


async def test_a_vhost_that_is_down_is_named(tmp_path: Path) -> None:
    """The broker is ready for its other vhosts; the reason of the outage needs a login."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        down = OfflineVhost("crm", "segment 7 is on fire")
        broker.vhosts.offline["crm"] = down
        said = await ask(broker, "GET", "/readyz", user=None)
        assert (said.status, said.json) == (200, {"status": "ok", "vhosts_down": ["crm"]})


# -- logins ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [None, "Basic", "Basic !", "Basic Z3Vlc3Q=", "Bearer Z3Vlc3Q6Z3Vlc3Q=", "Basic /zpndWVzdA==", "Basic Z3Vlc3Q6"],
)
async def test_who_brings_no_password_is_asked_for_one(tmp_path: Path, header: str | None) -> None:
    """A missing or malformed login gets 401 with the scheme, and crashes nothing."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        headers = {} if header is None else {"Authorization": header}
        said = await ask(broker, "GET", "/v1/store", user=None, **headers)
        assert said.refusal[:2] == (401, "login_refused")
        assert said.headers["www-authenticate"] == 'Basic realm="SlotMQ", charset="UTF-8"'


async def test_a_wrong_password_is_refused_and_noted_once(tmp_path: Path) -> None:
    """The log has user and address without the password; the client does not learn whether the user exists."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        with capture_logs() as events:
            said = await ask(broker, "GET", "/v1/store", user=("guest", "sesame"))
            stranger = await ask(broker, "GET", "/v1/store", user=("nobody", "sesame"))
    assert said.refusal == stranger.refusal
    refused = [event for event in events if event["event"] == "http.login_refused"]
    assert [event["reason"] for event in refused] == [
        "Basic login refused: user 'guest' - invalid credentials",
        "Basic login refused: user 'nobody' - invalid credentials",
    ]
    assert "sesame" not in str(events)


async def test_a_user_of_definitions_logs_in(tmp_path: Path) -> None:
    """A name and a password beyond ASCII are read as UTF-8, and the password may contain a colon."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        broker.administration.users.add("grüße", "pä:ss")
        assert (await ask(broker, "GET", "/v1/store", user=("grüße", "pä:ss"))).status == 200
        broker.administration.users.delete("grüße")
        assert (await ask(broker, "GET", "/v1/store", user=("grüße", "pä:ss"))).status == 401


# -- paths -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nowhere", 404, None),
        ("GET", "/v1/slots/../../etc/passwd", 404, None),
        ("GET", "/v1/slots/..%2f..%2fetc%2fpasswd", 400, None),
        ("POST", "/healthz", 405, "GET, HEAD"),
        ("TRACE", "/v1/seal", 405, "POST"),
        ("OPTIONS", "/v1/cursors/c", 405, "PUT, DELETE"),
        ("GET", "/v1/seals?afer=3", 400, None),
        ("GET", "/v1/seals?limit=10001", 400, None),
    ],
)
async def test_what_is_not_served_is_said_so(
    tmp_path: Path, method: str, path: str, status: int, allow: str | None
) -> None:
    """404 for unknown paths, 405 with the allowed methods, 400 for malformed requests."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        said = await ask(broker, method, path)
        assert (said.status, said.headers.get("allow")) == (status, allow)
        assert said.refusal[0] == status


async def test_a_page_of_another_site_cannot_use_a_browsers_password(tmp_path: Path) -> None:
    """A change requested by another site is refused, whatever the login."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        said = await ask(broker, "POST", "/v1/seal", {}, Origin="https://evil.example")
        assert said.refusal[:2] == (403, "access_refused")
        own = f"http://127.0.0.1:{port_of(broker)}"
        assert (await ask(broker, "POST", "/v1/seal", {}, Origin=own)).status == 200


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
                client.connect(("127.0.0.1", port_of(broker)))
                client.sendall(request("POST", "/v1/seal", Content_Length="900000") + b" " * 900_000)
                return until_closed(client)

        assert statuses(await asyncio.to_thread(talk)) == [413]


async def test_a_body_that_nobody_reads_is_not_taken_for_ever(tmp_path: Path) -> None:
    """A client without a login gets its 401, and its connection ends before it has sent a large body."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:

        def talk() -> int:
            sent = 0
            with socket.create_connection(("127.0.0.1", port_of(broker)), DEADLINE_S) as client:
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
            with socket.create_connection(("127.0.0.1", port_of(broker)), DEADLINE_S) as client:
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
        port = port_of(broker)
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
            with socket.create_connection(("127.0.0.1", port_of(broker)), DEADLINE_S) as client:
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


async def test_more_clients_than_allowed_are_turned_away(tmp_path: Path) -> None:
    """One client too many gets 503 while all others ask for something; the place of an idle one is free."""
    async with running_broker(tmp_path / "data", http={**HTTP, "connections_max": 2}) as broker:
        port = port_of(broker)
        healthz = request("GET", "/healthz", None)
        begun, rest = healthz[:9], healthz[9:]
        with ExitStack() as stack:
            first, other = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE_S)) for _ in "ab"
            ]
            for client in (first, other):
                client.sendall(healthz + begun)
                assert await asyncio.to_thread(status_of, client) == 200
            answer = await asyncio.to_thread(raw, port, healthz)
            assert statuses(answer) == [503] and b"Connection: close" in answer
            other.sendall(rest)
            assert await asyncio.to_thread(status_of, other) == 200
            assert (await ask(broker, "GET", "/healthz", user=None)).status == 200
            assert await asyncio.to_thread(other.recv, 1) == b"", "it was idle"
            first.sendall(rest)
            assert await asyncio.to_thread(status_of, first) == 200


# -- connections -------------------------------------------------------------------------------------------------------


async def test_a_connection_is_kept_for_many_requests(tmp_path: Path) -> None:
    """A connection serves many requests, and refusals that were read to their end do not close it."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        web = Web(port_of(broker))
        await web.later("GET", "/healthz")
        first = web.connection.sock.getsockname()
        for method, path in (("GET", "/v1/store"), ("POST", "/nowhere"), ("HEAD", "/v1/seals"), ("GET", "/v1/seals")):
            await web.later(method, path)
            assert web.connection.sock.getsockname() == first
        web.close()
        await talks_end(broker)


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
        answers = await asyncio.to_thread(raw, port_of(broker), b"".join(sent))
        assert statuses(answers) == [200, 404, 200, 200, 401]


async def test_a_body_that_breaks_off_the_protocol_is_refused_where_it_is_read(tmp_path: Path) -> None:
    """A malformed chunk is 400, also when it comes later; who needs no body answers, and both connections end."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        for path, status in (("/v1/seal", 400), ("/healthz", 405)):
            head = request("POST", path, Transfer_Encoding="chunked")
            for sent in ([head + b"zz\r\n"], [head, b"1\r\n{\r\n", b"zz\r\n"]):
                assert statuses(await asyncio.to_thread(raw, port_of(broker), *sent)) == [status]


async def test_a_client_that_has_said_its_last_is_still_answered(tmp_path: Path) -> None:
    """A client that shuts down its sending side after the request still gets its answer."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:

        def talk() -> bytes:
            with socket.create_connection(("127.0.0.1", port_of(broker)), DEADLINE_S) as client:
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
                assert statuses(await asyncio.to_thread(raw, port_of(broker), octets)) == [status]
    assert [event for event in events if event["log_level"] == "error"] == []


# -- start and stop ----------------------------------------------------------------------------------------------------


def test_the_process_says_where_and_ends_with_its_clients(tmp_path: Path) -> None:
    """SIGTERM ends the broker while one client is idle and another in the middle of a request."""
    environment = {"SLOTMQ_HTTP__ENABLED": "true", "SLOTMQ_HTTP__PORT": "0"}
    process = BrokerProcess(tmp_path / "data", environment=environment).start()
    try:
        port = int(process.stdout().split("HTTP at http://127.0.0.1:")[1].split("/")[0])
        idle = Web(port, None)
        assert idle.get("/readyz").status == 200
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as half:
            half.sendall(b"GET /healthz HT")
            assert process.terminate() == 0
            assert until_closed(half) == b""
        assert process.errors() == []
        idle.close()
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"PORT": "{taken}"}, "slotmq: port {taken} on 127.0.0.1 is in use; another one: http.port"),
        ({"TLS": "true"}, "slotmq: http.tls needs tls.certfile"),
    ],
)
def test_what_cannot_be_keeps_the_broker_from_starting(tmp_path: Path, variables: dict[str, str], line: str) -> None:
    """Invalid settings end the start with exit code 2 and one line, before a folder is created."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = {f"SLOTMQ_HTTP__{name}": value.format(taken=port) for name, value in variables.items()}
        process = BrokerProcess(tmp_path / "data", environment={"SLOTMQ_HTTP__ENABLED": "true", **given})
        process.spawn()
        assert process.wait() == 2
    assert process.stderr() == line.format(taken=port) + "\n"
    assert not process.folder.exists()


async def test_a_broker_that_cannot_start_gives_the_port_back(tmp_path: Path) -> None:
    """The port is free again when the start fails because another broker uses the folder."""
    async with running_broker(tmp_path / "data"):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        second = BrokerServer(Settings(server={"port": 0, "data_dir": tmp_path / "data"}, http={**HTTP, "port": port}))
        with pytest.raises(FolderBusy) as caught:
            await second.start()
        assert free(port), caught.value


async def test_a_broker_that_stops_waits_for_nobody_who_says_nothing(tmp_path: Path) -> None:
    """A stop drops idle clients at once, finishes an answer in progress, and accepts no new clients."""
    async with running_broker(tmp_path / "data", http={**HTTP, "timeout_ms": 600_000}) as broker:
        port = port_of(broker)
        idle = Web(port, None)
        assert (await idle.later("GET", "/healthz")).status == 200
        broker.manage.refuse_new()
        await talks_end(broker)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(raw, port)
        idle.close()


def free(port: int) -> bool:
    """Return whether a port is free, even of a socket that does not listen."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
