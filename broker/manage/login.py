"""Authentication of a request as a user of the broker: by HTTP Basic, or by a session of the page (a cookie)."""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple

from starlette.datastructures import Headers

from broker.amqp.errors import Refused
from broker.core.auth.logins import BASIC, Logins, Verdict
from broker.core.auth.users import User, Users
from broker.event_log import get_logger
from broker.manage.client import ApiClient
from broker.manage.origin import PAGE, host_and_port
from broker.manage.refusal import HttpRefused
from broker.settings.access import Http
from broker.tasks import called_back

CHALLENGE: Final = (("WWW-Authenticate", 'Basic realm="RabbitMQ Management"'),)  # clients of its API look for it
REFUSED: Final = "the login was refused; the broker's log says why"
SESSIONS_MAX: Final = 1000
OF_A_USER_MAX: Final = 32
TOKEN_BYTES: Final = 32

_log = get_logger()


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The authenticated sender of a request. Shapes: `lasts` returns whether the login is still valid, for long
    answers.
    """

    user: User
    lasts: Callable[[], bool]
    by_cookie: bool = False


class HttpLogin:
    """Authenticate clients.

    A request with a password costs no hash when the password was verified before. Failures count for the limits of
    AMQP's logins as well.
    """

    def __init__(self, logins: Logins, sessions: LoginSessions) -> None:
        self._logins = logins
        self.sessions = sessions

    async def caller(self, headers: Headers, client: ApiClient) -> LoggedIn:
        """Return the user who sent a request.

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
        decided: Verdict = await called_back(
            lambda told: self._logins.decide_basic(name, password, client.peer, told, client.is_gone)
        )
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

    The page's own requests get no challenge, on which the browser would show its own password dialog.
    """
    from_page = headers.get("x-requested-with") == PAGE or headers.get("sec-fetch-dest", "document") != "document"
    return HttpRefused(401, reason, headers=() if from_page else CHALLENGE, shown=shown or "Login failed")


def cookie_name(headers: Headers) -> str:
    """Return the name of the session's cookie, which contains the port, because cookies are not separated by port."""
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


class LoginSession(NamedTuple):
    """One session. Units: seconds of a clock that never goes back."""

    user: User
    began_s: float
    used_s: float


class LoginSessions:
    """Hold the sessions, by the digest of their token.

    Invariant: a session ends with the password and the tags that it began with, after http.session_ms, and after
        http.session_idle_ms without a request. The least recently used session makes room for a new one.
    """

    def __init__(self, users: Users, limits: Callable[[], Http], clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._limits = limits
        self._clock = clock
        self._sessions: dict[bytes, LoginSession] = {}  # in the order of their last use

    def __len__(self) -> int:
        """Return the number of kept sessions, some of which may have ended."""
        return len(self._sessions)

    def begin(self, user: User) -> str:
        """Begin a session of a user who has just logged in, and return its token."""
        own = [key for key, session in self._sessions.items() if session.user.name == user.name]
        if len(own) >= OF_A_USER_MAX:
            del self._sessions[own[0]]
        elif len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        token = secrets.token_urlsafe(TOKEN_BYTES)
        now_s = self._clock()
        self._sessions[key_of(token)] = LoginSession(user, now_s, now_s)
        return token

    def user(self, token: str, *, use: bool = True) -> User | None:
        """Return the user of a session, None when it has ended; with `use`, this is a request of it."""
        key, now_s = key_of(token), self._clock()
        session = self._sessions.pop(key, None)
        if session is None or self._ended(session, now_s):
            return None
        self._sessions[key] = session._replace(used_s=now_s) if use else session
        return self._users.get(session.user.name)

    def end(self, token: str) -> None:
        """End a session."""
        self._sessions.pop(key_of(token), None)

    def _ended(self, session: LoginSession, now_s: float) -> bool:
        limits = self._limits()
        late = now_s - session.began_s > limits.session_ms / 1000
        idle = now_s - session.used_s > limits.session_idle_ms / 1000
        return late or idle or not same_login(session.user, self._users.get(session.user.name))


def same_login(user: User, now: User | None) -> bool:
    """Return whether a logged-in user still has the same password and tags."""
    return now is not None and (now.password, now.password_hash, now.tags) == (
        user.password,
        user.password_hash,
        user.tags,
    )


def key_of(token: str) -> bytes:
    """Return the digest of a token, so that the stored value cannot be used to log in."""
    return sha256(token.encode()).digest()
