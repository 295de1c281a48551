"""The garbage collector of the broker's process skips long-lived objects, and visits few at a time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import pytest

from broker.collector import REFERENCES_MAX, VISITED_MAX, YOUNG, Collector


class Circle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    """Restore the collector of the test process."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@contextmanager
def visits() -> Iterator[list[int]]:
    """Record how many objects each collection visits."""
    noted: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            noted.append(sum(len(gc.get_objects(generation=age)) for age in range(info["generation"] + 1)))

    gc.callbacks.append(note)
    try:
        yield noted
    finally:
        gc.callbacks.remove(note)


async def test_a_start_and_a_stop_look_at_nothing() -> None:
    """Recovered objects are frozen without a collection, which would delay the first client, and stay so to the end."""
    collector = Collector(asyncio.get_running_loop())
    with collector.paused():
        before = [generation["collections"] for generation in gc.get_stats()]
        made: list[list[int]] = [[] for _ in range(100 * gc.get_threshold()[0])]
    made.append([])  # would be the one that collects all of them
    collector.start()
    assert [generation["collections"] for generation in gc.get_stats()] == before
    assert gc.get_freeze_count() > len(made) - 1
    collector.close()
    assert gc.get_freeze_count() > len(made) - 1


async def test_nothing_is_collected_during_a_recovery() -> None:
    """Collection is off during a recovery and on afterwards, also if the recovery fails."""
    collector = Collector(asyncio.get_running_loop())
    enabled = [gc.isenabled()]

    def fail() -> None:
        with collector.paused():
            enabled.append(gc.isenabled())
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fail()
    assert [*enabled, gc.isenabled()] == [True, False, True]


async def test_no_collection_visits_many_objects() -> None:
    """While a million objects are made that stay, and after that, each collection visits a bounded number."""
    collector = Collector(asyncio.get_running_loop())
    collector.start()
    kept: list[list[int]] = []
    with visits() as visited:
        for second in range(20):
            kept += [[second] for _ in range(second * YOUNG)]
            collector.collect_old()
        for _ in range(100):
            collector.collect_old()
    collector.close()
    assert len(kept) > 10 * VISITED_MAX
    assert len(visited) > len(kept) // YOUNG // 2
    assert max(visited) <= VISITED_MAX


async def test_nothing_is_unfrozen_while_the_broker_serves() -> None:
    """Objects frozen at the start stay frozen, even while idle."""
    collector = Collector(asyncio.get_running_loop())
    collector.start()
    frozen = gc.get_freeze_count()
    for _ in range(100):
        collector.collect_old()
    assert gc.get_freeze_count() >= frozen - 100
    collector.close()


async def test_cycles_that_became_old_are_collected_once() -> None:
    """A client that keeps opening and closing channels leaves old cycles, which are collected too."""
    collector = Collector(asyncio.get_running_loop())
    collector.start()
    kept = Circle()
    seen = ref(kept)
    gc.collect(1)  # it is old now
    del kept
    assert seen() is not None
    collector.collect_old()
    assert seen() is None
    collector.close()


@pytest.mark.parametrize("at_once", [YOUNG, 4 * YOUNG, 20 * YOUNG])
async def test_objects_that_take_the_place_of_freed_ones_are_collected(at_once: int) -> None:
    """Python counts a new object and a freed one as none, so an import would leave one collection with all it made."""
    collector = Collector(asyncio.get_running_loop())
    old = [[number] for number in range(20 * YOUNG)]
    collector.start()
    made: list[list[int]] = []
    with visits() as visited:
        while old:
            for _ in range(at_once):
                old.pop()
                made.append([])
            collector.collect_young()
            collector.collect_old()
        gc.collect(1)
    collector.close()
    assert len(made) == 20 * YOUNG
    assert max(visited) <= VISITED_MAX


@pytest.mark.parametrize("held", [100, 2 * REFERENCES_MAX])
async def test_a_very_long_list_is_frozen_without_a_look_at_what_it_holds(held: int) -> None:
    """The lists of an import hold hundreds of thousands of references, and a collection would follow each."""
    collector = Collector(asyncio.get_running_loop())
    collector.start()
    kept: list[object] = [None] * held
    gc.collect(1)  # it is old now
    before, frozen = gc.get_stats()[2]["collections"], gc.get_freeze_count()
    collector.collect_old()
    assert gc.get_stats()[2]["collections"] - before == (held < REFERENCES_MAX)
    assert gc.get_freeze_count() > frozen
    collector.close()
    assert len(kept) == held
