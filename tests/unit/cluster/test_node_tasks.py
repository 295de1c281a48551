"""The tasks of a part of a node, and what wakes them."""

from __future__ import annotations

import asyncio

from broker.cluster.errors import Fenced
from broker.cluster.node_tasks import NodeTasks
from broker.cluster.wake_up import WakeUp


async def end_with(error: Exception) -> None:
    """Fail."""
    raise error


def test_defect_ends_the_broker_and_the_end_of_the_epoch_does_not() -> None:
    """Of two tasks that fail, the fenced one ends silently."""
    failures: list[BaseException] = []

    async def run() -> None:
        tasks = NodeTasks(failures.append)
        tasks.start(end_with(Fenced("counted out")))
        tasks.start(end_with(ValueError("a defect")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert [str(failure) for failure in failures] == ["a defect"]


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
        tasks = NodeTasks(failures.append)
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
