"""HTTP's Basic authentication against the broker's users, with their limits on attempts."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.amqp.errors import Refused
from broker.event_log import get_logger
from broker.net.http.refusal import HttpRefused

if TYPE_CHECKING:
    from broker.core.auth.logins import Logins, Verdict
    from broker.core.auth.peer import Peer
    from broker.core.auth.users import User
    from broker.net.http.request import Headers

__all__ = ["BasicLogin", "credentials_of"]

CHALLENGE: Final = (("WWW-Authenticate", 'Basic realm="SlotMQ", charset="UTF-8"'),)

_log = get_logger()


class BasicLogin:
    """Authenticates clients. Each request brings its password, so a verified one is cached and costs no hash."""

    def __init__(self, logins: Logins) -> None:
        self._logins = logins

    async def user(self, headers: Headers, peer: Peer, gone: Callable[[], bool]) -> User:
        """Return the user. `gone` tells, in any thread, whether the client has left; this then waits until cancelled.

        Raises: HttpRefused (401), which does not say what was wrong; the log does.
        """
        if "authorization" not in headers:
            raise HttpRefused(401, "a user and a password are needed", CHALLENGE)
        found = credentials_of(headers["authorization"])
        if found is None:
            raise self._refused(peer, "Basic login refused: no Basic credentials")
        waiting: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

        def decided_as(verdict: Verdict) -> None:
            if not waiting.done():  # else the request was cancelled meanwhile
                waiting.set_result(verdict)

        self._logins.decide_basic(*found, peer, decided_as, gone)
        decided = await waiting
        if isinstance(decided, Refused):
            raise self._refused(peer, decided.reason)
        return decided

    @staticmethod
    def _refused(peer: Peer, reason: str) -> HttpRefused:
        _log.warning("http.login_refused", conn=peer.name, reason=reason)
        return HttpRefused(401, "the login was refused; the broker's log says why", CHALLENGE)


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
