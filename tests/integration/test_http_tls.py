"""HTTP over TLS: the broker's certificate, including a change while clients are connected."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from broker.server import BrokerServer
from broker.settings import Settings
from tests.deadline import DEADLINE_S, wait_until_async
from tests.http_talk import Web, raw, request, statuses
from tests.in_process import running_broker

HTTP: dict[str, Any] = {"enabled": True, "port": 0, "tls": True}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Provide the authority that signs the broker's certificates."""
    return trustme.CA()


def certificate(authority: trustme.CA, folder: Path) -> dict[str, Any]:
    """Write a new certificate where the settings expect it, and return it."""
    issued = authority.issue_cert("127.0.0.1")
    for path, blob in ((folder / "cert.pem", issued.cert_chain_pems[0]), (folder / "key.pem", issued.private_key_pem)):
        blob.write_to_path(path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)
    return {"port": 0, "certfile": str(folder / "cert.pem"), "keyfile": str(folder / "key.pem")}


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """Return the TLS context of a client."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def web_of(broker: BrokerServer, authority: trustme.CA) -> Web:
    """Return a client over TLS."""
    return Web(broker.manage.port(), context=trusting(authority))


def serial(broker: BrokerServer, authority: trustme.CA) -> str:
    """Return the serial number of the certificate that a new client gets."""
    with (
        socket.create_connection(("127.0.0.1", broker.manage.port()), DEADLINE_S) as plain,
        trusting(authority).wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        return str((connection.getpeercert() or {})["serialNumber"])


async def test_it_speaks_tls_alone(authority: trustme.CA, tmp_path: Path) -> None:
    """A client without TLS is disconnected; one with TLS is answered and closed cleanly."""
    async with running_broker(tmp_path / "data", http=HTTP, tls=certificate(authority, tmp_path)) as broker:
        assert (broker.manage.url() or "").startswith("https://")
        web = web_of(broker, authority)
        assert (await web.later("GET", "/v1/store")).status == 200
        assert (
            await web.later("GET", "/v1/store", Host="mq.example.com")
        ).status == 200  # a certificate proves the name
        login = {"username": "guest", "password": "guest"}
        named = {"Origin": "https://localhost", "Host": "localhost", "X_Requested_With": "slotmq"}
        said = await web.later("POST", "/api/session", login, **named)
        assert said.headers["set-cookie"].split("; ")[1:] == [
            "Path=/", "Max-Age=28800", "HttpOnly", "SameSite=Strict", "Secure",
        ]  # fmt: skip
        said = await web.later("GET", "/healthz", Connection="close")
        assert said.headers["connection"] == "close"
        assert statuses(await asyncio.to_thread(raw, broker.manage.port(), request("GET", "/healthz"))) == []
        web.close()


async def test_a_new_certificate_is_shown_and_connections_stay(authority: trustme.CA, tmp_path: Path) -> None:
    """A changed certificate is noticed as for AMQP, and open connections stay."""
    tls = {**certificate(authority, tmp_path), "reload_interval_ms": 100}
    async with running_broker(tmp_path / "data", http=HTTP, tls=tls) as broker:
        web = web_of(broker, authority)
        await web.later("GET", "/healthz")
        kept = web.connection.sock.getsockname()
        before = await asyncio.to_thread(serial, broker, authority)
        certificate(authority, tmp_path)

        async def changed() -> bool:
            return await asyncio.to_thread(serial, broker, authority) != before

        await wait_until_async(changed, "the new certificate is shown")
        assert (await web.later("GET", "/healthz")).status == 200
        assert web.connection.sock.getsockname() == kept
        web.close()


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"http": {"enabled": True, "tls": True}}, "http.tls needs tls.certfile"),
        ({"http": {"enabled": True, "port": 5672}}, "http.port and server.port are both 5672"),
        ({"http": {"enabled": True, "port": 5671}, "tls": {"certfile": "c"}}, "http.port and tls.port are both 5671"),
    ],
)
def test_settings_that_cannot_be_are_refused(sections: dict[str, Any], problem: str) -> None:
    """Impossible settings are refused before any port is opened."""
    with pytest.raises(ValueError, match=problem):
        Settings(**sections)


@pytest.mark.parametrize(
    "sections",
    [
        {"http": {"enabled": True, "port": 5672, "host": "127.0.0.2"}},
        {"http": {"enabled": True, "port": 5672}, "tls": {"certfile": "c", "only": True}},
        {"http": {"enabled": False, "port": 5672, "tls": True}},
        {"http": {"enabled": True, "port": 0}, "server": {"port": 0}},
    ],
)
def test_settings_that_can_be_are_taken(sections: dict[str, Any]) -> None:
    """HTTP may use the same port on another address, or the port of a disabled listener."""
    Settings(**sections)
