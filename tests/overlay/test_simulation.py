"""The promises of the overlay hold in simulated networks with faults."""

from __future__ import annotations

from random import Random

import pytest

from broker.overlay.simulation.scenario import Story, random_scenario

BATCH = 50


def simulate(first: int, last: int) -> None:
    """Run the scenarios of these seeds, and tell the seed of one that fails."""
    for seed in range(first, last):
        dice = Random(seed)
        try:
            Story(random_scenario(dice), dice).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, BATCH))
def test_random_scenarios(first: int) -> None:
    """No message is missing or comes twice, and everything settles."""
    simulate(first, first + BATCH)


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(500, 20_500, 1_000))
def test_many_random_scenarios(first: int) -> None:
    """The same for many more seeds."""
    simulate(first, first + 1_000)
