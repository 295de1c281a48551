"""The login of the web page, as a browser uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.manage.api import live
from broker.server import BrokerServer
from tests.deadline import DEADLINE_S
from tests.http_talk import GUEST, Response, Web, ask
from tests.in_process import running_broker
from tests.manage.api_talk import HTTP


class Browser:
    """A page of the broker in a browser: it keeps the cookie, and names itself."""

    def __init__(self, broker: BrokerServer) -> None:
        self.port = broker.manage.port()
        self.web = Web(self.port, None)
        self.cookie = ""

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        """Send a request as the page does; a header that is "" is left out."""
        usual = {"Origin": f"http://127.0.0.1:{self.port}", "X_Requested_With": "slotmq", "Cookie": self.cookie}
        sent = {name: value for name, value in {**usual, **headers}.items() if value}
        said = await self.web.later(method, path, body, **sent)
        if "set-cookie" in said.headers:
            self.cookie = said.headers["set-cookie"].split(";")[0]
        return said

    async def log_in(self, user: str = "guest", password: str = "guest", **headers: str) -> Response:
        """Log in."""
        return await self.ask("POST", "/api/session", {"username": user, "password": password}, **headers)


@pytest.fixture
def browser(broker: BrokerServer) -> Iterator[Browser]:
    """Provide a browser."""
    browser = Browser(broker)
    yield browser
    browser.web.close()


async def test_a_page_logs_in_and_out(browser: Browser) -> None:
    """The cookie stands for the password until the session ends; scripts of the page cannot read it."""
    refused = await browser.ask("GET", "/api/whoami")
    assert refused.status == 401 and "www-authenticate" not in refused.headers
    said = await browser.log_in()
    assert (said.status, said.json["name"], said.json["tags"]) == (200, "guest", ["administrator"])
    cookie = said.headers["set-cookie"]
    assert cookie.startswith(f"slotmq_session_{browser.port}=")
    assert cookie.split("; ")[1:] == ["Path=/", "Max-Age=28800", "HttpOnly", "SameSite=Strict"]
    assert (await browser.ask("GET", "/api/whoami")).json == said.json
    assert (await browser.ask("GET", "/v1/store")).status == 200
    kept = browser.cookie
    assert (await browser.ask("DELETE", "/api/session")).status == 204
    assert browser.cookie == f"slotmq_session_{browser.port}="
    assert (await browser.ask("GET", "/api/whoami", Cookie=kept)).status == 401


async def test_a_live_stream_ends_with_its_session(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live stream sends nothing after its user has logged out."""
    monkeypatch.setattr(live, "POLL_S", 0.02)
    await browser.log_in()
    reader, writer = await asyncio.open_connection("127.0.0.1", browser.port)
    head = f"GET /api/live HTTP/1.1\r\nHost: 127.0.0.1:{browser.port}\r\nCookie: {browser.cookie}\r\n\r\n"
    writer.write(head.encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    assert (await browser.ask("DELETE", "/api/session")).status == 204
    async with asyncio.timeout(DEADLINE_S):
        await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.close()


async def test_a_wrong_password_gets_no_cookie(browser: Browser) -> None:
    """The answer does not say what was wrong, a browser asks no one, and the log knows, without the password."""
    with capture_logs() as events:
        said = await browser.log_in("guest", "sesame")
    assert said.refusal == (401, "not_authorized", "Login failed")
    assert not {"set-cookie", "www-authenticate"} & set(said.headers)
    assert [event["reason"] for event in events if event["event"] == "http.login_refused"] == [
        "Basic login refused: user 'guest' - invalid credentials"
    ]
    assert "sesame" not in str(events)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"username": "guest"}', b'{"username": 1, "password": "x"}'])
async def test_a_login_without_name_and_password_is_refused(browser: Browser, body: bytes) -> None:
    """A body that is not a login gets 400."""
    assert (await browser.ask("POST", "/api/session", body)).status == 400


async def test_a_login_is_short(browser: Browser) -> None:
    """Anybody may send one, so it is not read beyond that."""
    assert (await browser.log_in("guest", "x" * 4096)).status == 413


async def test_who_has_no_tag_sees_no_page(broker: BrokerServer, browser: Browser) -> None:
    """An ordinary user logs in over AMQP only."""
    broker.administration.users.add("app", "pass")
    said = await browser.log_in("app", "pass")
    assert said.refusal == (401, "not_authorised", "Not management user")
    assert "set-cookie" not in said.headers


async def test_a_change_needs_more_than_the_cookie(browser: Browser) -> None:
    """A form of another site could bring the cookie, but neither the page's header nor its origin."""
    assert (await browser.log_in(X_Requested_With="")).status == 403
    assert (await browser.log_in(Origin="https://evil.example")).status == 403
    await browser.log_in()
    for headers in ({"X_Requested_With": ""}, {"Origin": ""}, {"Origin": "https://evil.example"}):
        assert (await browser.ask("POST", "/v1/seal", {}, **headers)).status == 403
    assert (await browser.ask("POST", "/v1/seal", {})).status == 200
    assert (await browser.ask("GET", "/v1/store", X_Requested_With="", Origin="")).status == 200


async def test_a_name_of_another_site_is_refused_on_this_machine(tmp_path: Path) -> None:
    """A site whose name was given the address of this machine reads nothing, also with guest's password."""
    async with running_broker(tmp_path / "data", http={**HTTP, "hosts": ["mq.example.com"]}) as broker:
        for path in ("/api/whoami", "/v1/store"):
            said = await ask(broker, "GET", path, user=GUEST, Host="evil.example")
            assert said.refusal[:2] == (421, "misdirected_request")
            assert "http.hosts" in said.refusal[2]
            assert (await ask(broker, "GET", path, user=GUEST, Host="mq.example.com:80")).status == 200
        assert (await ask(broker, "GET", "/readyz", user=None, Host="evil.example")).status == 200


async def test_only_who_may_be_shown_a_dialog_is_challenged(broker: BrokerServer, browser: Browser) -> None:
    """A browser shows its own dialog for an address that someone entered, not for what the page loads."""
    for headers, challenged in (
        ({}, True),
        ({"Sec_Fetch_Dest": "document"}, True),
        ({"Sec_Fetch_Dest": "empty"}, False),
        ({"X_Requested_With": "slotmq"}, False),
    ):
        said = await ask(broker, "GET", "/api/whoami", user=None, **headers)
        assert ("www-authenticate" in said.headers) is challenged


async def test_failures_of_the_page_and_of_programs_count_together(broker: BrokerServer, browser: Browser) -> None:
    """Guesses of passwords at the page are subject to AMQP's limits."""
    attempts = broker.listener._logins._attempts
    attempts._now_s = lambda: 0.0  # failures are forgotten with time
    for number in range(3):
        assert (await browser.log_in("guest", f"wrong {number}")).status == 401
        assert (await ask(broker, "GET", "/api/whoami", user=("guest", f"bad {number}"))).status == 401
    assert attempts._level("127.0.0.1", "guest") == 6
