"""Runs random scenarios of the overlay by their seeds: `python -m tests.overlay.seeds FIRST LAST [replicas]`.

With `forgetful` brokers use replicas and publishing leaves do not find V_m again after a crash.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from random import Random

from broker.overlay.interest import Interest
from tests.overlay.reference.constraints import ConstraintInterest
from tests.overlay.scenario import SimulationOutcome, Story, random_scenario

SCHEMES: dict[str, type[Interest]] = {
    "replicas": Interest,
    "constraints": ConstraintInterest,
    "forgetful": Interest,
}


def simulate(seeds: Iterable[int], schemes: Iterable[str]) -> SimulationOutcome:
    """Run the scenarios of some seeds by some schemes. The error of one that fails tells its seed."""
    total = SimulationOutcome()
    for seed in seeds:
        for scheme in schemes:
            dice = Random(seed)
            try:
                forgets = scheme == "forgetful"
                story = Story(random_scenario(dice), dice, scheme=SCHEMES[scheme], forgets_vectors=forgets)
                total.add(story.run())
            except Exception as error:
                error.add_note(f"seed {seed}, {scheme}")
                raise
    return total


def main(first: int, last: int, *schemes: str) -> None:
    """Run the seeds from `first` up to, not including, `last`, and print what failed and all outcomes together."""
    for scheme in schemes or SCHEMES:
        total = SimulationOutcome()
        failed = 0
        for seed in range(first, last):
            try:
                total.add(simulate([seed], [scheme]))
            except Exception as error:  # noqa: BLE001 - any failure of a seed is a finding; the others go on
                failed += 1
                print(f"{type(error).__name__} {error} {error.__notes__}", flush=True)
        print(f"{scheme}: seeds {first} to {last - 1}, {failed} failed", *total.lines(), sep="\n  ", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
