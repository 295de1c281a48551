"""Checks passwords beside the loop: a hash takes longer than a turn may."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.core.auth.logins import Logins, PasswordCheck
from broker.event_log import get_logger

if TYPE_CHECKING:
    from broker.core.auth.users import Users
    from broker.settings import Auth

__all__ = ["PasswordThreads", "logins_of"]

THREADS: Final = 2  # each holds the 19 MiB of one hash while it computes

_log = get_logger()


class PasswordThreads:
    """Runs slow checks in threads, and tells the answers in the loop.

    Invariant: every check is answered once, with False when it failed or the broker stops; so no more wait than there
    are connections.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(THREADS, "password")
        self._closed = False

    def check(self, job: Callable[[], bool], then: Callable[[bool], None], delay_s: float) -> None:
        """Runs `job` in a thread and calls `then` with its answer in the loop, `delay_s` later."""
        if self._closed:
            then(False)
            return
        answered = partial(self._answered, then, delay_s)
        self._threads.submit(job).add_done_callback(partial(self._done, answered))

    def close(self) -> None:
        """Checks nothing any more."""
        self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _done(self, answered: Callable[[bool], None], future: Future[bool]) -> None:
        """Leaves the thread. A loop that is closed has nobody left to tell."""
        right = False
        if not future.cancelled():
            error = future.exception()
            if error is None:
                right = future.result()
            else:
                _log.error("login.failed", exc_info=error)
        try:
            self._loop.call_soon_threadsafe(answered, right)
        except RuntimeError:
            pass

    def _answered(self, then: Callable[[bool], None], delay_s: float, right: bool) -> None:
        if delay_s and not self._closed:
            self._loop.call_later(delay_s, then, right)
        else:
            then(right)


def logins_of(settings: Auth, users: Users, check: PasswordCheck) -> Logins:
    """Returns who decides about logins, as the settings say."""
    return Logins(
        users,
        loopback_only=settings.loopback_users,
        mechanisms=settings.mechanisms,
        certificate_name=(settings.cert_login_from, settings.cert_login_san_type),
        check=check,
        now_s=time.monotonic,
    )
