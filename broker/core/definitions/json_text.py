"""Reads JSON from outside, and refuses values that could not be written again.

Python's reader also accepts half surrogate pairs, NaN and numbers beyond every float. A definitions file cannot hold
them, so a broker with one of them in memory could never write its definitions again.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

__all__ = ["read_json"]

LEVELS_MAX: Final = 128  # of objects and arrays; Python's own limit differs from version to version
HALF_PAIR: Final = "\\ud"  # the prefix of any surrogate escape, paired or not


def read_json(octets: bytes) -> Any:
    """Return the value of a JSON text in UTF-8, of at most `LEVELS_MAX` levels.

    Raises: ValueError, in one line. Cost: linear.
    """
    text = octets.decode()  # not by json.loads itself, which lets surrogates through and guesses at UTF-16
    try:
        found = json.loads(text.removeprefix("\ufeff"), parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if text.count("[") + text.count("{") > LEVELS_MAX:
        _check_levels(found)
    if HALF_PAIR in text.lower():
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _check_levels(found: Any) -> None:
    level = [found]
    for _ in range(LEVELS_MAX + 1):
        if not level:
            return
        lists = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [inner for one in lists for inner in one]
    raise ValueError("nested too deeply")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"the number {text[:40]} is too large")
    return value
