"""The seal log: one line per sealed slot file, gap, release and cursor of a data folder, and what they add up to.

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
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from crc32c import crc32c

from broker.slot_files.seal_starts import SealStarts

__all__ = [
    "FORMAT",
    "BadSealLine",
    "Cursor",
    "Gap",
    "NewerSealLog",
    "QueueKey",
    "Released",
    "Seal",
    "SealView",
    "decode_line",
    "decode_lines",
    "encode_line",
]

FORMAT: Final = 2  # of 1, which is read, the seals do not say their incarnation
ADDED: Final = frozenset({"ahead_ms", "incarnation"})  # fields that lines of older versions have not
GAPS_MAX: Final = 1000  # the newest; what an older one said is still known as released

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


class SealView:
    """What the lines of a seal log add up to.

    One thread changes it; others may ask meanwhile, and get what held before a change or after it.
    Invariant: seals rise from line to line.
    """

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.store = ""
        self.last_seal = 0
        self.lines = 0  # that were folded
        self.released: dict[QueueKey, Released] = {}
        self._seals: dict[int, Seal] = {}
        self._order: list[int] = []  # rising, of the seals; some are gone
        self._by_queue: dict[QueueKey, deque[Seal]] = {}
        self.starts = SealStarts()
        self._gaps: dict[int, Gap] = {}
        self._cursors: dict[tuple[str, str, str], Cursor] = {}
        for line in lines:
            self.fold(line)

    # -- what holds ---------------------------------------------------------------------------------------------------

    @property
    def seals(self) -> list[Seal]:
        """The slot files that are there, in rising order."""
        return list(self._seals.values())

    @property
    def gaps(self) -> list[Gap]:
        """The gaps, the newest 1,000 at most, in the order in which they came about."""
        return list(self._gaps.values())

    @property
    def cursors(self) -> list[Cursor]:
        """The cursors, in the order in which they were made."""
        return list(self._cursors.values())

    @property
    def queues(self) -> list[QueueKey]:
        """The queues that have slot files, sorted."""
        return sorted(self._by_queue)

    def parted(self, seal: int, incarnation: str | None) -> bool:
        """Tell whether a seal of a start is in another history: a copy was put back. None is whatever start it was."""
        return seal > self.last_seal or (seal > 0 and incarnation not in (None, self.starts.of(seal)))

    def shared(self, seal: int, incarnation: str | None) -> int:
        """Return the last seal in this history of those that a start wrote, from its first up to one; 0 for none."""
        return min(seal, self.last_seal if incarnation is None else self.starts.last_of(incarnation, self.last_seal))

    def seal(self, number: int) -> Seal | None:
        """Return the seal of that number, None when its file is not there."""
        return self._seals.get(number)

    def cursor(self, name: str, vhost: str, tap: str) -> Cursor | None:
        """Return a cursor, None when there is none of that name."""
        return self._cursors.get((name, vhost, tap))

    def cursors_of(self, vhost: str, tap: str) -> list[Cursor]:
        """Return the cursors of a tap."""
        return [cursor for cursor in self.cursors if (cursor.vhost, cursor.tap) == (vhost, tap)]

    @property
    def taps(self) -> set[tuple[str, str]]:
        """The taps, by vhost and name, that have slot files. Cost: the queues."""
        return {(mine[0].vhost, mine[0].queue) for mine in list(self._by_queue.values()) if mine}

    def of_tap(self, vhost: str, tap: str) -> list[Seal]:
        """Return the seals of a tap, in rising order. Cost: all seals."""
        return [seal for seal in self.seals if (seal.vhost, seal.queue) == (vhost, tap)]

    def of_queue(self, key: QueueKey) -> list[Seal]:
        """Return the seals of one queue, in rising order."""
        return list(self._by_queue.get(key, ()))

    def ends(self, vhost: str) -> dict[int, int]:
        """Return for each queue of a vhost the id behind the last message that was in a slot file, by its number."""
        found: dict[int, int] = {}
        known: list[Seal | Gap | Released] = [*self.seals, *self.gaps, *list(self.released.values())]
        for one in known:
            if one.vhost == vhost:
                found[one.number] = max(one.end, found.get(one.number, 0))
        return found

    def after(self, seal: int, *, queues: Collection[QueueKey] | None = None, limit: int | None = None) -> list[Seal]:
        """Return the seals behind that one, in rising order, of all queues or of some, `limit` at most."""
        order = self._order
        found: list[Seal] = []
        for at in range(bisect_right(order, seal), len(order)):
            if len(found) == limit:
                break
            one = self._seals.get(order[at])
            if one is not None and (queues is None or one.key in queues):
                found.append(one)
        return found

    def lost(self, after: int, *, queues: Collection[QueueKey] | None = None) -> list[Gap]:
        """Return what a reader that stands at a seal can no longer have, of all queues or of some; best [].

        Shapes: gaps that were noted; for a queue without one that was released behind the reader one made of what is
            known: from the reader's place to the seal released, without ids and counts.
        """
        found = [gap for gap in self.gaps if gap.seal > after and (queues is None or gap.key in queues)]
        noted = {gap.key for gap in found}
        for key, one in list(self.released.items()):
            if one.seal > after and key not in noted and (queues is None or key in queues):
                found.append(Gap(one.seal, one.vhost, one.queue, one.number, 0, 0, 0, 0, "released"))
        return sorted(found, key=lambda gap: gap.seal)

    def live_lines(self) -> int:
        """Return how many lines `to_lines` would yield."""
        return 1 + len(self.starts) + len(self._seals) + len(self._gaps) + len(self.released) + len(self._cursors)

    def to_lines(self) -> Iterator[bytes]:
        """Yield lines that add up to the same."""
        yield encode_line("store", {"format": FORMAT, "store": self.store, "last_seal": self.last_seal})
        for start in self.starts.rows():
            yield encode_line("incarnation", start)
        for kind, facts in (
            ("released", self.released),
            ("gap", self._gaps),
            ("seal", self._seals),
            ("cursor", self._cursors),
        ):
            for fact in list(facts.values()):
                yield encode_line(kind, fact.to_json())

    # -- what a line changes ------------------------------------------------------------------------------------------

    def fold(self, line: Line) -> None:
        """Take one line in; kinds of a later version are passed over. Raises: BadSealLine."""
        kind = line.get("k")
        if kind == "seal":
            self._fold_seal(Seal.from_json(line))
        elif kind == "gap":
            self._fold_gap(Gap.from_json(line))
        elif kind == "released":
            self._fold_released(Released.from_json(line))
        elif kind == "cursor":
            cursor = Cursor.from_json(line)
            self._cursors[cursor.key] = cursor
        elif kind == "cursor_removed":
            self._cursors.pop((line["name"], line["vhost"], line["tap"]), None)
        elif kind == "incarnation":
            self.starts.begin(line["seal"], line["incarnation"])
        elif kind == "store":
            number = line.get("format")
            if isinstance(number, int) and number > FORMAT:
                raise NewerSealLog(number)
            if not isinstance(number, int) or number < 1:
                raise BadSealLine("it does not say its format")
            self.store = line["store"]
            self.last_seal = max(self.last_seal, line.get("last_seal", 0))
        self.lines += 1

    def _fold_seal(self, seal: Seal) -> None:
        if self._order and seal.seal <= self._order[-1]:
            raise BadSealLine(f"seal {seal.seal} comes behind seal {self._order[-1]}")
        self.starts.begin(seal.seal, seal.incarnation)
        self._seals[seal.seal] = seal
        self._by_queue.setdefault(seal.key, deque()).append(seal)
        self._order.append(seal.seal)
        self.last_seal = max(self.last_seal, seal.seal)

    def _fold_gap(self, gap: Gap) -> None:
        self._gaps[gap.seal] = gap
        if len(self._gaps) > GAPS_MAX:
            del self._gaps[next(iter(self._gaps))]
        self._drop(gap.key, gap.seal)

    def _fold_released(self, released: Released) -> None:
        key = released.key
        before = self.released.get(key)
        if before is None or before.seal < released.seal:
            self.released[key] = released
        mine = self._by_queue.get(key)
        while mine and mine[0].seal <= released.seal:
            self._drop(key, mine[0].seal)

    def _drop(self, key: QueueKey, seal: int) -> None:
        gone = self._seals.pop(seal, None)
        if gone is None:
            return
        mine = self._by_queue[key]
        mine.remove(gone)  # as a rule the first
        if not mine:
            del self._by_queue[key]
        if len(self._order) > 2 * len(self._seals) + 100:
            # The last number stays, so that the next seal is known to rise.
            self._order = [one for one in self._order[:-1] if one in self._seals] + self._order[-1:]
