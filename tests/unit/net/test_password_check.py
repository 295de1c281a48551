"""Checking passwords outside the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from broker.core.auth.logins import LoginClient
from broker.net.password_check import THREADS, PasswordThreads
from tests.deadline import DEADLINE_S

HERE = LoginClient("192.0.2.1", lambda: False)


@pytest.fixture
async def threads() -> AsyncIterator[PasswordThreads]:
    """Provide threads for this test's loop."""
    made = PasswordThreads(asyncio.get_running_loop())
    yield made
    made.close()


async def answer(threads: PasswordThreads, job: object, delay_s: float = 0.0) -> bool:
    """Return the result of a check."""
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    threads.check(job, future.set_result, delay_s, HERE)  # type: ignore[arg-type]
    return await future


async def test_a_check_runs_in_a_thread_and_is_answered_in_the_loop(threads: PasswordThreads) -> None:
    """A thread computes the check while the loop continues, and the callback runs in the loop."""
    where: list[int] = []

    def job() -> bool:
        where.append(threading.get_ident())
        return True

    assert await answer(threads, job) is True
    assert await answer(threads, job, 0.001) is True
    assert threading.get_ident() not in where


async def test_a_check_that_fails_is_a_wrong_password(threads: PasswordThreads) -> None:
    """A failed check is logged, because it is a defect or a lack of memory, and counts as wrong."""
    with capture_logs() as events:
        assert await answer(threads, lambda: 1 / 0) is False
    assert [event["event"] for event in events] == ["login.failed"]


async def test_a_check_after_the_end_is_answered(threads: PasswordThreads) -> None:
    """A check after the end is answered with no."""
    threads.close()
    assert await answer(threads, lambda: True) is False


async def test_a_flood_from_one_network_does_not_make_another_wait(threads: PasswordThreads) -> None:
    """Of two thousand queued logins, one from another network is computed next.

    A check is started where its client is asked whether it has gone; threads that compute finish in any order.
    """
    go_on = threading.Event()
    started: list[str] = []
    answers: asyncio.Queue[bool] = asyncio.Queue()

    def check(network: str) -> None:
        def gone() -> bool:
            started.append(network)
            return False

        threads.check(lambda: go_on.wait(DEADLINE_S), answers.put_nowait, 0.0, LoginClient(network, gone))

    for _ in range(2000):
        check("192.0.2.1")
    check("198.51.100.1")
    assert started == ["192.0.2.1"] * THREADS
    go_on.set()
    for _ in range(2001):
        assert await answers.get() is True
    assert started.index("198.51.100.1") == THREADS + 1


async def test_nothing_is_computed_for_who_has_gone(threads: PasswordThreads) -> None:
    """Clients that connect, log in and disconnect do not have their hashes computed."""
    answers: asyncio.Queue[bool] = asyncio.Queue()
    for _ in range(100):
        threads.check(lambda: pytest.fail("computed"), answers.put_nowait, 0.0, LoginClient("192.0.2.1", lambda: True))
    for _ in range(100):
        assert await answers.get() is False


async def test_what_waits_at_the_end_is_answered(threads: PasswordThreads) -> None:
    """Queued checks are answered with no at the end, without computing them."""
    go_on = threading.Event()
    answers: asyncio.Queue[bool] = asyncio.Queue()
    for _ in range(THREADS):
        threads.check(lambda: go_on.wait(DEADLINE_S), answers.put_nowait, 0.0, HERE)
    for _ in range(10):
        threads.check(lambda: pytest.fail("computed"), answers.put_nowait, 0.0, HERE)
    threading.Timer(0.05, go_on.set).start()
    threads.close()
    given = [await answers.get() for _ in range(THREADS + 10)]
    assert sorted(given) == [False] * 10 + [True] * THREADS
