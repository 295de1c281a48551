"""The sessions of the web page: a cookie with a random token stands for a login."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.core.auth.users import User, Users
    from broker.settings.access import Http

__all__ = ["LoginSessions", "same_login"]

SESSIONS_MAX: Final = 1000
OF_A_USER_MAX: Final = 32
TOKEN_BYTES: Final = 32


@dataclass(slots=True)
class LoginSession:
    """One session. Units: seconds of a clock that never goes back."""

    user: User
    began_s: float
    used_s: float


class LoginSessions:
    """Holds the sessions, by the digest of their token.

    Invariant: a session ends with the password and the tags that it began with, after http.session_ms, and after
        http.session_idle_ms without a request. The session that was used the longest time ago makes room for a new one.
    """

    def __init__(self, users: Users, limits: Callable[[], Http], clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._limits = limits
        self._clock = clock
        self._sessions: dict[bytes, LoginSession] = {}  # in the order of their last use

    def __len__(self) -> int:
        """Return how many sessions are kept, some of which may have ended."""
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
        if use:
            session.used_s = now_s
        self._sessions[key] = session
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
    """Return whether a user who has logged in would be the same one now: with that password and those tags."""
    return now is not None and (now.password, now.password_hash, now.tags) == (
        user.password,
        user.password_hash,
        user.tags,
    )


def key_of(token: str) -> bytes:
    """Return the digest of a token: what is kept is of no use to who reads it."""
    return sha256(token.encode()).digest()
