"""The outcome of an import: how many entries it created, changed and found unchanged, and which have no effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from broker.administration.definitions import IDENTITIES, PAUSED_QUEUE, VHOST_LIMITS, Key, key_of, same_row
from broker.core.definitions.document import Document, row_of
from broker.core.policy.policy_definition import keys_without_effect


class ImportTally:
    """Count the entries of an import by kind: `made` were missing, `changed` had other values, `present` were equal.

    Shapes: `before` maps keys to the rows that were stored before the import.
    """

    def __init__(self, document: Document, before: Mapping[Key, Any]) -> None:
        self._document = document
        self._before = before
        self.made: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self.present: Counter[str] = Counter()
        self.without_effect: list[str] = []

    def declared(self, part: str, *, new: bool) -> None:
        """Count an exchange, a queue or a binding as made or present; an import never changes one."""
        (self.made if new else self.present)[part] += 1

    def restart(self, present: Counter[str]) -> None:
        """Start over with the entries that were present before anything was declared."""
        self.made, self.present = Counter(), present.copy()

    def comparing(self, after: Mapping[Key, Any]) -> Generator[None, None, None]:
        """Count the broker-wide entries, one per step, and list those without effect."""
        for part in IDENTITIES:
            for entry in getattr(self._document, part):
                yield
                key = key_of(*row_of(part, entry))
                row, old = after.get(key), self._before.get(key)
                if row is None:  # the entry was not stored
                    names = ", ".join(key[1:])
                    self.without_effect.append(f"{part.removesuffix('s')} of a user of the settings: {names}")
                elif old is None:
                    self.made[part] += 1
                else:
                    (self.present if same_row(row, old) else self.changed)[part] += 1
        self.without_effect += _without_effect(self._document)

    def clear(self) -> None:
        """Drop the references to all entries, so that their owner can free them in slices."""
        self._document, self._before = Document(), {}

    def fields(self) -> dict[str, Any]:
        """Return the counts for the log and the command line."""
        counts = {"made": self.made, "changed": self.changed, "present": self.present}
        return {**{name: dict(count) for name, count in counts.items()}, "without_effect": self.without_effect}


def _without_effect(document: Document) -> Iterator[str]:
    """Yield the parameters and keys of policies that are only stored and exported, and the lists that are ignored."""
    for parameter in document.parameters:
        if parameter["component"] not in (PAUSED_QUEUE, VHOST_LIMITS):
            yield "parameter {component} '{name}' in vhost '{vhost}'".format(**parameter)
    for one in document.global_parameters:
        yield f"global parameter '{one['name']}'"
    for policy in document.policies:
        keys = keys_without_effect(policy.get("value", policy)["definition"])
        if keys:
            kind = "operator policy" if "component" in policy else "policy"
            yield f"{', '.join(keys)} of {kind} '{policy['name']}' in vhost '{policy['vhost']}'"
    for name in document.unknown:
        yield f"the list '{name}', which is not known here and is not kept"
