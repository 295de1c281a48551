"""Check passwords in threads, because a hash would block the loop for too long."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from broker.core.auth.logins import Answer, LoginClient, Logins, PasswordCheck
from broker.core.auth.users import Users
from broker.event_log import get_logger
from broker.settings.access import Auth

THREADS: Final = 2  # each needs 19 MiB while it computes a hash

_log = get_logger()


Waiting = tuple[Callable[[], bool], Answer, Callable[[], bool]]  # job, receiver of the answer, whether it is unwanted


class PasswordThreads:
    """A pool of threads for slow checks, which delivers the answers in the loop.

    A network uses at most one thread; networks take turns, and so do the user names of a network. So a flood of logins
    from one network hardly delays others, and guesses at one name hardly delay other names.
    Invariant: a check is answered at most once: with its result, False after an error, or None if it did not run.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(THREADS, "password")
        self._waiting: dict[str, dict[str, deque[Waiting]]] = {}  # by network and name, in the order of their turns
        self._busy: set[str] = set()  # networks for which a thread computes
        self._closed = False

    def check(self, job: Callable[[], bool], then: Answer, wait_s: float, client: LoginClient) -> None:
        """Run `job` in a thread after `wait_s`, and call `then` with its answer in the loop."""
        if self._closed:
            then(None)
        elif wait_s:
            self._loop.call_later(wait_s, self.check, job, then, 0.0, client)
        else:
            names = self._waiting.setdefault(client.network, {})
            names.setdefault(client.name, deque()).append((job, then, client.is_gone))
            self._next()

    def close(self) -> None:
        """Start no further checks, answer None to those that wait, and wait for those that run. *Blocking.*"""
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for _job, answer, _is_gone in (one for names in waiting.values() for jobs in names.values() for one in jobs):
            self._loop.call_soon(answer, None)
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _next(self) -> None:
        """Start as many jobs as there are free threads, taking the networks in turn, and the names of each."""
        while len(self._busy) < THREADS:
            network = next((one for one in self._waiting if one not in self._busy), None)
            if network is None:
                return
            names = self._waiting.pop(network)
            name = next(iter(names))
            jobs = names.pop(name)
            job, answer, is_gone = jobs.popleft()
            if jobs:
                names[name] = jobs
            if names:
                self._waiting[network] = names
            if is_gone():
                self._loop.call_soon(answer, None)
            else:
                self._busy.add(network)
                self._threads.submit(job).add_done_callback(partial(self._done, network, answer))

    def _done(self, network: str, answer: Answer, future: Future[bool]) -> None:
        """Pass the answer to the loop, unless the loop is closed."""
        right: bool | None = None
        if not future.cancelled():
            error = future.exception()
            if error is None:
                right = future.result()
            else:
                right = False
                _log.error("login.failed", exc_info=error)
        try:
            self._loop.call_soon_threadsafe(self._finished, network, answer, right)
        except RuntimeError:
            pass

    def _finished(self, network: str, answer: Answer, right: bool | None) -> None:
        self._busy.discard(network)
        self._next()
        answer(right)


def logins_of(settings: Auth, users: Users, check: PasswordCheck) -> Logins:
    """Return the authenticator that the settings define."""
    return Logins(
        users,
        loopback_only=settings.loopback_users,
        guest_anywhere=settings.guest_anywhere,
        mechanisms=settings.mechanisms,
        certificate_name=(settings.cert_login_from, settings.cert_login_san_type),
        check=check,
        now_s=time.monotonic,
    )
