"""The entries of a lake's log: what one batch added to a table, and what it took away, as JSON.

Fields that a version does not know are passed over, and fields that an earlier version did not have yet are empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from broker.pipeline.faults import LakeRefused

__all__ = ["LOG_FORMAT", "Branch", "Entry", "IdRange", "LakeFile", "SealRange", "runs", "seal_ranges", "within"]

LOG_FORMAT: Final = 2  # of 1, which is read, what is sealed names no incarnation

Branch = tuple[str, str, str, str | None]  # store, vhost, tap and incarnation
Runs = tuple[tuple[int, int], ...]  # rising, apart; both ends belong to a run


@dataclass(frozen=True, slots=True)
class IdRange:
    """The message ids of one queue in a file: first <= id < end, `rows` of them."""

    vhost: str
    queue: str
    first: int
    end: int
    rows: int


@dataclass(frozen=True, slots=True)
class SealRange:
    """The slots of one tap that a batch holds, by their seals.

    Shapes: ``store`` is 32 hex digits, ``incarnation`` the start of the broker that wrote the slots, None where an
        earlier version did not note it.
    """

    store: str
    vhost: str
    tap: str
    seals: Runs
    incarnation: str | None = None

    @property
    def branch(self) -> Branch:
        """What history of which tap it is of."""
        return self.store, self.vhost, self.tap, self.incarnation


@dataclass(frozen=True, slots=True)
class LakeFile:
    """One Parquet file. Shapes: ``path`` is below the table's data folder; ``date`` is that of its rows, 2026-11-20."""

    path: str
    date: str
    rows: int
    bytes: int
    crc: int
    schema_version: int
    first_ts_ms: int
    last_ts_ms: int
    ids: tuple[IdRange, ...] = ()
    compacted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the file as it stands in an entry."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> LakeFile:
        """Return the file that an entry tells of. Raises: KeyError, TypeError, ValueError."""
        return cls(
            path=found["path"],
            date=found["date"],
            rows=found["rows"],
            bytes=found.get("bytes", 0),
            crc=found.get("crc", 0),
            schema_version=found.get("schema_version", 0),
            first_ts_ms=found.get("first_ts_ms", 0),
            last_ts_ms=found.get("last_ts_ms", 1 << 62),
            ids=tuple(IdRange(**{name: made[name] for name in IdRange.__slots__}) for made in found.get("ids", ())),
            compacted=found.get("compacted", False),
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch. Invariant: a (query, batch) has one entry, and what it says never changes."""

    query: str
    batch: int
    at_ms: int
    add: tuple[LakeFile, ...] = ()
    remove: tuple[str, ...] = ()
    sealed: tuple[SealRange, ...] = ()
    slots: int = 0
    rows: int = 0
    bad: int = 0
    slot_bytes: int = 0

    def to_json(self) -> bytes:
        """Return the entry as it stands in its file."""
        made = {"format": LOG_FORMAT, **asdict(self)}
        return json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, block: bytes, name: str) -> Entry:
        """Return the entry of a file. Raises: LakeRefused when it is of a later format, or none."""
        try:
            found = json.loads(block)
            if found.get("format", LOG_FORMAT) > LOG_FORMAT:
                raise LakeRefused(f"{name} is of format {found['format']}, this version reads up to {LOG_FORMAT}")
            return cls(
                query=found["query"],
                batch=found["batch"],
                at_ms=found.get("at_ms", 0),
                add=tuple(map(LakeFile.from_json, found.get("add", ()))),
                remove=tuple(found.get("remove", ())),
                sealed=tuple(map(_seal_range, found.get("sealed", ()))),
                slots=found.get("slots", 0),
                rows=found.get("rows", 0),
                bad=found.get("bad", 0),
                slot_bytes=found.get("slot_bytes", 0),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LakeRefused(f"{name} cannot be read: {error!r}") from error


def _seal_range(found: Mapping[str, Any]) -> SealRange:
    seals = runs(map(tuple, found["seals"]))
    return SealRange(found["store"], found["vhost"], found["tap"], seals, found.get("incarnation"))


def seal_ranges(seals: Mapping[Branch, Iterable[tuple[int, int]]]) -> tuple[SealRange, ...]:
    """Return what is held of each history of a tap."""
    found = [SealRange(store, vhost, tap, runs(each), start) for (store, vhost, tap, start), each in seals.items()]
    return tuple(sorted(found, key=lambda one: (one.store, one.vhost, one.tap, one.seals)))


def runs(ranges: Iterable[tuple[int, ...]]) -> Runs:
    """Return ranges sorted, those that touch as one. Shapes: (first, last); both belong to it."""
    made: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if made and first <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(made[-1][1], last))
        else:
            made.append((first, last))
    return tuple(made)


def within(part: Runs, whole: Runs) -> bool:
    """Return whether all of one is in the other."""
    return all(any(first <= lower and upper <= last for first, last in whole) for lower, upper in part)
