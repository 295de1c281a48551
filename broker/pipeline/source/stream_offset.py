"""Where a stream stands, as Spark keeps it in the checkpoint.

{"v": 1, "store": 32 hex digits, "seal": n}    it has passed that seal
"slots": k    how many slots there are between the offset before and this one: those of the batch that ends here
"gaps": n     what was gone up to that seal when the stream began is no loss of its own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from broker.pipeline.faults import SourceRefused

__all__ = ["StreamOffset"]

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """One offset."""

    store: str
    seal: int
    slots: int | None = None
    gaps: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns it as it stands in the checkpoint."""
        found: dict[str, Any] = {"v": VERSION, "store": self.store, "seal": self.seal}
        if self.slots is not None:
            found["slots"] = self.slots
        if self.gaps > self.seal:
            found["gaps"] = self.gaps
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Returns what a checkpoint says. Raises: SourceRefused."""
        version = found.get("v")
        if isinstance(version, int) and version > VERSION:
            raise SourceRefused(
                f"the checkpoint was written by a later SlotMQ: its offsets are of version {version}, "
                f"this one reads version {VERSION}"
            )
        try:
            if version != VERSION:
                raise ValueError
            slots = found.get("slots")
            return cls(
                str(found["store"]),
                int(found["seal"]),
                None if slots is None else int(slots),
                int(found.get("gaps", 0)),
            )
        except (KeyError, TypeError, ValueError):
            raise SourceRefused(f"the checkpoint has an offset that is none of SlotMQ's: {dict(found)!r}") from None

    def check_store(self, store: str, address: str) -> None:
        """Raises SourceRefused when it is an offset in another store."""
        if self.store != store:
            raise SourceRefused(
                f"the checkpoint belongs to store {self.store}, but {address} has store {store}: "
                "use the data folder that it was made with, or a new checkpoint"
            )
