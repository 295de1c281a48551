"""The observer: whose beats stand still is dead, unless this node could not look."""

from __future__ import annotations

import pytest

from broker.cluster.database_rows import ClusterMember
from broker.cluster.other_nodes import Observer
from tests.unit.cluster.leases import seen

LEASE_S = 6.0
B = seen("b", 1, 5, LEASE_S)


def look(observer: Observer, at_s: float, *seen: ClusterMember) -> list[str]:
    """Look at `at_s` with an answer a moment later, and return the names of the dead."""
    return [dead.node for dead in observer.record_poll(at_s, at_s + 0.1, seen)]


def look_until(observer: Observer, until_s: float, *seen: ClusterMember) -> list[str]:
    """Look every second and once at the end, and return the names of the dead at the last look."""
    for at_s in range(int(until_s)):
        assert look(observer, at_s, *seen) == []
    return look(observer, until_s, *seen)


def test_a_node_is_dead_after_its_lease_and_the_margin() -> None:
    """The count runs from the answer of the first look that saw the beat to the sending of the last one."""
    assert look_until(Observer(LEASE_S), 7.05, B) == []
    assert look_until(Observer(LEASE_S), 7.15, B) == ["b"]


def test_a_beat_begins_the_count_again() -> None:
    """So does a new epoch of the name."""
    for newer in (B._replace(beats=6), B._replace(epoch=2)):
        observer = Observer(LEASE_S)
        look_until(observer, 5.0, B)
        assert [look(observer, float(at_s), newer) for at_s in range(6, 14)] == [[]] * 8
        assert look(observer, 14.0, newer) == ["b"]


def test_a_node_with_a_longer_lease_is_waited_for() -> None:
    """Each node reports its lease with its beats; a shorter one than the observer's own gains nothing."""
    long = seen("c", 2, 5, 2 * LEASE_S)
    short = seen("d", 3, 5, LEASE_S / 2)
    observer = Observer(LEASE_S)
    assert look_until(observer, 7.15, B, long, short) == ["b", "d"]


@pytest.mark.parametrize("breaks", ["a failed look", "a gap"])
def test_time_without_a_look_does_not_count(breaks: str) -> None:
    """After an outage, or a pause of the observer, every node has its whole lease again."""
    observer = Observer(LEASE_S)
    look_until(observer, 6.5, B)
    if breaks == "a failed look":
        observer.failed()
        began_s = 7.5
    else:
        began_s = 6.5 + LEASE_S / 2 + 0.2
    assert [look(observer, began_s + after_s, B) for after_s in range(8)] == [[]] * 8
    assert look(observer, began_s + 7.15, B) == ["b"]
    assert observer.age_s("b", 1, began_s + 7.15) > 7


def test_a_node_that_was_not_seen_has_no_age() -> None:
    """It has just joined."""
    assert Observer(LEASE_S).age_s("b", 1, 99.0) == 0
