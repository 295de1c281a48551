"""The HTTP server as clients see it: health, logins, paths, start and stop."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.process import ready_line
from broker.server import BrokerServer
from broker.settings import Settings
from broker.store.damage import FolderBusy
from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S
from tests.http_talk import Web, ask, await_no_clients, raw, until_closed
from tests.in_process import running_broker

HTTP: dict[str, Any] = {"enabled": True, "port": 0}


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
        assert f", HTTP at http://127.0.0.1:{broker.manage.port()}/, data in " in ready_line(broker)


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
        broker.vhosts.offline["crm"] = "segment 7 is on fire"
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
        assert said.headers["www-authenticate"] == 'Basic realm="RabbitMQ Management"'


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
        own = f"http://127.0.0.1:{broker.manage.port()}"
        assert (await ask(broker, "POST", "/v1/seal", {}, Origin=own)).status == 200


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
    ("variables", "code", "line"),
    [
        ({"PORT": "{taken}"}, 1, "slotmq: port {taken} on 127.0.0.1 is in use; another one: http.port"),
        ({"TLS": "true"}, 2, "slotmq: http.tls needs tls.certfile"),
    ],
)
def test_what_cannot_be_keeps_the_broker_from_starting(
    tmp_path: Path, variables: dict[str, str], code: int, line: str
) -> None:
    """A port in use ends the start with exit code 1, invalid settings with 2: one line, before a folder is created."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = {f"SLOTMQ_HTTP__{name}": value.format(taken=port) for name, value in variables.items()}
        process = BrokerProcess(tmp_path / "data", environment={"SLOTMQ_HTTP__ENABLED": "true", **given})
        process.spawn()
        assert process.wait() == code
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
        port = broker.manage.port()
        idle = Web(port, None)
        assert (await idle.later("GET", "/healthz")).status == 200
        broker.manage.refuse_new()
        await await_no_clients(broker)
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
