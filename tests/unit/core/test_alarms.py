"""Alarms: when they are raised, which connections they block, and what client and operator are told."""

from __future__ import annotations

import pytest

from broker.core.alarms import Alarms, Watermark

MEMORY = Watermark("memory", 1000, "limits.memory_bytes")
DISK = Watermark("disk", 1000, "limits.disk_free_bytes")


@pytest.mark.parametrize(
    ("watermark", "values", "stands"),
    [
        (MEMORY, [999, 1000, 950, 900, 899, 950, 1001], [False, True, True, True, False, False, True]),
        (DISK, [1000, 999, 1050, 1099, 1100, 1000, 1], [False, True, True, True, False, False, True]),
        (Watermark("memory", 0, "off"), [10**12], [False]),
        (Watermark("disk", 0, "off"), [0], [False]),
    ],
)
def test_an_alarm_ends_a_tenth_away_from_its_limit(watermark: Watermark, values: list[int], stands: list[bool]) -> None:
    """A memory alarm starts at its limit, a disk alarm below its limit; 0 turns an alarm off."""
    flow: Alarms[str] = Alarms([watermark])
    seen = []
    for value in values:
        before = bool(flow.alarms)
        changed = flow.measure(watermark.kind, value)
        seen.append(bool(flow.alarms))
        assert changed == (before != seen[-1])
    assert seen == stands


@pytest.mark.parametrize("limit_bytes", [0, 1000])
def test_what_is_lacking_raises_the_alarm_and_holds_it(limit_bytes: int) -> None:
    """A lacking resource counts whatever the limit and the value are, and is named if the limit is not passed."""
    flow: Alarms[str] = Alarms([Watermark("disk", limit_bytes, "store.disk_free_min_bytes")])
    reserve = Watermark("disk", 50, "store.reserve_bytes")
    assert flow.measure("disk", 10**12, reserve)
    assert flow.alarms["disk"].fields() == {
        "kind": "disk",
        "value_bytes": 10**12,
        "limit_bytes": 50,
        "setting": "store.reserve_bytes",
        "advice": "publishers wait: consume or purge messages, free disk space, or lower store.reserve_bytes",
    }
    assert flow.block(["a"]) == ["a"]
    assert not flow.measure("disk", 10**12, reserve)
    assert flow.measure("disk", 10**12)
    assert flow.unblock() == ["a"]


def test_an_alarm_tells_the_operator_what_to_change() -> None:
    """The warning has kind, value, limit and setting, as they were when the alarm was raised."""
    flow: Alarms[str] = Alarms([MEMORY])
    flow.measure("memory", 1200)
    flow.measure("memory", 1300)
    assert flow.alarms["memory"].fields() == {
        "kind": "memory",
        "value_bytes": 1200,
        "limit_bytes": 1000,
        "setting": "limits.memory_bytes",
        "advice": "publishers wait: consume or purge messages, close idle connections, or raise limits.memory_bytes",
    }


def test_the_reason_is_rabbitmqs() -> None:
    """connection.blocked names each low resource, as in RabbitMQ."""
    flow: Alarms[str] = Alarms([MEMORY, DISK])
    flow.measure("disk", 1)
    assert flow.reason == "low on disk"
    flow.measure("memory", 1000)
    assert flow.reason == "low on memory & disk"
    flow.measure("disk", 5000)
    assert flow.reason == "low on memory"


def test_only_publishers_are_blocked_and_each_once() -> None:
    """An alarm blocks connections that have published; a later publisher is blocked at its first publish."""
    flow: Alarms[str] = Alarms([MEMORY, DISK])
    assert flow.block(["early"]) == []
    flow.measure("memory", 1000)
    assert flow.block(["a", "b"]) == ["a", "b"]
    flow.measure("disk", 1)
    assert flow.block(["a", "b", "c"]) == ["c"]
    assert flow.blocked == {"a", "b", "c"}


def test_all_are_unblocked_when_the_last_alarm_ends() -> None:
    """The end of one of two alarms unblocks no one; a closed connection is not unblocked."""
    flow: Alarms[str] = Alarms([MEMORY, DISK])
    flow.measure("memory", 1000)
    flow.measure("disk", 1)
    flow.block(["a", "b"])
    flow.measure("memory", 0)
    assert flow.unblock() == []
    flow.forget("b")
    flow.measure("disk", 5000)
    assert flow.unblock() == ["a"]
    assert flow.unblock() == []
    assert not flow.blocked


def test_other_limits_judge_an_alarm_that_stands() -> None:
    """Raising or removing a limit ends its alarm at the next measurement."""
    for limit_bytes in (5000, 0):
        flow: Alarms[str] = Alarms([MEMORY, DISK])
        flow.measure("memory", 1000)
        flow.set_watermarks([Watermark("memory", limit_bytes, "memory.alarm_bytes"), DISK])
        assert flow.measure("memory", 1000)
        assert not flow.alarms
        assert not flow.measure("memory", 1000)
