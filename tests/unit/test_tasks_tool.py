"""The check that refuses tasks without an owner."""

from __future__ import annotations

import pytest

from tools.tasks import unowned


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
