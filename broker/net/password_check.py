"""Checks passwords in threads, because a hash takes longer than a turn of the loop may."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.core.auth.logins import LoginClient, Logins, PasswordCheck
from broker.event_log import get_logger

if TYPE_CHECKING:
    from broker.core.auth.users import Users
    from broker.settings_access import Auth

__all__ = ["PasswordThreads", "logins_of"]

THREADS: Final = 2  # each holds the 19 MiB of one hash while it computes

_log = get_logger()


Waiting = tuple[Callable[[], bool], Callable[[bool], None], Callable[[], bool]]  # job, receiver of the answer, gone?


class PasswordThreads:
    """Runs slow checks in threads, and delivers the answers in the loop.

    Client networks take turns: a flood of logins from one network delays that network, and hardly any other.
    Invariant: every check is answered once, with False when it failed, the client has gone, or the broker stops.
        Nothing is computed for a client that has gone.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(THREADS, "password")
        self._waiting: dict[str, deque[Waiting]] = {}  # by network, in the order of their turns
        self._running = 0
        self._closed = False

    def check(self, job: Callable[[], bool], then: Callable[[bool], None], delay_s: float, asker: LoginClient) -> None:
        """Run `job` in a thread and call `then` with its answer in the loop, `delay_s` later."""
        if self._closed:
            then(False)
            return
        self._waiting.setdefault(asker.network, deque()).append((job, partial(self._answer, then, delay_s), asker.gone))
        self._next()

    def close(self) -> None:
        """Start no further checks."""
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for _job, answer, _gone in (one for jobs in waiting.values() for one in jobs):
            self._loop.call_soon(answer, False)
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _next(self) -> None:
        """Start as many jobs as there are free threads, taking the networks in turn."""
        while self._waiting and self._running < THREADS:
            network = next(iter(self._waiting))
            jobs = self._waiting.pop(network)
            job, answer, gone = jobs.popleft()
            if gone():
                self._loop.call_soon(answer, False)
            else:
                self._running += 1
                self._threads.submit(job).add_done_callback(partial(self._done, answer))
            if jobs:
                self._waiting[network] = jobs

    def _done(self, answer: Callable[[bool], None], future: Future[bool]) -> None:
        """Hand the answer to the loop. A closed loop has no receiver left."""
        right = False
        if not future.cancelled():
            error = future.exception()
            if error is None:
                right = future.result()
            else:
                _log.error("login.failed", exc_info=error)
        try:
            self._loop.call_soon_threadsafe(self._finished, answer, right)
        except RuntimeError:
            pass

    def _finished(self, answer: Callable[[bool], None], right: bool) -> None:
        self._running -= 1
        self._next()
        answer(right)

    def _answer(self, then: Callable[[bool], None], delay_s: float, right: bool) -> None:
        if delay_s and not self._closed:
            self._loop.call_later(delay_s, then, right)
        else:
            then(right)


def logins_of(settings: Auth, users: Users, check: PasswordCheck) -> Logins:
    """Return the authenticator that the settings ask for."""
    return Logins(
        users,
        loopback_only=settings.loopback_users,
        guest_anywhere=settings.guest_anywhere,
        mechanisms=settings.mechanisms,
        certificate_name=(settings.cert_login_from, settings.cert_login_san_type),
        check=check,
        now_s=time.monotonic,
    )
