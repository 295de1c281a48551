"""Parses comma-separated names on a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def choices(known: Collection[str], *, empty: bool = False) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of "a,b" into names, for argparse's `type`; it refuses unknown names.

    An empty text is refused, too, unless it may be `empty`.
    """

    def names_of(text: str) -> tuple[str, ...]:
        names = tuple(text.split(",")) if text or not empty else ()
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
        return names

    return names_of
