"""Differences between the settings of a running broker and the settings that a reload has read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from broker.settings.fields import reload_of
from broker.settings.settings import Settings, sections

REDACTED: Final = "***"


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value differs. Shapes: `old` and `new` are JSON values, with secrets redacted."""

    section: str
    key: str
    old: Any
    new: Any
    needs_restart: bool

    def row(self) -> dict[str, Any]:
        return {"key": f"{self.section}.{self.key}", "old": self.old, "new": self.new}


def changes(running: Settings, wanted: Settings) -> list[Change]:
    """Return a change for every key that differs, in the order of the documented settings file."""
    found = []
    for section, _model, fields in sections():
        # A reload neither adds nor removes the TLS listener.
        needs_restart = section == "tls" and running.tls.is_on != wanted.tls.is_on
        for key, field in fields.items():
            old, new = getattr(getattr(running, section), key), getattr(getattr(wanted, section), key)
            if old != new:
                found.append(Change(section, key, shown(old), shown(new), needs_restart or not reload_of(field)))
    return found


def in_force(settings: Settings) -> dict[str, Any]:
    """Return the explicitly set settings, with secrets redacted, and the folder to which their paths are relative."""
    return {"folder": str(Path().absolute()), "settings": settings.model_dump(mode="json", exclude_unset=True)}


def merged(running: Settings, wanted: Settings, applied: Iterable[Change]) -> Settings:
    """Return the running settings, with the wanted values for the keys of `applied`."""
    values: dict[str, dict[str, Any]] = {}
    for change in applied:
        values.setdefault(change.section, {})[change.key] = getattr(getattr(wanted, change.section), change.key)
    return running.model_copy(
        update={section: getattr(running, section).model_copy(update=update) for section, update in values.items()}
    )


def shown(value: Any) -> Any:
    """Return a value for the log and the command line, with secrets redacted."""
    if isinstance(value, SecretStr):
        return REDACTED
    if isinstance(value, Mapping):
        return {name: shown(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value
