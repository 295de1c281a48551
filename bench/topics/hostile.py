"""Generates hostile sets: many patterns, in families designed to match at every word, and the long keys that match."""

from __future__ import annotations

from itertools import product
from random import Random

_LONG = 64
_LETTERS = 40


def families(count: int) -> dict[str, tuple[list[str], list[str]]]:
    """Return for each family, by its pattern form, `count` patterns and keys of 64 words."""
    random = Random(11)
    letters = [f"a{number}" for number in range(_LETTERS)]
    mixed = [".".join(random.choices(letters, k=_LONG)) for _ in range(500)]
    nearly_same = [".".join("b1" if random.random() < 0.03 else "a0" for _ in range(_LONG)) for _ in range(500)]
    numbers = range(count)
    return {
        "#.a.#": ([f"#.a{number}.#" for number in numbers], mixed),
        "#.a.#.b": ([f"#.{letters[number % _LETTERS]}.#.b{number // _LETTERS}" for number in numbers], mixed),
        "#.a.b.c.#": (_runs(letters, count), mixed),
        "a.#.b": ([f"{letters[number % _LETTERS]}.#.b{number // _LETTERS}" for number in numbers], mixed),
        "#.*.a.*.#": (_star_runs(count), nearly_same),
    }


def _runs(letters: list[str], count: int) -> list[str]:
    """Return runs of three letters after a `#` and before another."""
    return [f"#.{'.'.join(run)}.#" for run, _ in zip(product(letters, repeat=3), range(count), strict=False)]


def _star_runs(count: int) -> list[str]:
    """Return all forms of a run of one letter with stars: a match reaches every node of the patterns."""
    length = max(2, count.bit_length())
    runs = product(("a0", "*"), repeat=length)
    return [f"#.a0.{'.'.join(run)}.z.#" for run, _ in zip(runs, range(count), strict=False)]
