"""Authentication of requests, by HTTP Basic or by the cookie of a session of the web page."""

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

CHALLENGE: Final = (("WWW-Authenticate", 'Basic realm="RabbitMQ Management"'),)  # clients of RabbitMQ check it
REFUSED: Final = "the login was refused; the broker's log says why"
SESSIONS_MAX: Final = 1000
SESSIONS_USER_MAX: Final = 32
TOKEN_BYTES: Final = 32

_log = get_logger()


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """An authenticated caller. Shapes: `lasts` returns whether the login is still valid, for long answers."""

    user: User
    lasts: Callable[[], bool]
    by_cookie: bool = False


class HttpLogin:
    """Authenticate requests. A recently proven password is checked without the slow hash. HTTP and AMQP logins share
    limits on failures.
    """

    def __init__(self, logins: Logins, sessions: LoginSessions) -> None:
        self._logins = logins
        self.sessions = sessions

    async def caller(self, headers: Headers, client: ApiClient) -> LoggedIn:
        """Authenticate the caller of a request.

        Raises: HttpRefused (401), which may hide the reason from the client; the log contains it.
        """
        header = headers.get("authorization")
        if header is None:
            return self._of_session(headers, client)
        found = credentials_of(header)
        if found is None:
            _log.warning("http.login_refused", conn=client.peer.name, reason="Basic login refused: no credentials")
            raise refused(headers, REFUSED)
        user = await self.check(*found, headers, client)
        return LoggedIn(user, lambda: same_login(user, self._logins.users.get(user.name)))

    async def check(self, name: str, password: bytes, headers: Headers, client: ApiClient) -> User:
        """Return the user with a name and password. If the client disconnects, the call may wait until it is cancelled.

        Raises: HttpRefused (401).
        """
        verdict: Verdict = await called_back(
            lambda report: self._logins.decide_basic(name, password, client.peer, report, client.is_gone)
        )
        if isinstance(verdict, Refused):
            _log.warning("http.login_refused", conn=client.peer.name, reason=verdict.reason)
            raise refused(headers, verdict.shown or REFUSED, shown=verdict.shown)
        return verdict

    def _of_session(self, headers: Headers, client: ApiClient) -> LoggedIn:
        token = token_of(headers)
        user = None if token is None else self.sessions.user(token)
        if token is None or user is None:
            raise refused(headers, "a user and a password are needed")
        try:
            self._logins.check_address(BASIC, user, client.peer)
        except Refused as refusal:
            _log.warning("http.login_refused", conn=client.peer.name, reason=refusal.reason)
            raise refused(headers, refusal.shown or REFUSED, shown=refusal.shown) from None
        return LoggedIn(user, lambda: self.sessions.user(token, use=False) is not None, by_cookie=True)


def refused(headers: Headers, reason: str, *, shown: str = "") -> HttpRefused:
    """Return a 401 refusal; `shown` is the reason that clients get under /api.

    For requests from the page it contains no challenge, so that the browser does not show its own password dialog.
    """
    from_page = headers.get("x-requested-with") == PAGE or headers.get("sec-fetch-dest", "document") != "document"
    return HttpRefused(401, reason, headers=() if from_page else CHALLENGE, shown=shown or "Login failed")


def cookie_name(headers: Headers) -> str:
    """Return the name of the session cookie. It contains the port, because a host's ports share cookies."""
    port = host_and_port(headers)[1]
    return f"slotmq_session_{port}" if port else "slotmq_session"


def token_of(headers: Headers) -> str | None:
    """Return the token in the session cookie of a request, or None if there is none."""
    name = cookie_name(headers)
    pairs = [pair.strip().partition("=") for pair in headers.get("cookie", "").split(";")]
    return next((value for key, _equals, value in pairs if key == name), None)


def credentials_of(header: str) -> tuple[str, bytes] | None:
    """Return the name and password in an Authorization header, or None if it contains none. Source: RFC 7617."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(token.strip(" "), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None


class LoginSession(NamedTuple):
    """One session. Units: times are in seconds of a monotonic clock."""

    user: User
    began_s: float
    used_s: float


class LoginSessions:
    """The sessions, by the digest of their token.

    Invariant: a session ends when its user is deleted or gets another password or other tags, after http.session_ms,
        and after http.session_idle_ms without a request. At a limit, a new session replaces an old one.
    """

    def __init__(self, users: Users, limits: Callable[[], Http], clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._limits = limits
        self._clock = clock
        self._sessions: dict[bytes, LoginSession] = {}  # in the order in which `user` last looked them up

    def __len__(self) -> int:
        """Return the number of stored sessions; some may have ended."""
        return len(self._sessions)

    def begin(self, user: User) -> str:
        """Begin a session of a user who has just logged in, and return its token."""
        own = [key for key, session in self._sessions.items() if session.user.name == user.name]
        if len(own) >= SESSIONS_USER_MAX:
            del self._sessions[own[0]]
        elif len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        token = secrets.token_urlsafe(TOKEN_BYTES)
        now_s = self._clock()
        self._sessions[key_of(token)] = LoginSession(user, now_s, now_s)
        return token

    def user(self, token: str, *, use: bool = True) -> User | None:
        """Return the user of a session, or None if it has ended. With `use`, count this as a request."""
        key, now_s = key_of(token), self._clock()
        session = self._sessions.pop(key, None)
        if session is None or self._ended(session, now_s):
            return None
        self._sessions[key] = session._replace(used_s=now_s) if use else session
        return self._users.get(session.user.name)

    def end(self, token: str) -> None:
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
