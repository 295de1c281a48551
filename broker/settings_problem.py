"""What is wrong with settings, one line a fault: the key, and its range or the nearest known key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from broker.settings import PREFIX, limits, sections

__all__ = ["nearest", "problem"]

Layer = tuple[Callable[[str], str], Mapping[str, Any]]  # what it calls a key, and what it says


def problem(fault: Any, layers: Sequence[Layer] = ()) -> str:
    """Return the one line for a fault that pydantic found, naming the topmost layer that has the key."""
    path = [str(part) for part in fault["loc"]]
    key = ".".join(path)
    where = next((name(key) for name, layer in reversed(layers) if _has(layer, path)), key)
    if fault["type"] == "extra_forbidden":
        known = [f"{section}.{field}" for section, _model, fields in sections() for field in fields]
        if len(path) == 1:
            known = [section for section, _model, _fields in sections()] + known
        return f"{where}: unknown key{nearest(key, known)}"
    said = fault["msg"].removeprefix("Value error, ")  # what pydantic puts in front of our own words
    if not path:  # settings of two sections that do not go together; the words name them
        return str(said)
    return f"{where}: {said[0].lower()}{said[1:]}{_range(path)}"


def _has(layer: Any, path: Sequence[str]) -> bool:
    for part in path:
        if isinstance(layer, Sequence) and not isinstance(layer, str) and part.isdigit() and int(part) < len(layer):
            layer = layer[int(part)]
        elif isinstance(layer, Mapping) and part in layer:
            layer = layer[part]
        else:
            return False
    return True


def _range(path: Sequence[str]) -> str:
    """Return the allowed range and its unit, where the key has one."""
    for section, _model, fields in sections():
        field = fields.get(path[-1])
        extra = None if field is None or len(path) != 2 or section != path[0] else field.json_schema_extra
        if field is not None and isinstance(extra, dict) and "unit" in extra:
            low, high = limits(field)
            return f" ({low} to {high} {extra['unit']}".rstrip() + ")"
    return ""


def nearest(name: str, known: Sequence[str], delimiter: str = ".") -> str:
    """Return the question after the known name that was meant, nothing when none is near.

    Where only the key is known, and several sections have it, the first of the file is meant: a port that nobody
    qualifies is that of [server].
    """
    given_section, _, given_key = name.removeprefix(PREFIX).rpartition(delimiter)
    names = {other.removeprefix(PREFIX): other for other in known}
    found = [other for other in names if _letters(other) == _letters(given_section + given_key)]  # SLOTMQ_SERVER_PORT
    if not found:
        keys = {other: other.rpartition(delimiter)[2] for other in names}
        close = get_close_matches(given_key, list(keys.values()), n=1, cutoff=1.0 if given_section else 0.7)
        found = [other for other, key in keys.items() if key in close or given_key.endswith(f"_{key}")]
        cutoff = 0.8 if found else 0.4 if given_section else 0.6
        whole = get_close_matches(given_section + delimiter + given_key, list(names), n=1, cutoff=cutoff)
        found = whole if given_section and whole else found or whole
    return f"; did you mean {names[found[0]]}?" if found else ""


def _letters(name: str) -> str:
    return name.replace("_", "").replace(".", "")
