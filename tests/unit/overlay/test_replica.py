"""The replica of one sender."""

from __future__ import annotations

from broker.overlay.packets import Conjunction, Update
from broker.overlay.replica import Replica
from tests.unit.overlay.network import OTHER, SPACE, wants


def update(serial: int, *, full: bool = False, last: bool = True, **fields: object) -> Update:
    """Return an update with some fields."""
    return Update(serial, full, last, **fields)  # type: ignore[arg-type]  # each test names its fields


def texts(*patterns: str) -> tuple[Conjunction, ...]:
    """Return conjunctions in the usual space."""
    return tuple(wants(pattern) for pattern in patterns)


def filled() -> Replica:
    """Return a replica with two patterns of one leaf."""
    replica = Replica()
    replica.begin(1)
    replica.receive(
        update(1, full=True, added=texts("a", "b"), slice={"sb": 4}, interested=((SPACE, ("sb",)),), durable=("sb",))
    )
    return replica


def test_updates_apply_in_order_and_once() -> None:
    """A repeated update and one behind a gap change nothing."""
    replica = filled()
    assert replica.receive(update(3, added=texts("x"))) is None
    assert replica.receive(update(1, full=True, added=texts("y"))) is None
    assert replica.receive(update(2, removed=texts("a"), slice={"sb": 5})) is not None
    assert replica.receive(update(2, removed=texts("b"), slice={"sb": 6})) is None
    assert (replica.patterns, replica.times, replica.expected) == ({SPACE: {"b"}}, {"sb": 5}, 3)


def test_nothing_applies_before_a_full_update() -> None:
    """Without a base there is no difference to it."""
    replica = Replica()
    replica.begin(1)
    assert replica.receive(update(1, added=texts("x"))) is None
    assert replica.expected == 0


def test_additions_hold_at_once_and_all_else_at_the_last_part() -> None:
    """Between the parts more patterns match than are wanted, never fewer, and no time is claimed."""
    replica = filled()
    change = replica.receive(update(2, last=False, added=texts("c"), removed=texts("a")))
    assert change is not None
    assert change.added == [wants("c")]
    assert (replica.patterns[SPACE], replica.times) == ({"a", "b", "c"}, {"sb": 4})
    change = replica.receive(update(3, removed=texts("b"), slice={"sb": 5}))
    assert change is not None
    assert (set(change.removed), change.leaves) == ({wants("a"), wants("b")}, {"sb"})
    assert (replica.patterns[SPACE], replica.times) == ({"c"}, {"sb": 5})


def test_a_full_update_replaces_at_its_last_part() -> None:
    """Everything not in it is removed: patterns, leaves, spaces and durability; only the difference is announced."""
    replica = filled()
    replica.begin(2)
    replica.receive(update(1, full=True, last=False, added=texts("b")))
    assert replica.patterns[SPACE] == {"a", "b"}
    change = replica.receive(
        update(2, added=(wants("c", OTHER),), slice={"other": 1}, interested=((OTHER, ("other",)),))
    )
    assert change is not None
    assert (change.added, change.removed) == ([wants("c", OTHER)], [wants("a")])
    assert change.leaves == {"sb", "other"}
    assert change.interested == {SPACE: {"sb"}, OTHER: {"other"}}
    assert change.touched == {SPACE, OTHER}
    assert change.durable == {"sb"}
    assert replica.patterns == {SPACE: {"b"}, OTHER: {"c"}}
    assert (replica.times, replica.interested) == ({"other": 1}, {OTHER: frozenset(["other"])})
    assert not replica.durable


def test_a_full_update_that_breaks_off_is_replaced_by_the_next() -> None:
    """The parts of the first leave nothing behind, in the sender's old session or as patterns."""
    replica = filled()
    replica.receive(update(2, full=True, last=False, added=texts("x"), removed=texts("b")))
    replica.begin(2)
    replica.receive(update(1, full=True, added=texts("b"), slice={"sb": 5}))
    assert replica.patterns == {SPACE: {"b"}}


def test_a_full_update_may_leave_serials_out() -> None:
    """A sender that starts over forgets what was under way."""
    replica = filled()
    replica.receive(update(2, last=False, removed=texts("a")))
    assert replica.receive(update(9, full=True, last=False, added=texts("a"))) is not None
    assert replica.receive(update(10, slice={"sb": 5})) is not None
    assert replica.patterns == {SPACE: {"a"}}


def test_a_broker_that_restarted_leaves_what_it_knew() -> None:
    """Its empty full update replaces what it announced only where it knows each leaf as well."""
    replica = filled()
    replica.begin(2)
    empty = update(1, full=True, slice={"sb": 3})
    before = replica.replaced_by(empty)
    assert before is not None
    assert (before.patterns, before.times) == ({SPACE: {"a", "b"}}, {"sb": 4})
    assert before.durable == {"sb"}
    replica.receive(empty)
    assert (replica.patterns, before.patterns) == ({}, {SPACE: {"a", "b"}})
    assert filled().replaced_by(update(2, full=True, slice={"sb": 4})) is None
    assert filled().replaced_by(update(2, slice={})) is None


def test_a_withdrawn_replica_is_empty() -> None:
    """And tells everything that is gone."""
    replica = filled()
    change = replica.withdraw()
    assert (set(change.removed), change.leaves, change.touched) == (set(texts("a", "b")), {"sb"}, {SPACE})
    assert (replica.patterns, replica.times, replica.interested, replica.durable) == ({}, {}, {}, frozenset())


def test_a_forgotten_leaf_leaves_its_patterns() -> None:
    """Other leaves behind the sender may want them."""
    replica = filled()
    replica.receive(update(2, full=True, last=False, added=texts("z")))
    replica.lose(5)
    change = replica.forget("sb")
    assert (change.leaves, change.removed, replica.times) == ({"sb"}, [], {})
    assert replica.patterns == {SPACE: {"a", "b", "z"}}
