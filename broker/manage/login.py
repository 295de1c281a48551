"""Who sends a request: HTTP's Basic authentication against the broker's users, with their limits on attempts."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING, Final

from broker.amqp.errors import Refused
from broker.event_log import get_logger
from broker.manage.refusal import HttpRefused

if TYPE_CHECKING:
    from starlette.datastructures import Headers

    from broker.core.auth.logins import Logins, Verdict
    from broker.core.auth.users import User
    from broker.manage.client import ApiClient

__all__ = ["HttpLogin", "credentials_of"]

CHALLENGE: Final = (("WWW-Authenticate", 'Basic realm="SlotMQ", charset="UTF-8"'),)
PAGE: Final = "slotmq"  # the X-Requested-With of the web page, which has a login form of its own

_log = get_logger()


class HttpLogin:
    """Authenticates clients. Each request brings its password, so a verified one is cached and costs no hash."""

    def __init__(self, logins: Logins) -> None:
        self._logins = logins

    async def user(self, headers: Headers, client: ApiClient) -> User:
        """Return the user of a request.

        Raises: HttpRefused (401), which does not say what was wrong; the log does.
        """
        given = headers.get("authorization")
        if given is None:
            raise refused(headers, "a user and a password are needed")
        found = credentials_of(given)
        if found is None:
            _log.warning("http.login_refused", conn=client.peer.name, reason="Basic login refused: no credentials")
            raise refused(headers, "the login was refused; the broker's log says why")
        return await self.check(*found, headers, client)

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
            raise refused(headers, "the login was refused; the broker's log says why")
        return decided


def refused(headers: Headers, reason: str) -> HttpRefused:
    """Return a 401. A browser would ask for a password of its own accord, except for the page's requests."""
    from_page = headers.get("x-requested-with") == PAGE
    return HttpRefused(401, reason, headers=() if from_page else CHALLENGE)


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
