"""Sections and fields of settings. The string below a field describes it.

`slotmq config example` reads these descriptions from the source (`cli/config.py`); the broker does not need them.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from broker.quantities import duration_ms, size_bytes

KiB: Final = 1 << 10
MiB: Final = 1 << 20
GiB: Final = 1 << 30

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

# When a changed setting takes effect after a reload. A field without either needs a restart.
AT_ONCE: Final = "at once"
NEXT_CONNECTION: Final = "for new connections"


def _in_unit(value: Any, *, unit: str) -> Any:
    """Return a string as a number in the key's unit, and any other value unchanged. Raises: ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return int(value)  # negative too: the range refuses it
    except ValueError:
        pass
    if unit == "bytes":
        return size_bytes(value)
    return duration_ms(value) if unit == "ms" else duration_ms(value, plain_ms=1000) / 1000


# The types of sizes and times: a number in the unit that ends the key's name, or a string with a unit.
Size = Annotated[int, BeforeValidator(partial(_in_unit, unit="bytes"))]
Milliseconds = Annotated[int, BeforeValidator(partial(_in_unit, unit="ms"))]
Seconds = Annotated[int, BeforeValidator(partial(_in_unit, unit="s"))]


def checked_name(name: str) -> str:
    """Check the name of a broker or of a node, and return it. Raises: ValueError."""
    if NAME.fullmatch(name) is None:
        raise ValueError("should be 1 to 64 letters, digits, dots, hyphens or underscores, a letter or digit first")
    return name


def number(default: float, low: float, high: float, unit: str = "", source: str = "", *, reload: str = "") -> Any:
    """Return a numeric field with a range. Shapes: `source` is the origin of the default, such as a standard."""
    extra: dict[str, Any] = {"unit": unit, "source": source, "reload": reload}
    return Field(default=default, ge=low, le=high, json_schema_extra=extra)


def text(default: str = "", *, least: int = 0, most: int = 4096, reload: str = "") -> Any:
    """Return a string field. Units: `least` and `most` are lengths in characters."""
    return setting(default, reload=reload, min_length=least, max_length=most)


def setting(default: Any, *, reload: str = "", **limits: Any) -> Any:
    """Return a field of any type; `limits` are pydantic's constraints."""
    return Field(default=default, json_schema_extra={"reload": reload}, **limits)


def reload_of(field: FieldInfo) -> str:
    """Return when a changed setting takes effect after a reload; empty if it needs a restart."""
    extra = field.json_schema_extra
    return str(extra.get("reload", "")) if isinstance(extra, dict) else ""


class SettingsSection(BaseModel):
    """One table of the settings file. Invariant: unknown keys are refused, and an instance does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
