"""The demand of a stream: what a node asks for, and from which number on."""

from __future__ import annotations

from broker.cluster.demand import Demand


def test_the_next_lease_begins_where_the_last_one_ended() -> None:
    """Lower numbers are not looked at again, unless somebody tells of them."""
    demand = Demand()
    demand.ask(10)
    demand.answered(10, 7, more=False, gathers=False)
    assert demand.bound == 7
    demand.note_free(9)
    assert demand.bound == 7
    demand.note_free(3)
    assert demand.bound == 3


def test_a_lower_number_that_was_told_during_a_lease_is_not_skipped() -> None:
    """The lease did not see it: its commit came later, though its number is lower than the last one of the answer."""
    demand = Demand()
    demand.ask(10)
    demand.note_free(5)
    demand.note_free(8)
    demand.answered(10, 7, more=False, gathers=False)
    assert demand.bound == 5
    assert demand.backlog
    demand.ask(10)
    demand.answered(10, 9, more=False, gathers=False)
    assert demand.bound == 9
