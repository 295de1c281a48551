"""The promises of the overlay hold in simulated networks with faults, by both schemes of subscription propagation."""

from __future__ import annotations

import pytest

from tests.overlay.seeds import SCHEMES, simulate

BATCH = 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, BATCH))
@pytest.mark.parametrize(("scheme", "remainder"), [("replicas", 0), ("constraints", 1), ("forgetful", 2)])
def test_random_scenarios(scheme: str, remainder: int, first: int) -> None:
    """No message is missing or comes twice, and everything settles."""
    simulate(range(first + remainder, first + BATCH, 3), [scheme])


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(500, 20_500, 1_000))
@pytest.mark.parametrize("scheme", SCHEMES)
def test_many_random_scenarios(scheme: str, first: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for many more seeds; what happened in all of them is printed."""
    total = simulate(range(first, first + 1_000), [scheme])
    with capsys.disabled():
        print(f"\n{scheme}: seeds {first} to {first + 999}", *total.lines(), sep="\n  ")
