"""Read JSON from outside, and refuse values that the broker could not write to its definitions file.

Python's parser accepts lone surrogates, NaN and numbers beyond the range of a float. A broker with one of them in
memory could never write its definitions again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any, Final, NoReturn

LEVELS_MAX: Final = 128  # levels of objects and arrays; Python's own limit differs from version to version
SURROGATE: Final = "\\ud"  # the prefix of a surrogate's escape, paired or not
SHORT: Final = 64 << 10  # octets that `read_json` reads in less than a millisecond


def read_json(octets: bytes) -> Any:
    """Return the value of a JSON text in UTF-8, of at most `LEVELS_MAX` levels.

    Raises: ValueError, in one line. Cost: linear.
    """
    text = octets.decode().removeprefix("\ufeff")  # json.loads would accept encoded surrogates and detect UTF-16
    try:
        found = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if text.count("[") + text.count("{") > LEVELS_MAX:
        _check_levels(found, LEVELS_MAX)
    if SURROGATE in text.lower():
        json.dumps(found, ensure_ascii=False).encode()
    return found


def reading_json(octets: bytes, outer_levels: int) -> Generator[None, None, Any]:
    """Parse as `read_json` does, yielding after each member of the `outer_levels` outermost levels.

    Raises: ValueError, in one line. Cost: each step parses one member; the first also decodes the whole text.
    """
    text = octets.decode().removeprefix("\ufeff")
    try:
        found, at = yield from _container(text, _next(text, 0), outer_levels)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    at = _next(text, at)
    if at != len(text):
        raise json.JSONDecodeError("Extra data", text, at)
    return found


def _container(
    text: str, at: int, outer_levels: int, levels_max: int = LEVELS_MAX
) -> Generator[None, None, tuple[Any, int]]:
    """Return the value that begins at `at`, and where it ends; yield after each member of its outer levels."""
    opened = text[at : at + 1]
    if not outer_levels or opened not in ("{", "["):
        return _member(text, at, {}, levels_max)
    table: dict[str, Any] = {}
    items: list[Any] = []
    found, closing = (table, "}") if opened == "{" else (items, "]")
    names: dict[str, str] = {}  # the names of the members' fields: equal ones share one string, as in json.loads
    name = ""
    at = _next(text, at + 1)
    if text[at : at + 1] == closing:
        return found, at + 1
    while True:
        if found is table:
            name, at = _name(text, at)
        if outer_levels > 1 and text[at : at + 1] in ("{", "["):
            value, at = yield from _container(text, at, outer_levels - 1, levels_max - 1)
        else:
            value, at = _member(text, at, names, levels_max - 1)
        if found is table:
            table[name] = value
        else:
            items.append(value)
        yield
        at = _next(text, at)
        end = text[at : at + 1]
        if end == closing:
            return found, at + 1
        if end != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _next(text, at + 1)


def _name(text: str, at: int) -> tuple[str, int]:
    """Return the name of an object's member, and where the member's value begins."""
    if text[at : at + 1] != '"':
        raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
    name, end = _DECODER.raw_decode(text, at)
    _check(text[at:end], name, LEVELS_MAX)
    at = _next(text, end)
    if text[at : at + 1] != ":":
        raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
    return name, _next(text, at + 1)


def _member(text: str, at: int, names: dict[str, str], levels_max: int) -> tuple[Any, int]:
    """Return the value that begins at `at`, and where it ends."""
    value, end = _DECODER.raw_decode(text, at)
    _check(text[at:end], value, levels_max)
    if isinstance(value, dict):
        value = {names.setdefault(name, name): inner for name, inner in value.items()}
    return value, end


def _next(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    assert found is not None, "the pattern matches the empty text"
    return found.end()


def _check(text: str, found: Any, levels_max: int) -> None:
    """Refuse a value that is nested too deeply or contains a lone surrogate. Raises: ValueError."""
    if text.count("[") + text.count("{") > levels_max:
        _check_levels(found, levels_max)
    if SURROGATE in text.lower():
        json.dumps(found, ensure_ascii=False).encode()


def _check_levels(found: Any, levels_max: int) -> None:
    level = [found]
    for _ in range(levels_max + 1):
        lists = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        if not lists:
            return
        level = [inner for one in lists for inner in one]
    raise ValueError("nested too deeply")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"the number {text[:40]} is too large")
    return value


_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
