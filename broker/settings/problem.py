"""Error messages for settings: one line for each invalid key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel

from broker.settings.settings import PREFIX, Settings, limits, sections

Layer = tuple[Callable[[str], str], Mapping[str, Any]]  # how a layer spells a key, and its values
Path = tuple[str | int, ...]

MEANINGS: Final = {
    "int": "should be a whole number",
    "float": "should be a number",
    "bool": "should be true or false",
    "string": "should be text",
    "tuple": "should be a list",
    "dict": "should be a table",
    "model": "should be a table",
    "path": "should be a path",
    "missing": "is missing",
}
"""The messages for the types of pydantic's errors, or for prefixes of these types."""


def problem_lines(faults: Sequence[Any], layers: Sequence[Layer] = ()) -> list[str]:
    """Return one line for each invalid key, spelled as in the layer that set it."""
    by_path: dict[Path, list[Any]] = {}
    for fault in faults:
        by_path.setdefault(_path(fault), []).append(fault)
    inner = {path[:length] for path in by_path for length in range(1, len(path))}
    found = []
    for path, of_key in by_path.items():
        if path in inner and all(fault["type"] in ("too_short", "missing") for fault in of_key):
            continue  # pydantic left out a faulty entry, which gets a line of its own
        found.append(_line(path, of_key, layers))
    return found


def _line(path: Path, faults: Sequence[Any], layers: Sequence[Layer]) -> str:
    where = _where(path, layers)
    if faults[0]["type"] == "extra_forbidden":
        return f"{where}: unknown key{_suggestion(path)}"
    text = " or ".join(dict.fromkeys(map(_message, faults))).replace(" or should be ", " or ")
    text = text.replace("' or true", "', true")
    if not path:  # two sections contradict each other; the text names the keys
        return text
    return f"{where}: {text}{_range(path)}"


def _path(fault: Any) -> Path:
    """Return the path of a fault, without the alternatives of a union type that pydantic adds."""
    path: Path = ()
    model: Any = Settings
    for part in fault["loc"]:
        is_model = isinstance(model, type) and issubclass(model, BaseModel)
        if is_model and part in model.model_fields:
            model = model.model_fields[part].annotation
        elif is_model and fault["type"] == "extra_forbidden":
            model = None
        elif isinstance(part, int) or getattr(model, "__origin__", None) is dict:
            model = (get_args(model) or (None,))[0 if isinstance(part, int) else -1]
        else:
            break
        path += (part,)
    return path


def _message(fault: Any) -> str:
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "literal_error":
        return f"should be {context['expected']}"
    if kind in ("string_too_short", "too_short") and context.get("min_length") == 1:
        return "should not be empty"
    text = MEANINGS.get(kind) or ("" if "_too_" in kind else MEANINGS.get(kind.partition("_")[0], ""))
    if not text:
        start = next((one for one in ("Value error, ", "Input ", "String ") if fault["msg"].startswith(one)), "")
        text = fault["msg"].removeprefix(start)
    return f"{text[0].lower()}{text[1:]}" if fault["loc"] else str(text)


def _where(path: Path, layers: Sequence[Layer]) -> str:
    """Return a key as spelled by the topmost layer that sets it, or that sets the nearest table around it.

    A list is set by one layer as a whole.
    """
    for length in range(_list_at(path), 0, -1):
        for name, layer in reversed(layers):
            if _has(layer, path[:length]):
                return _name(path, name)
    return _name(path)


def _list_at(path: Path) -> int:
    return next((at for at, part in enumerate(path) if isinstance(part, int)), len(path))


def _name(path: Path, name: Callable[[str], str] = str) -> str:
    """Return a key as `name` spells it; list entries are counted from 1."""
    first = _list_at(path)
    rest = "".join(f"[#{part + 1}]" if isinstance(part, int) else f".{part}" for part in path[first:])
    return name(".".join(map(str, path[:first]))) + rest


def _has(layer: Any, path: Path) -> bool:
    for part in path:
        if not isinstance(layer, Mapping) or part not in layer:
            return False
        layer = layer[part]
    return True


def _suggestion(path: Path) -> str:
    """Return "did you mean" with the most similar known key, or an empty text if none is similar."""
    model: Any = Settings
    for part in path[:-1]:
        model = get_args(model)[0] if isinstance(part, int) else model.model_fields[part].annotation
    if len(path) > 2:
        return nearest(str(path[-1]), list(model.model_fields))
    known = [f"{section}.{field}" for section, _model, fields in sections() for field in fields]
    if len(path) == 1:
        known = [section for section, _model, _fields in sections()] + known
    return nearest(_name(path), known)


def _range(path: Path) -> str:
    """Return the allowed range with its unit, or an empty text if the key has no range."""
    for section, _model, fields in sections():
        field = fields.get(str(path[-1]))
        extra = None if field is None or len(path) != 2 or section != path[0] else field.json_schema_extra
        if field is not None and isinstance(extra, dict) and "unit" in extra:
            low, high = limits(field)
            return f" ({low} to {high} {extra['unit']}".rstrip() + ")"
    return ""


def nearest(name: str, known: Sequence[str], delimiter: str = ".") -> str:
    """Return "did you mean" with the most similar known name, or an empty text if none is similar.

    For a key without a section, the first section that has a similar key is suggested.
    """
    given_section, _, given_key = name.removeprefix(PREFIX).rpartition(delimiter)
    names = {other.removeprefix(PREFIX): other for other in known}
    # A single underscore between section and key, as in SLOTMQ_SERVER_PORT, is a frequent mistake.
    found = [other for other in names if _letters(other) == _letters(given_section + given_key)]
    if not found:
        from difflib import get_close_matches  # noqa: PLC0415 - only needed after a mistake

        keys = {other: other.rpartition(delimiter)[2] for other in names}
        close = get_close_matches(given_key, list(keys.values()), n=1, cutoff=1.0 if given_section else 0.7)
        found = [other for other, key in keys.items() if key in close or given_key.endswith(f"_{key}")]
        cutoff = 0.8 if found else 0.4 if given_section else 0.6
        within = [other for other in names if other.startswith(given_section + delimiter)]
        whole = get_close_matches(given_section + delimiter + given_key, within or list(names), n=1, cutoff=cutoff)
        found = whole if given_section and whole else found or whole
    return f"; did you mean {names[found[0]]}?" if found else ""


def _letters(name: str) -> str:
    return name.replace("_", "").replace(".", "")
