"""The promises of the overlay hold in simulated networks with faults."""

from __future__ import annotations

import pytest

from tests.overlay.seeds import simulate

BATCH = 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, BATCH))
@pytest.mark.parametrize("remainder", range(3))
def test_random_scenarios(remainder: int, first: int) -> None:
    """No message is missing or comes twice, and everything settles."""
    simulate(range(first + remainder, first + BATCH, 3))


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(500, 20_500, 1_000))
def test_many_random_scenarios(first: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for many more seeds; what happened in all of them is printed."""
    total = simulate(range(first, first + 1_000))
    with capsys.disabled():
        print(f"\nseeds {first} to {first + 999}", *total.lines(), sep="\n  ")
