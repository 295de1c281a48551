"""Runs random scenarios of the overlay by their seeds: `python -m tests.overlay.seeds FIRST LAST [forgetful]`.

With `forgetful` publishing leaves do not find V_m again after a crash.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from random import Random
from typing import Final

from tests.overlay.scenario import SimulationOutcome, Story, random_scenario

PUBLISHERS: Final = ("remembering", "forgetful")


def simulate(seeds: Iterable[int], publishers: Iterable[str]) -> SimulationOutcome:
    """Run the scenarios of some seeds with some kinds of publishers. The error of one that fails tells its seed."""
    total = SimulationOutcome()
    for seed in seeds:
        for kind in publishers:
            dice = Random(seed)
            try:
                story = Story(random_scenario(dice), dice, forgets_vectors=kind == "forgetful")
                total.add(story.run())
            except Exception as error:
                error.add_note(f"seed {seed}, {kind}")
                raise
    return total


def main(first: int, last: int, *publishers: str) -> None:
    """Run the seeds from `first` up to, not including, `last`, and print what failed and all outcomes together."""
    for kind in publishers or PUBLISHERS:
        total = SimulationOutcome()
        failed = 0
        for seed in range(first, last):
            try:
                total.add(simulate([seed], [kind]))
            except Exception as error:  # noqa: BLE001 - any failure of a seed is a finding; the others go on
                failed += 1
                print(f"{type(error).__name__} {error} {error.__notes__}", flush=True)
        print(f"{kind}: seeds {first} to {last - 1}, {failed} failed", *total.lines(), sep="\n  ", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
