"""What settings are made of: sections, and fields that say their unit, their limits and where a number comes from."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

__all__ = ["AT_ONCE", "NEXT_CONNECTION", "GiB", "KiB", "MiB", "SettingsSection", "number", "reload_of", "text"]

KiB: Final = 1 << 10
MiB: Final = 1 << 20
GiB: Final = 1 << 30

# When a changed setting holds after a reload. A field without either needs a restart.
AT_ONCE: Final = "at once"
NEXT_CONNECTION: Final = "for new connections"


def number(
    default: float, low: float, high: float, unit: str, meaning: str, source: str = "", *, reload: str = ""
) -> Any:
    """Return the field of a limit. Units: as `unit` says; the name of the key ends with it."""
    extra: dict[str, Any] = {"unit": unit, "source": source, "reload": reload}
    return Field(default=default, ge=low, le=high, description=meaning, json_schema_extra=extra)


def text(default: str, meaning: str) -> Any:
    """Return the field of a string that must say something."""
    return Field(default=default, min_length=1, max_length=4096, description=meaning)


def reload_of(field: FieldInfo) -> str:
    """Return when a changed setting holds after a reload; empty for one that needs a restart."""
    extra = field.json_schema_extra
    return str(extra.get("reload", "")) if isinstance(extra, dict) else ""


class SettingsSection(BaseModel):
    """One table of the file. Invariant: no key that the model does not know, and no change after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
