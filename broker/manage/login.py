"""Authentication of a request as a user of the broker, by HTTP Basic or by a session of the page."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.amqp.errors import Refused
from broker.core.auth.logins import BASIC
from broker.event_log import get_logger
from broker.manage.origin import PAGE, host_and_port
from broker.manage.refusal import HttpRefused, LoginRefused
from broker.manage.sessions import LoginSessions, same_login

if TYPE_CHECKING:
    from starlette.datastructures import Headers

    from broker.core.auth.logins import Logins, Verdict
    from broker.core.auth.users import User
    from broker.manage.client import ApiClient

__all__ = ["HttpLogin", "LoggedIn", "cookie_name", "credentials_of", "token_of"]

CHALLENGE: Final = (("WWW-Authenticate", 'Basic realm="RabbitMQ Management"'),)  # clients of its API look for it
REFUSED: Final = "the login was refused; the broker's log says why"

_log = get_logger()


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """Whom a request comes from. Shapes: `lasts` tells later whether the login still holds, for long answers."""

    user: User
    lasts: Callable[[], bool]
    by_cookie: bool = False


class HttpLogin:
    """Authenticates clients.

    A request with a password costs no hash when the password was verified before. Failures count for the limits of
    AMQP's logins as well.
    """

    def __init__(self, logins: Logins, sessions: LoginSessions) -> None:
        self._logins = logins
        self.sessions = sessions

    async def caller(self, headers: Headers, client: ApiClient) -> LoggedIn:
        """Return whom a request comes from.

        Raises: HttpRefused (401), which does not say what was wrong; the log does.
        """
        given = headers.get("authorization")
        if given is None:
            return self._of_session(headers, client)
        found = credentials_of(given)
        if found is None:
            _log.warning("http.login_refused", conn=client.peer.name, reason="Basic login refused: no credentials")
            raise refused(headers, REFUSED)
        user = await self.check(*found, headers, client)
        return LoggedIn(user, lambda: same_login(user, self._logins.users.get(user.name)))

    async def check(self, name: str, password: bytes, headers: Headers, client: ApiClient) -> User:
        """Return the user of that name and password. For a client that has left, this waits until it is cancelled.

        Raises: HttpRefused (401).
        """
        waiting: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

        def decided_as(verdict: Verdict) -> None:
            if not waiting.done():  # else the request was cancelled meanwhile
                waiting.set_result(verdict)

        self._logins.decide_basic(name, password, client.peer, decided_as, client.gone)
        decided = await waiting
        if isinstance(decided, Refused):
            _log.warning("http.login_refused", conn=client.peer.name, reason=decided.reason)
            raise refused(headers, decided.shown or REFUSED, shown=decided.shown)
        return decided

    def _of_session(self, headers: Headers, client: ApiClient) -> LoggedIn:
        token = token_of(headers)
        user = None if token is None else self.sessions.user(token)
        if token is None or user is None:
            raise refused(headers, "a user and a password are needed")
        try:
            self._logins.check_address(BASIC, user, client.peer)
        except Refused as elsewhere:
            _log.warning("http.login_refused", conn=client.peer.name, reason=elsewhere.reason)
            raise refused(headers, elsewhere.shown or REFUSED, shown=elsewhere.shown) from None
        return LoggedIn(user, lambda: self.sessions.user(token, use=False) is not None, by_cookie=True)


def refused(headers: Headers, reason: str, *, shown: str = "") -> HttpRefused:
    """Return a 401, under /api with the reason that may be shown.

    To its challenge a browser asks for a password itself, which the page does better.
    """
    from_page = headers.get("x-requested-with") == PAGE or headers.get("sec-fetch-dest", "document") != "document"
    return LoginRefused(reason, shown, headers=() if from_page else CHALLENGE)


def cookie_name(headers: Headers) -> str:
    """Return the name of the session's cookie: browsers do not tell apart the ports of a machine."""
    port = host_and_port(headers)[1]
    return f"slotmq_session_{port}" if port else "slotmq_session"


def token_of(headers: Headers) -> str | None:
    """Return the token of the session that a request belongs to, None without one."""
    name = cookie_name(headers)
    pairs = [pair.strip().partition("=") for pair in headers.get("cookie", "").split(";")]
    return next((value for key, _equals, value in pairs if key == name), None)


def credentials_of(header: str) -> tuple[str, bytes] | None:
    """Return the name and the password of an Authorization header, None when it has none. Source: RFC 7617."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(token.strip(" "), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None
