"""Small networks in every order, with faults: no message that is wanted is ever filtered."""

from __future__ import annotations

import pytest

from broker.overlay.interest import Interest
from tests.overlay.reference.constraints import ConstraintInterest
from tests.overlay.reference.empty_increments import EmptyIncrementsEnd
from tests.unit.overlay.small_model import Scenario, SmallModel

SCENARIOS = [
    # What is subscribed is hidden by a pattern that is withdrawn meanwhile.
    Scenario("hidden", (["a.b"], ["a.*"]), (((["a.c"], []), (["b"], ["a.b"])), (([], ["a.*"]), (["a.*"], [])))),
    # Both leaves want the same, and one does not any more.
    Scenario("shared", (["a"], ["a"]), ((([], ["a"]), (["a"], [])), ((["b"], []), (["c"], ["a"])))),
    # Everything, and nothing.
    Scenario("wide", (["#"], []), (((["a"], ["#"]), (["#"], ["a"])), ((["a.#"], []), (["a.b"], ["a.#"])))),
]
SCHEMES = pytest.mark.parametrize("scheme", [Interest, ConstraintInterest])
EACH = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@SCHEMES
@EACH
def test_every_order_of_two_updates_each(scheme: type[Interest], scenario: Scenario) -> None:
    """Two leaves and two siblings: each order at each sibling, each merge, with one packet lost on the last link."""
    model = SmallModel(scheme, scenario)
    plain = model.traces(model.plain_ops())
    for one in plain:
        for other in plain:
            model.run_publisher(one, other)
    assert model.states > 1000


@EACH
def test_every_order_without_empty_increments(scenario: Scenario) -> None:
    """The paper's second variant, with one tree node between publisher and subscribers: each reading of V_m holds."""
    model = SmallModel(EmptyIncrementsEnd, scenario)
    plain = model.traces(model.plain_ops())
    for one in plain:
        model.run_publisher(one, plain[0])
    assert model.check_readings() > 0 or not model.readings


@pytest.mark.slow
@SCHEMES
def test_one_fault_at_a_sibling(scheme: type[Interest]) -> None:
    """A lost or repeated update, a full state out of turn, or a crash, against the other sibling without a fault.

    The long test has all runs, this one a third of those that differ.
    """
    model = SmallModel(scheme, SCENARIOS[0])
    plain = model.traces(model.plain_ops())
    for trace in model.traces(model.middle_ops(in_order=True))[::3]:
        model.run_publisher(trace, plain[len(trace) % len(plain)])
    assert model.states > 2000


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("scheme", [Interest, ConstraintInterest, EmptyIncrementsEnd])
@EACH
def test_every_order_with_every_fault(scheme: type[Interest], scenario: Scenario) -> None:
    """Updates also overtake each other, and any of them are lost."""
    model = SmallModel(scheme, scenario)
    plain = model.traces(model.plain_ops())
    for trace in model.traces(model.middle_ops(in_order=False)):
        for other in plain:
            model.run_publisher(trace, other)
    assert model.states > 100_000
    model.check_readings()
