"""The lines of the seal log: one per sealed slot file, gap, release and cursor of a data folder.

A line is `JSON <tab> crc32c of the JSON, 8 hex digits <newline>`. Which kinds there are is said by the key "k":

    store           the first line: format, store (32 hex digits), last_seal (of what was left out in rewriting)
    incarnation     which start of the broker wrote the seals from that one on, of those that were left out
    seal, gap       see `Seal` and `Gap`; after a gap its slot file is not there any more
    released        of the queue with that number in that vhost, all slot files up to that seal are gone or about to go
    cursor          see `Cursor`
    cursor_removed  name, vhost, tap

Everything here is plain data: who writes the file is `slot_folder`, who reads it may be another process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from crc32c import crc32c

__all__ = [
    "FORMAT",
    "BadSealLine",
    "Cursor",
    "Gap",
    "Line",
    "NewerSealLog",
    "QueueKey",
    "Released",
    "Seal",
    "decode_line",
    "decode_lines",
    "encode_line",
]

FORMAT: Final = 2  # of 1, which is read, the seals do not say their incarnation
ADDED: Final = frozenset({"ahead_ms", "incarnation"})  # fields that lines of older versions have not

QueueKey = tuple[str, int]  # vhost and queue number: which queue it was, whatever had or gets its name
Line = Mapping[str, Any]


class BadSealLine(Exception):
    """Says why a line is none of a seal log."""


class NewerSealLog(BadSealLine):
    """Says that a later version wrote the log."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"written by a newer SlotMQ, format {number}; this version reads up to {FORMAT}")


class _LineFact:
    """What stands in one line."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]  # all that inherit are dataclasses

    @classmethod
    def from_json(cls, line: Line) -> Self:
        """Return what a line says; fields that a later version added are passed over. Raises: BadSealLine."""
        names: tuple[str, ...] = vars(cls)["__slots__"]
        try:
            return cls(**{name: line[name] for name in names if name in line or name not in ADDED})
        except KeyError as error:
            raise BadSealLine(f"it has no {error}") from error


class _QueueFact(_LineFact):
    """What a line says of one queue. Invariant: the dataclasses that inherit have its vhost and number."""

    __slots__ = ()
    vhost: str
    number: int

    @property
    def key(self) -> QueueKey:
        """Which queue it is of."""
        return self.vhost, self.number


@dataclass(frozen=True, slots=True)
class Seal(_QueueFact):
    """One sealed slot file.

    Shapes: as `SlotMeta`.
    Units: ``bytes`` is the file's length, ``crc`` its checksum. The moments are times of day, which the broker's clock
        was ``ahead_ms`` ahead of: it tells how old a file is, whatever was corrected since.
    Invariant: no two slot files of a store have both seal and ``incarnation``, whatever copies of it were put back.
    """

    seal: int
    vhost: str
    queue: str
    number: int
    first: int
    end: int
    count: int
    first_ts_ms: int
    last_ts_ms: int
    bytes: int
    crc: int
    ahead_ms: int = 0
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class Gap(_QueueFact):
    """A slot file that went before every cursor had passed, and why. Shapes: the first fields are those of its seal."""

    seal: int
    vhost: str
    queue: str
    number: int
    first: int
    end: int
    count: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Released(_QueueFact):
    """Up to which seal the slot files of a queue are gone, and the id behind the last message that was in them."""

    vhost: str
    queue: str
    number: int
    seal: int
    end: int = 0


@dataclass(frozen=True, slots=True)
class Cursor(_LineFact):
    """Up to which seal a named reader of a tap has passed, and when it said so."""

    name: str
    vhost: str
    tap: str
    seal: int
    at_ms: int

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is known by."""
        return self.name, self.vhost, self.tap


def encode_line(kind: str, fields: Line) -> bytes:
    """Return a line with its newline."""
    text = json.dumps({"k": kind, **fields}, ensure_ascii=False, separators=(",", ":")).encode()
    return b"%b\t%08x\n" % (text, crc32c(text))


def decode_line(block: bytes) -> dict[str, Any]:
    """Return what a line says, without its newline or with it. Raises: BadSealLine."""
    text, _, checksum = block.rstrip(b"\n").rpartition(b"\t")
    if checksum != b"%08x" % crc32c(text):
        raise BadSealLine("its checksum is wrong")
    try:
        line = json.loads(text)
    except ValueError as error:
        raise BadSealLine(f"it is no JSON: {error}") from error
    if not isinstance(line, dict) or "k" not in line:
        raise BadSealLine("it does not say what it is")
    return line


def decode_lines(block: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return what the whole lines at the beginning of a block say, and how many bytes those are.

    What follows is an unfinished line: a writer may be at it, or an accident has torn it.
    Raises: BadSealLine when there is a good line behind a bad one, which no accident does.
    """
    lines: list[dict[str, Any]] = []
    good_bytes, at = 0, 0
    bad: BadSealLine | None = None
    for piece in _pieces(block):
        at += len(piece)
        try:
            line = decode_line(piece)
        except BadSealLine as error:
            bad = bad or error
            continue
        if bad is not None:
            raise BadSealLine(f"the line at byte {good_bytes} is damaged: {bad}")
        lines.append(line)
        good_bytes = at
    return lines, good_bytes


def _pieces(block: bytes) -> Iterator[bytes]:
    """Yield the whole lines of a block."""
    at = 0
    while end := block.find(b"\n", at) + 1:
        yield block[at:end]
        at = end
