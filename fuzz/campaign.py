"""A campaign: a number of inputs for one target, each from its own seed, with progress and a count of the outcomes."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random

Target = Callable[[Random], str]
"""Generates one input from the randomness, checks it by assertions, and returns its outcome as a word."""


class Failed(AssertionError):
    """An input broke an assertion; the text names the input and the command that repeats it."""


def run(
    target: Target, *, inputs: int, seed: int, first: int = 0, tell: Callable[[int], None] | None = None
) -> Counter[str]:
    """Return the count of each outcome.

    Raises: Failed at the first input that breaks an assertion.
    """
    outcomes: Counter[str] = Counter()
    for number in range(first, first + inputs):
        try:
            outcomes[target(Random(f"{seed}:{number}"))] += 1
        except Exception as error:
            again = f"--seed {seed} --first {number} --inputs 1"
            raise Failed(f"input {number}: {type(error).__name__}: {error} (again with {again})") from error
        if tell is not None:
            tell(number + 1 - first)
    return outcomes


def main(name: str, target: Target) -> int:
    """Run a campaign from the command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m fuzz.{name}", description=f"Fuzzes the {name}.")
    parser.add_argument("--inputs", type=int, default=100_000, help="how many inputs (100000)")
    parser.add_argument("--seed", type=int, default=0, help="what all inputs are made from (0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first input, to run one again (0)")
    arguments = parser.parse_args()
    begun = shown = time.monotonic()

    def tell(done: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= 1 or done == arguments.inputs:
            shown = now
            left_s = (now - begun) / done * (arguments.inputs - done)
            rate = done / (now - begun)
            line = f"\r{done:,} of {arguments.inputs:,} inputs, {rate:,.0f}/s, {left_s:,.0f} s left   "
            sys.stderr.write(line)
            sys.stderr.flush()

    try:
        outcomes = run(target, inputs=arguments.inputs, seed=arguments.seed, first=arguments.first, tell=tell)
    except Failed as failure:
        sys.stderr.write(f"\n{failure}\n")
        if arguments.inputs == 1 and failure.__cause__ is not None:
            raise failure.__cause__ from None
        return 1
    sys.stderr.write("\n")
    for outcome, count in sorted(outcomes.items(), key=lambda item: -item[1]):
        sys.stdout.write(f"{count:>10,}  {outcome}\n")
    return 0
