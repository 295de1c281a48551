"""The owner of tasks, what wakes a task, and the check that refuses tasks without an owner."""

from __future__ import annotations

import asyncio

import pytest

from broker.tasks import Tasks, WakeUp, first_ended, uncancelled
from tools.tasks import unowned


async def end_with(error: Exception) -> None:
    """Fail."""
    raise error


def test_each_error_and_each_end_is_heard() -> None:
    """The owner hears what was raised, and that a task has ended once it is no longer busy with it."""
    failures: list[BaseException] = []
    busy: list[bool] = []

    async def run() -> None:
        tasks = Tasks(failures.append, lambda: busy.append(tasks.busy))
        tasks.start(end_with(ValueError("a defect")))
        tasks.start(asyncio.sleep(0))
        await tasks.ended()
        assert not tasks.busy

    asyncio.run(run())
    assert [str(failure) for failure in failures] == ["a defect"]
    assert busy == [True, False]


def test_work_is_finished_though_its_caller_is_cancelled() -> None:
    """Its error goes to the caller, and to no one if the caller has gone."""
    failures: list[BaseException] = []
    done: list[str] = []

    async def work() -> str:
        await asyncio.sleep(0.01)
        done.append("work")
        raise ValueError("refused")

    async def run() -> None:
        tasks = Tasks(failures.append)
        with pytest.raises(ValueError, match="refused"):
            await tasks.finish(work())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await tasks.finish(work())
        await tasks.ended()

    asyncio.run(run())
    assert (done, failures) == (["work", "work"], [])


def test_a_cancelled_caller_waits_for_the_end_of_the_work() -> None:
    """It can ask the work to end sooner."""
    stop = asyncio.Event()
    ended: list[int] = []

    async def work() -> None:
        await stop.wait()
        ended.append(1)

    async def run() -> None:
        caller = asyncio.create_task(uncancelled(work(), stop.set))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert ended == [1]

    asyncio.run(run())


def test_the_first_end_cancels_the_other_works() -> None:
    """Its error is raised; the others have ended by then."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("other")

    async def run() -> None:
        await first_ended(work(), asyncio.sleep(0))
        with pytest.raises(ValueError, match="first"):
            await first_ended(work(), end_with(ValueError("first")))

    asyncio.run(run())
    assert ended == ["other", "other"]


def test_stop_returns_when_every_task_has_ended() -> None:
    """Tasks end their work when they are stopped, those that never ran included, and new ones may start."""
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    async def run() -> None:
        failures: list[BaseException] = []
        tasks = Tasks(failures.append)
        tasks.start(work(1))
        await asyncio.sleep(0)
        tasks.start(work(2))  # it never runs
        await tasks.stop()
        assert ended == [1]
        tasks.start(work(3))
        await asyncio.sleep(0)
        await tasks.stop()
        assert ended == [1, 3]
        assert not failures

    asyncio.run(run())


def test_wake_ups_before_a_wait_count_once() -> None:
    """A wait returns at once after wake-ups, and the next one lasts as long as it may."""

    async def run() -> None:
        wake_up = WakeUp()
        wake_up.set()
        wake_up.set()
        await wake_up.wait()
        assert not wake_up.is_set
        await wake_up.wait(0)
        assert not wake_up.is_set

    asyncio.run(run())


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("asyncio.create_task(work())", [1]),
        ("loop.create_task(work())", [1]),
        ("\nasyncio.get_running_loop().create_task(work())", [2]),
        ("future = asyncio.ensure_future(work())", [1]),
        ("start = loop.create_task", [1]),
        ("from asyncio import create_task", [1]),
        ("async def all():\n async with asyncio.TaskGroup() as group:\n  group.create_task(work())", []),
        ("self._tasks.start(work())", []),
    ],
)
def test_a_task_without_an_owner_is_found(source: str, lines: list[int]) -> None:
    """However it is started; a task group owns its tasks."""
    assert list(unowned(source)) == lines
