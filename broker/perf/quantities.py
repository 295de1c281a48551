"""Parses quantities as people write them: 30s, 1KiB, 10k, 1%."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Final

_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z%]*)")
_SECONDS: Final = {"": 1.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES: Final = {
    "": 1, "b": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
}  # fmt: skip
_TIMES: Final = {"": 1, "k": 1000, "m": 10**6}
_MOST: Final = 10**15


def duration(text: str) -> float:
    """Return the seconds of 30, 30s, 500ms, 5m or 1h.

    Raises: ArgumentTypeError, like every function here.
    """
    return _read(text, _SECONDS, "a time such as 30s, 500ms or 5m")


def size(text: str) -> int:
    """Return the bytes of 16, 1KiB, 64kB or 1MiB."""
    return _whole(text, _BYTES, "a size such as 16, 1KiB or 64kB", 0)


def count(text: str) -> int:
    """Return the number of 1000, 10k or 2M; at least 1."""
    return _whole(text, _TIMES, "a number such as 1000 or 10k, at least 1", 1)


def count_or_none(text: str) -> int:
    """Return the number of 0, 1000, 10k or 2M."""
    return _whole(text, _TIMES, "a number such as 0, 1000 or 10k", 0)


def rate(text: str) -> float:
    """Return the events per second of 0.5, 1000 or 10k; more than 0."""
    value = _read(text, _TIMES, "a rate per second such as 0.5, 1000 or 10k")
    if not value:
        raise ArgumentTypeError(f"{text!r} is not a rate: leave it out for as fast as possible")
    return value


def share(text: str) -> float:
    """Return 1% or 0.01 as a fraction of 1."""
    value = _read(text, {"": 1.0, "%": 0.01}, "a share such as 1% or 0.01")
    if value > 1:
        raise ArgumentTypeError(f"{text!r} is more than all")
    return value


def argument(text: str) -> tuple[str, str | int | bool]:
    """Return the name and value of K=V; digits become an integer, true and false a bool."""
    name, equals, value = text.partition("=")
    if not equals or not name or len(name.encode()) > 255:
        raise ArgumentTypeError(f"{text!r} is not K=V")
    if re.fullmatch(r"-?[0-9]{1,18}", value):
        return name, int(value)
    return name, {"true": True, "false": False}.get(value, value)


def at_most(kind: Callable[[str], int], most: int, limit: str) -> Callable[[str], int]:
    """Return a parser of numbers up to `most`, which is the most that `limit`."""

    def parse(text: str) -> int:
        value = kind(text)
        if value > most:
            raise ArgumentTypeError(f"{text!r} is more than {most}, the most that {limit}")
        return value

    return parse


def _read(text: str, units: dict[str, float] | dict[str, int], expected: str) -> float:
    found = _QUANTITY.fullmatch(text.strip())
    unit = units.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ArgumentTypeError(f"{text!r} is not {expected}")
    value = float(found[1]) * unit
    if value > _MOST:
        raise ArgumentTypeError(f"{text!r} is too much")
    return value


def _whole(text: str, units: dict[str, int], expected: str, least: int) -> int:
    value = _read(text, units, expected)
    if value < least or value != int(value):
        raise ArgumentTypeError(f"{text!r} is not {expected}")
    return int(value)
