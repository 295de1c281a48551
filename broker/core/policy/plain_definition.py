"""The definition of a policy as the command line and the web page accept it: with units and plain errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from broker.core.policy.policy_definition import KEYS, OPERATOR_KEYS, keys_in_effect, takes
from broker.quantities import duration_ms, size_bytes

__all__ = ["plain_definition"]

UNITS: Final = {
    "message-ttl": "ms",
    "expires": "ms",
    "delayed-retry-min": "ms",
    "delayed-retry-max": "ms",
    "max-length-bytes": "bytes",
    "max-in-memory-bytes": "bytes",
}
"""The keys that are a size or a time, and the unit of their number."""
WITH_UNIT: Final = {
    "ms": "a number of milliseconds, or a time such as 30s or 7d",
    "bytes": "a number of bytes, or a size such as 512MiB or 10GB",
}


def plain_definition(definition: Mapping[str, Any], *, operator: bool) -> dict[str, Any]:
    """Return a definition whose sizes and times are numbers, as RabbitMQ has them.

    Raises: ValueError for the first key that is unknown or has an invalid value.
    """
    kind = "an operator policy" if operator else "a policy"
    if not definition:
        raise ValueError(f"{kind} needs at least one key, such as max-length")
    known = OPERATOR_KEYS if operator else KEYS
    found = {}
    for key, value in definition.items():
        if key not in known:
            from difflib import get_close_matches  # noqa: PLC0415 - a mistake is rare

            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(keys_in_effect(operator=operator))}"
            raise ValueError(f"{kind} has no key '{key}'; {hint}")
        found[key] = _in_unit(value, UNITS.get(key, ""))
        if not takes(key, found[key]):
            said = WITH_UNIT.get(UNITS.get(key, ""), known[key])
            raise ValueError(f"'{key}' should be {said}, not {_shown(value)}")
    return found


def _in_unit(value: Any, unit: str) -> Any:
    """Return a text with a unit as its number; anything else stays as it is."""
    if not unit or not isinstance(value, str):
        return value
    try:
        return size_bytes(value) if unit == "bytes" else duration_ms(value)
    except ValueError:
        return value


def _shown(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
