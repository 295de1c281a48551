"""Reads JSON from outside, and refuses values that could not be written again.

Python's reader also accepts half surrogate pairs, NaN and numbers beyond every float. A definitions file cannot hold
them, so a broker with one of them in memory could never write its definitions again.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

__all__ = ["read_json"]

HALF_PAIR: Final = "\\ud"  # the prefix of any surrogate escape, paired or not


def read_json(octets: bytes) -> Any:
    """Return the value of a JSON text in UTF-8. Raises: ValueError, in one line. Cost: linear."""
    text = octets.decode()  # not by json.loads itself, which lets surrogates through and guesses at UTF-16
    try:
        found = json.loads(text.removeprefix("\ufeff"), parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if HALF_PAIR in text.lower():
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"the number {text[:40]} is too large")
    return value
