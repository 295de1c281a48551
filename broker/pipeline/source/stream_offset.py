"""The offset of a stream, as Spark stores it in the checkpoint.

{"v": 2, "store": 32 hex digits, "seal": n, "incarnation": 32 hex digits}   it has passed that seal
"incarnation"  the start of the broker that wrote the seal
"slots": k    the number of slots between the previous offset and this one: the slots of the batch that ends here
"gaps": n     gaps up to that seal existed when the stream began, and are no loss of the stream
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from broker.pipeline.faults import SourceRefused
from broker.slot_files.seal_view import SealView

__all__ = ["StreamOffset", "parted_text"]

VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """One offset."""

    store: str
    seal: int
    slots: int | None = None
    gaps: int = 0
    incarnation: str = ""

    @classmethod
    def at(cls, view: SealView, seal: int, slots: int | None = None, gaps: int = 0) -> Self:
        """Return the offset at a seal of the current seal log."""
        return cls(view.store, seal, slots, gaps, view.starts.of(seal))

    def to_json(self) -> dict[str, Any]:
        """Return the offset in its checkpoint form."""
        found = {"v": VERSION, "store": self.store, "seal": self.seal, "incarnation": self.incarnation}
        if self.slots is not None:
            found["slots"] = self.slots
        if self.gaps > self.seal:
            found["gaps"] = self.gaps
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the offset that a checkpoint describes. Raises: SourceRefused."""
        version = found.get("v")
        if isinstance(version, int) and version > VERSION:
            raise SourceRefused(
                f"the checkpoint was written by a later SlotMQ: its offsets are of version {version}, "
                f"this one reads up to version {VERSION}"
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
                str(found["incarnation"]),
            )
        except (KeyError, TypeError, ValueError):
            raise SourceRefused(f"the checkpoint has an offset that is none of SlotMQ's: {dict(found)!r}") from None

    def check(self, view: SealView, address: str) -> None:
        """Raise SourceRefused for an offset in another store, or in another history of this one."""
        if self.store != view.store:
            raise SourceRefused(
                f"the checkpoint belongs to store {self.store}, but {address} has store {view.store}: "
                "use the data folder that it was made with, or a new checkpoint"
            )
        if view.parted(self.seal, self.incarnation):
            raise SourceRefused(parted_text("the checkpoint", address, self.seal, view))


def parted_text(reader: str, address: str, seal: int, view: SealView) -> str:
    """Return why a reader cannot resume after a seal that is in no history of this store."""
    found = f"has sealed {view.last_seal} only" if seal > view.last_seal else "has another slot under that number"
    return (
        f"{reader} stands at seal {seal}, but {address} {found}: was an older copy of the data folder put back? "
        "Nothing is read or released; an archive takes both histories with --accept-restored, "
        "a stream with a new checkpoint"
    )
