"""Checking passwords beside the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from broker.net.password_check import PasswordThreads


@pytest.fixture
async def threads() -> AsyncIterator[PasswordThreads]:
    """Threads of this test's loop."""
    made = PasswordThreads(asyncio.get_running_loop())
    yield made
    made.close()


async def answer(threads: PasswordThreads, job: object, delay_s: float = 0.0) -> bool:
    """Returns what a check comes to."""
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    threads.check(job, future.set_result, delay_s)  # type: ignore[arg-type]
    return await future


async def test_a_check_runs_in_a_thread_and_is_answered_in_the_loop(threads: PasswordThreads) -> None:
    """So the loop goes on meanwhile."""
    where: list[int] = []

    def job() -> bool:
        where.append(threading.get_ident())
        return True

    assert await answer(threads, job) is True
    assert await answer(threads, job, 0.001) is True
    assert threading.get_ident() not in where


async def test_a_check_that_fails_is_a_wrong_password(threads: PasswordThreads) -> None:
    """And is logged, because it is a defect or a lack of memory."""
    with capture_logs() as events:
        assert await answer(threads, lambda: 1 / 0) is False
    assert [event["event"] for event in events] == ["login.failed"]


async def test_a_check_after_the_end_is_answered(threads: PasswordThreads) -> None:
    """With no."""
    threads.close()
    assert await answer(threads, lambda: True) is False
