"""Checking passwords outside the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from broker.core.auth.logins import LoginClient
from broker.net.password_check import PasswordThreads
from tests.deadline import DEADLINE_S

HERE = LoginClient("192.0.2.1", "alice", lambda: False)


@pytest.fixture
async def threads() -> AsyncIterator[PasswordThreads]:
    """Provide threads for this test's loop."""
    made = PasswordThreads(asyncio.get_running_loop())
    yield made
    made.close()


async def answer(threads: PasswordThreads, job: object, wait_s: float = 0.0) -> bool | None:
    """Return the result of a check."""
    future: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
    threads.check(job, future.set_result, wait_s, HERE)  # type: ignore[arg-type]
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
    """A check after the end is answered, and nothing was computed; so is one that waited until then."""
    late = asyncio.ensure_future(answer(threads, lambda: True, 0.001))
    await asyncio.sleep(0)
    threads.close()
    assert await answer(threads, lambda: True) is None
    assert await late is None


@pytest.mark.parametrize(("own", "other"), [(("192.0.2.1", "guest"), ("198.51.100.1", "guest")),
                                            (("192.0.2.1", "guest"), ("192.0.2.1", "alice"))])  # fmt: skip
async def test_a_flood_hardly_makes_another_network_or_name_wait(
    threads: PasswordThreads, own: tuple[str, str], other: tuple[str, str]
) -> None:
    """With two thousand queued logins at one name, that of another network is computed at once, that of another name
    next.

    A check is started where its client is asked whether it has gone.
    """
    go_on = threading.Event()
    started: list[tuple[str, str]] = []
    answers: asyncio.Queue[bool | None] = asyncio.Queue()

    def check(who: tuple[str, str]) -> None:
        def gone() -> bool:
            started.append(who)
            return False

        threads.check(lambda: go_on.wait(DEADLINE_S), answers.put_nowait, 0.0, LoginClient(*who, gone))

    for _ in range(2000):
        check(own)
    assert started == [own], "a network has one thread"
    check(other)
    go_on.set()
    for _ in range(2001):
        assert await answers.get() is True
    assert started.index(other) <= 2


async def test_nothing_is_computed_for_who_has_gone(threads: PasswordThreads) -> None:
    """Clients that connect, log in and disconnect do not have their hashes computed."""
    answers: asyncio.Queue[bool | None] = asyncio.Queue()
    gone = LoginClient("192.0.2.1", "alice", lambda: True)
    for _ in range(100):
        threads.check(lambda: pytest.fail("computed"), answers.put_nowait, 0.0, gone)
    for _ in range(100):
        assert await answers.get() is None


async def test_what_waits_at_the_end_is_answered(threads: PasswordThreads) -> None:
    """Queued checks are answered at the end, without computing them."""
    go_on = threading.Event()
    answers: asyncio.Queue[bool | None] = asyncio.Queue()
    threads.check(lambda: go_on.wait(DEADLINE_S), answers.put_nowait, 0.0, HERE)
    for _ in range(10):
        threads.check(lambda: pytest.fail("computed"), answers.put_nowait, 0.0, HERE)
    threading.Timer(0.05, go_on.set).start()
    threads.close()
    given = [await answers.get() for _ in range(11)]
    assert given.count(None) == 10 and given.count(True) == 1
