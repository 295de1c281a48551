"""What a task wrote of a batch, as it tells who commits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from broker.pipeline.lake.entry import Branch, LakeFile, SealRange, seal_ranges

__all__ = ["Copied"]


@dataclass(frozen=True, slots=True)
class Copied:
    """What a task wrote."""

    files: tuple[LakeFile, ...] = ()
    bad_files: tuple[LakeFile, ...] = ()
    sealed: tuple[SealRange, ...] = ()
    slots: int = 0
    rows: int = 0
    bad: int = 0
    slot_bytes: int = 0

    def __add__(self, other: Copied) -> Copied:
        """Return what both are together."""
        return Copied(
            self.files + other.files,
            self.bad_files + other.bad_files,
            _joined(self.sealed + other.sealed),
            self.slots + other.slots,
            self.rows + other.rows,
            self.bad + other.bad,
            self.slot_bytes + other.slot_bytes,
        )


def _joined(ranges: Iterable[SealRange]) -> tuple[SealRange, ...]:
    found: dict[Branch, list[tuple[int, int]]] = {}
    for one in ranges:
        found.setdefault(one.branch, []).extend(one.seals)
    return seal_ranges(found)
