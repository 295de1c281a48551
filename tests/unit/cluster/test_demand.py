"""The demand of a level: what a node asks for, and from which number on."""

from __future__ import annotations

from broker.cluster.demand import Demand


def test_the_next_lease_begins_where_an_earlier_one_ended() -> None:
    """Lower numbers are not looked at again, unless someone tells of them."""
    demand = Demand()
    demand.passed(7, 100, 100)
    assert demand.bound == 0
    demand.passed(9, 101, 101)
    assert demand.bound == 7
    demand.note_free(9)
    assert demand.bound == 7
    demand.note_free(3)
    assert demand.bound == 3


def test_the_bound_stays_while_a_call_with_a_lower_number_may_be_in_flight() -> None:
    """A call of before the second lease holds the bound, whatever the later ones see, until it has ended."""
    demand = Demand()
    demand.passed(7, 100, 90)
    demand.passed(9, 110, 105)
    demand.passed(12, 120, 109)
    assert demand.bound == 0
    demand.passed(15, 130, 110)
    assert demand.bound == 7
    demand.passed(18, 140, 139)
    demand.passed(21, 150, 140)
    assert demand.bound == 15


def test_a_lease_that_its_room_cut_short_raises_the_bound_to_its_last_slot() -> None:
    """Messages in flight before arrive now, and the rest is still free."""
    demand = Demand()
    demand.passed(7, 100, 90)
    demand.passed(5, 110, 110)
    assert demand.bound == 5


def test_a_lower_number_that_was_told_during_a_lease_is_not_skipped() -> None:
    """The lease did not see it: another node returned it later."""
    demand = Demand()
    demand.passed(7, 100, 100)
    demand.ask(10)
    demand.note_free(5)
    demand.note_free(8)
    demand.passed(9, 101, 101)
    demand.answered(10, more=False, gathers=False)
    assert demand.bound == 5
    assert demand.backlog
    demand.passed(12, 102, 102)
    assert demand.bound == 9


def test_a_look_at_everything_holds_the_bound_during_a_lease() -> None:
    """The candidate of before goes with the bound."""
    demand = Demand()
    demand.passed(7, 100, 100)
    demand.note_free(0)
    demand.passed(9, 101, 101)
    assert demand.bound == 0


def test_a_look_for_lost_hints_keeps_the_bound() -> None:
    """One lease looks at everything, and the next begins where an earlier one ended."""
    demand = Demand()
    demand.passed(7, 100, 100)
    demand.passed(9, 101, 101)
    demand.answered(1, more=False, gathers=False)
    demand.ignore_bound()
    assert demand.free
    assert [demand.begin(), demand.begin()] == [0, 7]
    demand.ignore_bound()
    demand.forget()
    assert not demand.ignores_bound


def test_a_new_epoch_looks_at_everything() -> None:
    """Nothing of the former epoch counts, and neither do the transaction ids of its server."""
    demand = Demand()
    demand.passed(7, 100, 100)
    demand.passed(9, 101, 101)
    demand.forget()
    demand.passed(8, 5, 5)
    assert demand.bound == 0
