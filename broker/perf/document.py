"""Converts dataclasses to JSON documents and back, strictly: an error names the place of the wrong value."""

from __future__ import annotations

import json
import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from broker.perf.faults import BadDocument

T = TypeVar("T")

_SHOWN_LETTERS: Final = 40
_MOST: Final = 1e300  # a larger number is not a real measurement, and the next sum of it would be infinite
_EXPECTED: Final[dict[type, tuple[tuple[type, ...], str]]] = {  # JSON types of a field's type, and their name
    dict: ((dict,), "an object"),
    tuple: ((list,), "a list"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    bool: ((bool,), "true or false"),
}


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
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is object:
        return value
    if origin is types.UnionType:
        return None if value is None else _decoded(inner[0], value, where)
    accepted, expected = _EXPECTED[dict if is_dataclass(origin) else origin]
    if type(value) not in accepted or (origin is float and not abs(value) <= _MOST):
        raise _other(value, expected, where)
    if is_dataclass(origin):
        return _decoded_dataclass(kind, value, where)
    if origin is dict:
        return {name: _decoded(inner[1], item, _under(where, name)) for name, item in value.items()}
    if origin is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(value) != len(kinds):
            raise BadDocument(f"{where}: expected a list of {len(kinds)}, found one of {len(value)}")
        items = enumerate(zip(kinds, value, strict=True))
        return tuple(_decoded(kind, item, f"{where}[{at}]") for at, (kind, item) in items)
    return value


def _decoded_dataclass(kind: Any, given: dict[str, Any], where: str) -> Any:
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


def _other(value: Any, expected: str, where: str) -> BadDocument:
    found = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else _cut(json.dumps(value))
    return BadDocument(f"{where + ': ' if where else ''}expected {expected}, found {found}")


def _under(where: str, name: str) -> str:
    return f"{where}.{_cut(name)}" if where else _cut(name)


def _cut(text: str) -> str:
    shown = text if text.isprintable() else ascii(text)
    return shown if len(shown) <= _SHOWN_LETTERS else f"{shown[:_SHOWN_LETTERS]}..."


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a number")
