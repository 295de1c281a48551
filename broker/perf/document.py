"""Converts dataclasses to JSON documents and back, strictly: an error names the place of the wrong value."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

_SHOWN_LETTERS = 40


class BadDocument(Exception):
    """A document of the wrong form; the text is one line that says where."""


def encode(value: Any) -> Any:
    """Return the JSON form of a value: an object for a dataclass, a list for a tuple."""
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: encode(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def parse(text: str) -> Any:
    """Return the value of a JSON text.

    Raises: BadDocument, also for numbers that JSON does not define.
    """
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise BadDocument("not JSON: nested too deep") from None
    except ValueError as error:
        raise BadDocument(f"not JSON: {error}") from None


def decode(kind: type[T], value: Any, where: str = "") -> T:
    """Return the dataclass (or list, or number ...) of type `kind` that a JSON value represents.

    Raises: BadDocument for a missing or unknown key, or a value of another type.
    """
    made: T = _decoded(kind, value, where)
    return made


def _decoded(kind: Any, value: Any, where: str) -> Any:
    origin = get_origin(kind)
    if kind is object:
        return value
    if origin is types.UnionType:
        inner = next(option for option in get_args(kind) if option is not type(None))
        return None if value is None else _decoded(inner, value, where)
    if origin is dict:
        items = _expect(value, dict, "an object", where).items()
        return {name: _decoded(get_args(kind)[1], item, _under(where, name)) for name, item in items}
    if origin is tuple:
        return _decoded_tuple(get_args(kind), value, where)
    if is_dataclass(kind):
        return _decoded_dataclass(kind, value, where)
    return _SCALARS[kind](value, where)


def _decoded_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    items = _expect(value, list, "a list", where)
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(items)
    elif len(items) != len(kinds):
        raise BadDocument(f"{where}: expected a list of {len(kinds)}, found one of {len(items)}")
    return tuple(
        _decoded(kind, item, f"{where}[{at}]") for at, (kind, item) in enumerate(zip(kinds, items, strict=True))
    )


def _decoded_dataclass(kind: Any, value: Any, where: str) -> Any:
    given = _expect(value, dict, "an object", where)
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    for name in given:
        if name not in known:
            raise BadDocument(f"{_under(where, _cut(name))}: unknown")
    made = {}
    for name, field in known.items():
        if name in given:
            made[name] = _decoded(hints[name], given[name], _under(where, name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise BadDocument(f"{_under(where, name)}: missing")
    return kind(**made)


def _whole(value: Any, where: str) -> int:
    if type(value) is not int:
        raise _other(value, "a whole number", where)
    return value


def _number(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not abs(value) <= _MOST:
        raise _other(value, "a number", where)
    return float(value) if type(value) is float else value


def _text(value: Any, where: str) -> str:
    return str(_expect(value, str, "a text", where))


def _bit(value: Any, where: str) -> bool:
    return bool(_expect(value, bool, "true or false", where))


_MOST = 1e300  # a larger number is no real measurement, and the next sum of it would be infinite
_SCALARS: dict[type, Callable[[Any, str], Any]] = {int: _whole, float: _number, str: _text, bool: _bit}


def _expect(value: Any, kind: type, name: str, where: str) -> Any:
    if not isinstance(value, kind):
        raise _other(value, name, where)
    return value


def _other(value: Any, expected: str, where: str) -> BadDocument:
    found = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else _cut(json.dumps(value))
    return BadDocument(f"{where + ': ' if where else ''}expected {expected}, found {found}")


def _under(where: str, name: str) -> str:
    return f"{where}.{_cut(name)}" if where else _cut(name)


def _cut(text: str) -> str:
    shown = text if text.isprintable() else ascii(text)
    return shown if len(shown) <= _SHOWN_LETTERS else f"{shown[:_SHOWN_LETTERS]}..."


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")
