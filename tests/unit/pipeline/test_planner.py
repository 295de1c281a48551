"""The slots that a read takes, and their division into tasks; without Spark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.pipeline.source.planner import (
    PARTITION_MAX_BYTES,
    PARTITION_MIN_BYTES,
    BatchLimits,
    Condition,
    admitted,
    runs,
    wanted,
)
from broker.pipeline.source.slot_handle import SlotHandle

MIB = 1 << 20


def slot(seal: int, size_bytes: int = MIB, count: int = 100) -> SlotHandle:
    """Return a slot of a tap, 100 ids each, one message a millisecond."""
    first = seal * 100
    return SlotHandle("00", seal, "/", "t", 1, first, first + 100, count, first, first + 99, size_bytes, 0)


SLOTS = st.lists(st.tuples(st.integers(1, 100 * MIB), st.integers(0, 1000)), max_size=30).map(
    lambda sizes: [slot(number + 1, size, count) for number, (size, count) in enumerate(sizes)]
)
LIMIT = st.none() | st.integers(1, 5000)


@given(SLOTS, st.integers(1, 64), st.integers(1, 200 * MIB))
def test_runs_keep_all_slots_in_order_and_no_run_is_longer_than_allowed(
    slots: list[SlotHandle], tasks: int, most: int
) -> None:
    """Every slot is in one run; only a run of a single slot exceeds the maximum."""
    found = runs(slots, tasks, most)
    assert [one for run in found for one in run] == slots
    assert all(run for run in found)
    assert all(len(run) == 1 or sum(one.bytes for one in run) <= most for run in found)


def test_runs_are_64_mib_at_most() -> None:
    """Slots of 16 MiB are read four per task."""
    assert [len(run) for run in runs([slot(n, 16 * MIB) for n in range(1, 11)])] == [4, 4, 2]
    assert PARTITION_MAX_BYTES == 64 * MIB


def test_few_slots_are_shared_out_among_the_tasks_there_can_be() -> None:
    """40 MiB on four cores are four tasks, not one."""
    assert [len(run) for run in runs([slot(n, 5 * MIB) for n in range(1, 9)], 4)] == [2, 2, 2, 2]


def test_small_slots_stay_together() -> None:
    """A task has at least 4 MiB while there is enough."""
    found = runs([slot(n, PARTITION_MIN_BYTES // 4) for n in range(1, 9)], 100)
    assert [len(run) for run in found] == [4, 4]


@given(SLOTS.filter(bool), LIMIT, LIMIT, LIMIT)
def test_a_trigger_takes_whole_slots_up_to_the_first_limit(
    slots: list[SlotHandle], most: int | None, rows: int | None, size: int | None
) -> None:
    """A trigger takes the longest prefix of slots within all limits, and at least one slot."""
    limits = BatchLimits(most, rows, None if size is None else size * 100_000)

    def within(taken: list[SlotHandle]) -> bool:
        return (
            (limits.slots is None or len(taken) <= limits.slots)
            and (limits.rows is None or sum(one.count for one in taken) <= limits.rows)
            and (limits.bytes is None or sum(one.bytes for one in taken) <= limits.bytes)
        )

    longest = max((n for n in range(len(slots) + 1) if within(slots[:n])), default=0)
    assert list(admitted(slots, limits)) == slots[: max(longest, 1)]


def test_no_slots_are_none_under_any_limit() -> None:
    """An idle stream takes no slots."""
    assert list(admitted([], BatchLimits(1, 1, 1))) == []
    assert runs([], 4) == []


def test_slots_outside_the_range_are_not_planned() -> None:
    """Conditions on ids, times and seals skip whole slots; an empty slot is skipped."""
    slots = [*map(slot, range(1, 21)), slot(21, count=0)]

    def seals(*conditions: Condition) -> list[int]:
        return [one.seal for one in wanted(slots, conditions)]

    assert seals() == list(range(1, 21))
    assert seals(Condition("offset", ">=", 1850)) == [18, 19, 20]
    assert seals(Condition("offset", ">=", 1900)) == [19, 20]
    assert seals(Condition("ts", "<", 200_000)) == [1]
    assert seals(Condition("seal", ">=", 3), Condition("seal", "<", 5)) == [3, 4]
    assert seals(Condition("offset", "<", 200), Condition("offset", ">=", 200)) == []
    assert len(seals(Condition("routing_key", "topic", "x"))) == 20
