"""Small networks in every order, with faults: no message that is wanted is ever filtered."""

from __future__ import annotations

import pytest

from tests.unit.overlay.small_model import Scenario, SmallModel

SCENARIOS = [
    # What is subscribed is hidden by a pattern that is withdrawn meanwhile.
    Scenario("hidden", (["a.b"], ["a.*"]), (((["a.c"], []), (["b"], ["a.b"])), (([], ["a.*"]), (["a.*"], [])))),
    # Both leaves want the same, and one does not any more.
    Scenario("shared", (["a"], ["a"]), ((([], ["a"]), (["a"], [])), ((["b"], []), (["c"], ["a"])))),
    # Everything, and nothing.
    Scenario("wide", (["#"], []), (((["a"], ["#"]), (["#"], ["a"])), ((["a.#"], []), (["a.b"], ["a.#"])))),
]
EACH = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@EACH
def test_every_order_of_two_updates_each(scenario: Scenario) -> None:
    """Two leaves and two siblings: each order at each sibling, each merge, with one packet lost on the last link."""
    model = SmallModel(scenario)
    plain = model.traces(model.plain_ops())
    for one in plain:
        for other in plain:
            model.run_publisher(one, other)
    assert model.states > 1000


@pytest.mark.slow
def test_one_fault_at_a_sibling() -> None:
    """A lost or repeated update, a full state out of turn, or a crash, against the other sibling without a fault.

    The long test has all runs, this one a third of those that differ.
    """
    model = SmallModel(SCENARIOS[0])
    plain = model.traces(model.plain_ops())
    for trace in model.traces(model.middle_ops(in_order=True))[::3]:
        model.run_publisher(trace, plain[len(trace) % len(plain)])
    assert model.states > 2000


@pytest.mark.torture
@pytest.mark.timeout(0)
@EACH
def test_every_order_with_every_fault(scenario: Scenario) -> None:
    """Updates also overtake each other, and any of them are lost."""
    model = SmallModel(scenario)
    plain = model.traces(model.plain_ops())
    for trace in model.traces(model.middle_ops(in_order=False)):
        for other in plain:
            model.run_publisher(trace, other)
    assert model.states > 100_000
