"""The lines of the seal log: one per sealed slot file, gap, release and cursor of a data folder.

A line is `JSON <tab> crc32c of the JSON, 8 hex digits <newline>`. The key "k" names its kind:

    store           the first line: format, store (32 hex digits), last_seal (even if its own line is gone)
    incarnation     the run of the broker that wrote the seals from `seal` on; only a rewrite adds these lines
    seal, gap       see `Seal` and `Gap`; the slot file of a gap no longer exists
    released        all slot files of the queue up to this seal are removed, or about to be
    cursor          see `Cursor`
    cursor_removed  name, vhost, tap

This module is pure: `seal_log_file` writes the file, and other processes may read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from sys import intern
from typing import Any, ClassVar, Final, Self

from crc32c import crc32c

TAP_PREFIX: Final = "amq.tap."  # a tap's queue is named with this prefix and the tap's name
FORMAT: Final = 2

QueueKey = tuple[str, int]  # vhost and queue number; a later queue may get the same name, but another number
Line = Mapping[str, Any]


class BadSealLine(Exception):
    """The line is damaged, or not a line of a seal log."""


class NewerSealLog(BadSealLine):
    """A later version wrote the log."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"written by a newer SlotMQ, format {number}; this version reads up to {FORMAT}")


class _LineFact:
    """The fields of one line; ``kind`` is the value of its key "k"."""

    __slots__ = ()
    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload,no-any-return]  # all subclasses are dataclasses

    @classmethod
    def from_json(cls, line: Line) -> Self:
        """Return the object for a line; ignore fields that a later version added. Raises: BadSealLine.

        Cost: equal strings share memory, because a year has millions of slots.
        """
        found = fields_of(line, **cls.__annotations__)
        return cls(*[intern(value) if type(value) is str else value for value in found])


class _QueueFact(_LineFact):
    """The fields of a line about one queue. Invariant: subclasses have the fields ``vhost`` and ``number``."""

    __slots__ = ()
    vhost: str
    number: int

    @property
    def key(self) -> QueueKey:
        """The vhost and number that identify the queue."""
        return self.vhost, self.number


@dataclass(frozen=True, slots=True)
class Seal(_QueueFact):
    """One sealed slot file.

    Shapes: as `SlotMeta`.
    Units: `bytes` is the file's length, `crc` its checksum. The timestamps are wall-clock times. The broker's clock was
        `ahead_ms` ahead of them; ages are measured with that clock, because the system clock may be corrected.
    Invariant: no two slot files of a store share both seal and `incarnation`, even after a backup was restored.
    """

    kind = "seal"
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
    """A slot file that was removed before every cursor had passed it, or was lost. Shapes: as `Seal`, with a reason."""

    kind = "gap"
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
    """The last seal of a queue's removed slot files, and the id after the last message in them."""

    kind = "released"
    vhost: str
    queue: str
    number: int
    seal: int
    end: int = 0

    def gap(self) -> Gap:
        """Return a gap for readers that have not passed this seal; its unknown ids and counts are 0."""
        return Gap(self.seal, self.vhost, self.queue, self.number, 0, 0, 0, 0, "released")


@dataclass(frozen=True, slots=True)
class Cursor(_LineFact):
    """The last seal that a named reader of a tap has passed, and when it reported this. Shapes: `user` owns the cursor,
    and has usually created it over HTTP; "" if an operator created the cursor on the broker's machine.
    """

    kind = "cursor"
    name: str
    vhost: str
    tap: str
    seal: int
    at_ms: int
    user: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The name, vhost and tap, which identify the cursor."""
        return self.name, self.vhost, self.tap


def fields_of(line: Line, **types: str) -> list[Any]:
    """Return the named fields of a line. Shapes: the value of each argument is the name of the field's type.

    Raises: BadSealLine if a field is missing, or has another type.
    """
    try:
        found = [line[name] for name in types]
    except KeyError as error:
        raise BadSealLine(f"it has no {error}") from error
    for value, (name, kind) in zip(found, types.items(), strict=True):
        if type(value).__name__ != kind:
            raise BadSealLine(f"its {name!r} is no {kind}")
    return found


def encode_line(kind: str, fields: Line) -> bytes:
    """Return a line with its newline."""
    text = json.dumps({"k": kind, **fields}, ensure_ascii=False, separators=(",", ":")).encode()
    return b"%b\t%08x\n" % (text, crc32c(text))


def decode_line(block: bytes) -> dict[str, Any]:
    """Return the fields of a line with or without its newline. Raises: BadSealLine."""
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
    """Return the fields of the whole lines at the beginning of a block, and the length of these lines in bytes.

    An unfinished line may follow: it is being written, or was torn by a crash.
    Raises: BadSealLine when a good line follows a bad one: a crash cannot cause that.
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
