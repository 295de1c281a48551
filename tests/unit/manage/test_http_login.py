"""Basic logins: the broker's own rules, for any address."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import pytest
from starlette.datastructures import Headers

from broker.core.auth.logins import LoginClient, Logins, PasswordCheck
from broker.core.auth.peer import Peer
from broker.core.auth.users import User, Users
from broker.manage.client import ApiClient
from broker.manage.login import HttpLogin, LoginSessions, credentials_of
from broker.manage.refusal import HttpRefused
from broker.settings.access import Http
from tests.deadline import DEADLINE_S


def client_at(address: str) -> ApiClient:
    """Return a client at that address."""
    return ApiClient(Peer(address, 1), lambda: False, lambda: None, DEADLINE_S)


HERE, ELSEWHERE = client_at("127.0.0.1"), client_at("192.0.2.7")


def header(name: str, password: str) -> Headers:
    """Return the Authorization header of a login."""
    return Headers({"authorization": "Basic " + b64encode(f"{name}:{password}".encode()).decode()})


def of_users(users: Users, **options: object) -> HttpLogin:
    """Return the logins of these users."""
    return HttpLogin(Logins(users, **options), LoginSessions(users, Http))  # type: ignore[arg-type]


def of_settings(**options: object) -> HttpLogin:
    """Return the logins of two users of the settings."""
    return of_users(Users([User("guest", "guest"), User("alice", "s3cret")]), **options)


async def test_guest_comes_from_this_machine_only() -> None:
    """Guest may log in from this machine only, as over AMQP; others from anywhere."""
    login = of_settings()
    assert (await login.caller(header("guest", "guest"), HERE)).user.name == "guest"
    assert (await login.caller(header("alice", "s3cret"), ELSEWHERE)).user.name == "alice"
    with pytest.raises(HttpRefused) as caught:
        await login.caller(header("guest", "guest"), ELSEWHERE)
    assert caught.value.status == 401
    assert caught.value.fields(rabbitmq=True)["reason"] == caught.value.reason == "User can only log in via localhost"
    with pytest.raises(HttpRefused) as caught:
        await login.caller(header("guest", "guess"), ELSEWHERE)  # who does not know the password learns nothing
    assert caught.value.fields(rabbitmq=True)["reason"] == "Login failed"


async def test_guest_comes_over_http_to_a_container_from_inside_only() -> None:
    """The image's setting lets guest in over AMQP, and not where guest could change users."""
    alone = of_users(Users([User("guest", "guest")]), guest_anywhere=True)
    assert (await alone.caller(header("guest", "guest"), HERE)).user.name == "guest"
    with pytest.raises(HttpRefused):
        await alone.caller(header("guest", "guest"), ELSEWHERE)
    token = alone.sessions.begin(User("guest", "guest"))
    with pytest.raises(HttpRefused):
        await alone.caller(Headers({"host": "localhost", "cookie": f"slotmq_session={token}"}), ELSEWHERE)


async def test_a_session_of_guest_stays_on_this_machine() -> None:
    """Its cookie is of no use elsewhere, as its password is not."""
    login = of_settings()
    guest = (await login.caller(header("guest", "guest"), HERE)).user
    cookie = Headers({"host": "localhost", "cookie": f"slotmq_session={login.sessions.begin(guest)}"})
    found = await login.caller(cookie, HERE)
    assert found.user.name == "guest" and found.by_cookie and found.lasts()
    with pytest.raises(HttpRefused) as caught:
        await login.caller(cookie, ELSEWHERE)
    assert caught.value.status == 401


async def test_where_no_password_logs_in_none_does_here() -> None:
    """A broker that accepts certificates only refuses every password."""
    login = of_settings(mechanisms=("EXTERNAL",))
    with pytest.raises(HttpRefused) as caught:
        await login.caller(header("alice", "s3cret"), HERE)
    assert caught.value.status == 401


async def test_who_has_gone_is_not_answered_and_crashes_nothing() -> None:
    """A request whose connection ends is dropped while its hash is computed."""
    answers = []

    def check(_job: object, then: object, _wait_s: float, _client: LoginClient) -> None:
        answers.append(then)

    typed: PasswordCheck = check
    login = of_users(Users(), check=typed)
    waiting = asyncio.ensure_future(login.caller(header("alice", "x"), HERE))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    answers[0](False)  # type: ignore[operator]
    assert waiting.cancelled()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Basic YTpi", ("a", b"b")),
        ("basic  YTpi ", ("a", b"b")),
        ("Basic YTo=", ("a", b"")),
        ("Basic OmI=", ("", b"b")),
        ("Basic YTpiOmM=", ("a", b"b:c")),
        ("Basic", None),
        ("Basic YWI=", None),
        ("Basic Y!Tpi", None),
        ("Basic YTpi, Basic YTpi", None),
        ("Bearer YTpi", None),
        ("", None),
        ("Basic é", None),
    ],
)
def test_credentials_are_taken_apart(text: str, found: tuple[str, bytes] | None) -> None:
    """Credentials are parsed, or refused. Source: RFC 7617."""
    assert credentials_of(text) == found
