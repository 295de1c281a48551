"""Runs random scenarios of the overlay by their seeds: `python -m tests.overlay.seeds FIRST LAST`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from random import Random

from tests.overlay.scenario import Simulation, SimulationOutcome, random_scenario


def simulate(seeds: Iterable[int]) -> SimulationOutcome:
    """Run the scenarios of the seeds. An exception gets a note with the seed that failed."""
    total = SimulationOutcome()
    for seed in seeds:
        dice = Random(seed)
        try:
            total.add(Simulation(random_scenario(dice), dice).run())
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return total


def main(first: int, last: int) -> None:
    """Run the seeds from `first` up to but not including `last`; print the failures and the total outcome."""
    total = SimulationOutcome()
    failed = 0
    for seed in range(first, last):
        try:
            total.add(simulate([seed]))
        except Exception as error:  # noqa: BLE001 - a failed seed must not stop the others
            failed += 1
            print(f"{type(error).__name__} {error} {error.__notes__}", flush=True)
    print(f"seeds {first} to {last - 1}, {failed} failed", *total.lines(), sep="\n  ", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
