"""The garbage collector of the broker's process skips long-lived objects."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

from broker.collector import CONNECTION, DELETED_MAX, GROWTH, IDLE_S, IDLE_TURNS, OLD, VISITED_MAX, Collector
from broker.vhosts.broker_statistics import ChurnCounts


class Statistics:
    """Counts deleted queues."""

    def __init__(self) -> None:
        self.queues_deleted = 0

    def churn(self) -> ChurnCounts:
        """Return the counts."""
        return ChurnCounts(0, 0, 0, 0, 0, 0, self.queues_deleted)


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    """Restore the collector of the test process."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture
def broker() -> Any:
    """Provide the parts of a broker that the collector uses: one vhost, no connection."""
    vhost = SimpleNamespace(bindings=SimpleNamespace(live=SimpleNamespace(count=0)), queues={})
    listener, turn = SimpleNamespace(transports=[]), SimpleNamespace(count=0)
    return SimpleNamespace(vhosts={"/": vhost}, listener=listener, turn=turn, statistics=Statistics(), node=None)


async def test_what_is_there_is_set_aside_when_it_has_grown(broker: Any) -> None:
    """Objects are frozen at the start and after large growth, not after every small one."""
    collector = Collector(broker, asyncio.get_running_loop())
    gc.unfreeze()
    collector.start()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    broker.vhosts["/"].bindings.live.count = GROWTH - 1
    collector.look()
    assert gc.get_freeze_count() == 0
    broker.vhosts["/"].queues["q"] = None
    collector.look()
    assert gc.get_freeze_count() > 0
    collector.close()
    assert gc.get_freeze_count() == 0


async def test_a_start_looks_at_nothing(broker: Any) -> None:
    """Recovered objects are frozen without a collection, which would delay the first client."""
    collector = Collector(broker, asyncio.get_running_loop())
    with collector.paused():
        before = [generation["collections"] for generation in gc.get_stats()]
        made: list[list[int]] = [[] for _ in range(100 * gc.get_threshold()[0])]
    made.append([])  # would be the one that collects all of them
    collector.start()
    assert [generation["collections"] for generation in gc.get_stats()] == before
    assert gc.get_freeze_count() > len(made) - 1
    collector.close()


async def test_many_connections_are_set_aside(broker: Any) -> None:
    """Connections are frozen, and each counts as many objects as several bindings."""
    collector = Collector(broker, asyncio.get_running_loop())
    collector.start()
    gc.unfreeze()
    broker.listener.transports = [object()] * (GROWTH // CONNECTION)
    collector.look()
    assert gc.get_freeze_count() > 0
    collector.close()


async def test_what_many_deleted_queues_leave_is_collected(broker: Any) -> None:
    """In a cluster one collection follows when enough queues were deleted; then the count restarts."""
    collector = Collector(broker, asyncio.get_running_loop())
    collector.start()
    collections = gc.get_stats()[2]["collections"]
    broker.statistics.queues_deleted = DELETED_MAX - 1
    collector.look()
    assert gc.get_stats()[2]["collections"] == collections
    broker.statistics.queues_deleted = DELETED_MAX
    collector.look()
    assert gc.get_stats()[2]["collections"] == collections
    broker.node = object()
    for _ in range(2):
        collector.look()
        assert gc.get_stats()[2]["collections"] == collections + 1
    collector.close()


async def test_what_many_connections_leave_is_not_looked_for(broker: Any) -> None:
    """Closed connections cause no collection, and what comes after them is set aside as usual."""
    collector = Collector(broker, asyncio.get_running_loop())
    broker.listener.transports = [object()] * (2 * GROWTH)
    collector.start()
    collections = gc.get_stats()[2]["collections"]
    broker.listener.transports = []
    collector.look()
    assert gc.get_stats()[2]["collections"] == collections
    gc.unfreeze()
    broker.vhosts["/"].bindings.live.count = GROWTH
    collector.look()
    assert gc.get_freeze_count() > 0
    collector.close()


async def test_nothing_is_collected_during_a_recovery(broker: Any) -> None:
    """Collection is off during a recovery and on afterwards, also if the recovery fails."""
    collector = Collector(broker, asyncio.get_running_loop())
    enabled = [gc.isenabled()]

    def fail() -> None:
        with collector.paused():
            enabled.append(gc.isenabled())
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fail()
    assert [*enabled, gc.isenabled()] == [True, False, True]


async def test_everything_is_looked_at_when_nobody_waits(broker: Any) -> None:
    """A full collection runs once after an idle period without a client, never amid work."""
    before = gc.get_threshold()
    collector = Collector(broker, asyncio.get_running_loop())
    collector.start()
    assert gc.get_threshold()[2] >= 1 << 30
    collections = gc.get_stats()[2]["collections"]
    for _ in range(IDLE_S - 1):
        broker.turn.count += IDLE_TURNS - 1
        collector.look()
    broker.turn.count += IDLE_TURNS  # a busy second
    for _ in range(IDLE_S):
        collector.look()
        assert gc.get_stats()[2]["collections"] == collections
    broker.listener.transports = [object()]
    for _ in range(3 * IDLE_S):
        collector.look()
        assert gc.get_stats()[2]["collections"] == collections
    broker.listener.transports = []
    for _ in range(3 * IDLE_S):
        collector.look()
    assert gc.get_stats()[2]["collections"] == collections + 1
    assert gc.get_freeze_count() > 0
    collector.close()
    assert gc.get_threshold() == before


async def test_circles_are_collected_though_nothing_grows(broker: Any) -> None:
    """A client that keeps opening and closing channels leaves old cycles, which are collected too."""

    class Circle:
        """Refers to itself."""

        def __init__(self) -> None:
            self.itself = self

    collector = Collector(broker, asyncio.get_running_loop())
    collector.start()
    kept = Circle()
    seen = ref(kept)
    for _ in range(OLD):
        gc.collect(1)  # survivors are old
    del kept
    gc.collect(1)
    assert seen() is not None
    collector.look()
    assert seen() is None
    collector.close()


async def test_many_new_objects_are_not_visited(broker: Any) -> None:
    """Objects that have become old are frozen without a look at them, if they are many."""
    collector = Collector(broker, asyncio.get_running_loop())
    collector.start()
    kept: list[list[int]] = [[] for _ in range(VISITED_MAX + 1)]
    for _ in range(OLD):
        gc.collect(1)
    collections, frozen = gc.get_stats()[2]["collections"], gc.get_freeze_count()
    collector.look()
    assert gc.get_stats()[2]["collections"] == collections
    assert gc.get_freeze_count() >= frozen + len(kept)
    collector.close()
