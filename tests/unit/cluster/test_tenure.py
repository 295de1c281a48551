"""The tenure of a node: its states, and leases that two nodes never share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.cluster.tenure import NodeTenure, TenureState
from tests.unit.cluster.leases import LEASE_S, Simulation

SEEDS = st.integers(0, 2**32)


def _in_state(state: TenureState) -> NodeTenure:
    tenure = NodeTenure(LEASE_S)
    if state is TenureState.LEFT:
        tenure.leave()
    elif state is not TenureState.JOINING:
        tenure.join(1, 10.0)
        if state is TenureState.PAUSED:
            assert tenure.expired(10.0 + LEASE_S)
        elif state is TenureState.LOST:
            assert tenure.fence(1)
    assert tenure.state is state
    return tenure


@pytest.mark.parametrize("state", [*TenureState])
def test_every_event_in_every_state(state: TenureState) -> None:
    """A move that does not fit the state is refused or ignored."""
    joined, paused, lost = TenureState.JOINED, TenureState.PAUSED, TenureState.LOST

    def moved(act: Callable[[NodeTenure], object]) -> TenureState | None:
        tenure = _in_state(state)
        try:
            act(tenure)
        except AssertionError:
            assert tenure.state is state
            return None
        return tenure.state

    acts = state in {joined, paused}
    assert moved(lambda tenure: tenure.join(2, 20.0)) is (joined if state is TenureState.JOINING else None)
    assert moved(NodeTenure.rejoin) is (TenureState.JOINING if state is lost else None)
    assert moved(NodeTenure.leave) is TenureState.LEFT
    assert moved(lambda tenure: tenure.answered(tenure.epoch, 10.3, 10.4)) is (joined if acts else state)
    assert moved(lambda tenure: tenure.expired(99.0)) is (paused if state is joined else state)
    assert moved(lambda tenure: tenure.fence(tenure.epoch)) is (lost if acts else state)


@pytest.mark.parametrize("state", [*TenureState])
def test_a_node_acts_only_while_it_is_joined(state: TenureState) -> None:
    """A node that is paused, lost, gone or not there yet does not act, whatever its clock shows."""
    assert _in_state(state).may_act(10.0) == (state is TenureState.JOINED)


def test_the_lease_counts_from_the_sending_of_the_beat() -> None:
    """An answer that takes long gives less."""
    tenure = _in_state(TenureState.JOINED)
    tenure.answered(1, sent_s=10.1, now_s=10.45)
    assert tenure.may_act(10.1 + LEASE_S - 0.001)
    assert not tenure.may_act(10.1 + LEASE_S)


def test_an_answer_that_comes_after_its_own_lease_gives_nothing() -> None:
    """A node that slept over the answer stays paused until a newer beat is answered."""
    tenure = _in_state(TenureState.PAUSED)
    assert not tenure.answered(1, sent_s=11.0, now_s=11.0 + LEASE_S)
    assert tenure.state is TenureState.PAUSED
    assert tenure.answered(1, sent_s=12.0, now_s=12.1)
    assert tenure.may_act(12.2)


def test_an_older_answer_does_not_shorten_the_lease() -> None:
    """Beats may be answered out of order after a reconnect."""
    tenure = _in_state(TenureState.JOINED)
    tenure.answered(1, sent_s=10.4, now_s=10.45)
    tenure.answered(1, sent_s=10.1, now_s=10.46)
    assert tenure.may_act(10.4 + LEASE_S - 0.001)


def test_what_concerns_an_earlier_epoch_is_ignored() -> None:
    """A late answer and a late refusal of the former epoch change nothing."""
    tenure = _in_state(TenureState.LOST)
    tenure.rejoin()
    tenure.join(2, 20.0)
    assert not tenure.answered(1, 20.3, 20.4)
    assert tenure.ends_s == 20.0 + LEASE_S
    assert not tenure.fence(1)
    assert tenure.state is TenureState.JOINED


def test_an_epoch_is_newer_than_the_one_before() -> None:
    """The database gives each epoch once."""
    tenure = _in_state(TenureState.LOST)
    tenure.rejoin()
    with pytest.raises(AssertionError):
        tenure.join(1, 20.0)


# ---- the simulation


@settings(max_examples=300)
@given(SEEDS)
def test_two_nodes_never_act_on_one_lease(seed: int) -> None:
    """Through freezes, slow and lost answers, outages, and clocks that differ."""
    Simulation(seed).run(20.0)


@settings(max_examples=100)
@given(SEEDS)
def test_an_outage_makes_nobody_dead(seed: int) -> None:
    """Nodes that beat whenever they can are not counted out, however long and often the database is away."""
    simulation = Simulation(seed, freezes=False, delay_max_s=0.02)
    simulation.run(20.0)
    assert simulation.counted_out == []


def test_a_node_that_dies_is_counted_out_once() -> None:
    """The others see its beats stand still, and one counts it out within the lease, the margin and two beats."""
    simulation = Simulation(1, freezes=False, outages=False, delay_max_s=0.005)
    simulation.run(3.0)
    simulation.nodes[0].is_dead = True
    simulation.run(3.0 + LEASE_S * (1 + 1 / 6 + 2 / 6 + 1 / 6))
    assert simulation.counted_out == ["a"]
    assert simulation.database.members.keys() == {"b", "c"}


def test_nodes_act_most_of_the_time() -> None:
    """The rules above would also hold for nodes that never act."""
    simulation = Simulation(2, freezes=False, outages=False, delay_max_s=0.005)
    simulation.run(20.0)
    turns = 3 * 20.0 / LEASE_S * 6
    assert len(simulation.acted) > 0.9 * turns
