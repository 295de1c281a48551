"""The rows of a slot file as Arrow arrays, built from the offsets of their parts, and the unreadable rows."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from broker.amqp.content_header import KINDS, UNKNOWN_FLAGS, WIDTHS
from broker.amqp.wire import PROPERTIES_AT
from broker.pipeline.source.header_json import table_to_json
from broker.slot_files.slot_file import HEADER_BYTES, REDELIVERED, BadSlotFile, SlotMeta
from broker.slot_files.slot_view import STEP_BYTES, SlotView

VIEW: Final = np.dtype([("length", "<i4"), ("octets", "V12")])
INLINE_MAX: Final = 12
Places = Any  # a numpy array of offsets; mypy cannot check its type
Mask = Any
MADV_DONTNEED: Final[int | None] = getattr(mmap, "MADV_DONTNEED", None)
RAW_MAX_BYTES: Final = 1 << 20
APP_TS_MAX_S: Final = 253_402_300_799  # the end of year 9999
INDEX: Final = np.dtype(
    {
        "names": ["id", "ts", "at", "header", "body", "exchange", "key", "flags"],
        "formats": ["<i8", "<i8", "<u4", "<u4", "<u4", "u1", "u1", "u1"],
        "offsets": [0, 8, 16, 20, 24, 32, 33, 34],
        "itemsize": 40,
    }
)
Pick = Any  # a selection of rows: a slice, or an array of row numbers
ALL: Final = slice(None)
FLAGS_BYTES: Final = 2
LENGTH_BYTES: Final = 4


class PropertyPlaces(NamedTuple):
    """The place of one property in each row, as arrays. Shapes: a text starts after its length."""

    present: Any
    starts: Any
    lengths: Any


class HeaderPlaces:
    """The places of the properties in the content headers of a slot.

    The flags of a content header define which properties follow and in which order (AMQP 0-9-1 section 4.2.6.1). One
    pass over all headers therefore finds every property, and only the requested ones are decoded.
    Shapes: `octets` is the slot file as an array; `starts` and `lengths` are the places of the content headers.
    Invariant: no place is outside its header, whatever the octets are; `malformed` marks the invalid headers.
    """

    def __init__(self, octets: Any, starts: Any, lengths: Any) -> None:
        limit = starts + lengths
        at = np.minimum(starts + PROPERTIES_AT, limit)
        short = limit - at < FLAGS_BYTES
        high = octets[at].astype(np.uint16)
        flags = np.where(short, 0, (high << 8) | octets[at + 1])
        at = np.minimum(at + FLAGS_BYTES, limit)
        malformed = short | ((flags & UNKNOWN_FLAGS) != 0)
        any_flags = int(np.bitwise_or.reduce(flags)) if len(flags) else 0
        self._found: dict[str, PropertyPlaces] = {}
        for flag, name, kind in KINDS:
            if not any_flags & flag:
                continue
            present = (flags & flag) != 0
            start, length = _extent(octets, at, limit, kind)
            end = start + length
            malformed |= present & (end > limit)
            end = np.minimum(end, limit)
            start = np.minimum(start, end)
            self._found[name] = PropertyPlaces(present, start, end - start)
            at = np.where(present, end, at)
        self.malformed = malformed | (at != limit)

    def found(self, name: str) -> PropertyPlaces | None:
        """Return the places of a property, by its pamqp name; None if no message has it."""
        return self._found.get(name)


def _extent(octets: Any, at: Any, limit: Any, kind: str) -> tuple[Any, Any]:
    """Return where a property's value would start in each header, and the length that the header states."""
    if kind == "shortstr":
        return at + 1, octets[np.minimum(at, limit)].astype(np.int64)
    if kind == "table":
        return at, LENGTH_BYTES + number_at(octets, at, LENGTH_BYTES)
    return at, np.full(len(at), WIDTHS[kind], np.int64)


def number_at(octets: Any, at: Any, width: int) -> Any:
    """Return the big-endian numbers of `width` octets at these places; numbers of 8 octets may wrap around."""
    number = octets[at].astype(np.int64)
    for octet in range(1, width):
        number = (number << 8) | octets[at + octet]
    return number


class Gather:
    """Gather values from one buffer.

    Shapes: `starts` and `lengths` are arrays of equal length; each start is at least 12 bytes before the end of the
        buffer. `present` marks the existing values, or is None if all exist.
    """

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = pa.py_buffer(buffer)
        # The 12 bytes at each offset. An Arrow view contains a value of up to 12 bytes, or the start of a longer one.
        self._prefixes = np.ndarray(shape=(len(buffer) - 11,), dtype="V12", buffer=buffer, strides=(1,))

    def octets(self, starts: Places, lengths: Places, present: Mask = None) -> pa.BinaryArray:
        """Return the values. Cost: a copy of their bytes."""
        if present is not None:
            starts, lengths = np.where(present, starts, 0), np.where(present, lengths, 0)
        views: Any = np.empty(len(starts), VIEW)
        views["length"] = lengths
        views["octets"] = self._prefixes[starts]
        words: Any = views.view("<i4").reshape(-1, 4)
        long = lengths > INLINE_MAX
        if long.all():
            words[:, 2], words[:, 3] = 0, starts
        elif long.any():
            words[long, 2], words[long, 3] = 0, starts[long]
        validity = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
        array = pa.Array.from_buffers(
            pa.binary_view(), len(starts), [validity, pa.py_buffer(views), self._buffer], -1 if validity else 0
        )
        return array.cast(pa.binary())

    def text(self, starts: Places, lengths: Places, present: Mask = None) -> pa.StringArray:
        """Return the values as text; octets that are not UTF-8 become replacement characters."""
        octets = self.octets(starts, lengths, present)
        try:
            return octets.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array(
                [None if value is None else value.decode("utf-8", "replace") for value in octets.to_pylist()],
                pa.string(),
            )


@dataclass(frozen=True, slots=True)
class BadRow:
    """An unreadable row. Shapes: `position` is its row number, from 0; `raw` is cut at 1 MiB."""

    position: int
    reason: str
    raw: bytes


class SlotRows:
    """The rows of a slot file, or of several small ones that are decoded together.

    Shapes: `metas` lists the meta of each file, and `file` each row's index there; `ids`, `ts_ms`, `sizes` and
        `redelivered` are arrays over all rows; the methods return Arrow arrays of the picked rows.
    Units: sizes in bytes, of header and body together.
    Raises: BadSlotFile if an index points outside its rows.
    Cost: the contents of several files are copied.
    """

    def __init__(self, *views: SlotView) -> None:
        indexes = [np.frombuffer(view.index, INDEX) for view in views]
        index = indexes[0] if len(views) == 1 else np.concatenate(indexes)
        self._views = views
        self.metas = [view.meta for view in views]
        self.file: Any = np.repeat(np.arange(len(views)), [len(one) for one in indexes])
        self.ids = index["id"].astype(np.int64)
        self.ts_ms = index["ts"].astype(np.int64)
        self.redelivered = (index["flags"] & REDELIVERED) != 0
        self._exchange_len = index["exchange"].astype(np.int64)
        self._key_len = index["key"].astype(np.int64)
        self._header_len = index["header"].astype(np.int64)
        self._body_len = index["body"].astype(np.int64)
        self.sizes = self._header_len + self._body_len
        at = index["at"].astype(np.int64)
        ends = np.array([view.index_at for view in views])
        key_ends = at + 2 + self._exchange_len + self._key_len
        if np.any(at < HEADER_BYTES) or np.any(key_ends + self.sizes > ends[self.file]):
            raise BadSlotFile("its index points outside its rows")
        self._buffer = views[0].buffer
        if len(views) > 1:
            self._buffer = memoryview(b"".join([*(view.buffer[: view.index_at] for view in views), bytes(INLINE_MAX)]))
        self._at = at + (np.cumsum(ends) - ends)[self.file]
        self._key_at = self._at + 2 + self._exchange_len
        self._header_at = self._key_at + self._key_len
        self._body_at = self._header_at + self._header_len
        self._end = self._body_at + self._body_len
        self._gather = Gather(self._buffer)
        self._octets = np.frombuffer(self._buffer, np.uint8)
        self._json: dict[bytes, str | None] = {}  # headers table -> JSON, or None if it is invalid

    @cached_property
    def _places(self) -> HeaderPlaces:
        return HeaderPlaces(self._octets, self._header_at, self._header_len)

    # ---- parts

    def meta(self, of: Callable[[SlotMeta], Any], kind: pa.DataType, pick: Pick = ALL) -> pa.Array:
        return pa.array([of(meta) for meta in self.metas], kind).take(pa.array(self.file[pick]))

    def exchange(self, pick: Pick = ALL) -> pa.StringArray:
        return self._gather.text(self._at[pick] + 1, self._exchange_len[pick])

    def routing_key(self, pick: Pick = ALL) -> pa.StringArray:
        return self._gather.text(self._key_at[pick], self._key_len[pick])

    def body(self, pick: Pick = ALL) -> pa.BinaryArray:
        return self._gather.octets(self._body_at[pick], self._body_len[pick])

    def properties_raw(self, pick: Pick = ALL) -> pa.BinaryArray:
        """Return the content headers from their property flags on."""
        lengths = np.maximum(self._header_len[pick] - PROPERTIES_AT, 0)
        return self._gather.octets(self._body_at[pick] - lengths, lengths)

    def text(self, name: str, pick: Pick = ALL) -> pa.StringArray | None:
        """Return a short-string property, by its pamqp name; None if no row has it."""
        found = self._places.found(name)
        return found and self._gather.text(found.starts[pick], found.lengths[pick], found.present[pick])

    def octet(self, name: str, pick: Pick = ALL) -> pa.Int16Array | None:
        """Return an octet property; None if no row has it."""
        found = self._places.found(name)
        if found is None:
            return None
        return pa.array(self._octets[found.starts[pick]].astype(np.int16), mask=~found.present[pick])

    def app_ts(self, pick: Pick = ALL) -> pa.TimestampArray | None:
        """Return the timestamp property, null after the year 9999; None if no row has it."""
        found = self._places.found("timestamp")
        if found is None:
            return None
        seconds = number_at(self._octets, found.starts[pick], 8)
        # The values are unsigned, so large ones have become negative.
        absent = ~found.present[pick] | (seconds < 0) | (seconds > APP_TS_MAX_S)
        return pa.array(np.where(absent, 0, seconds) * 1_000_000, pa.int64(), mask=absent)

    def headers(self, pick: Pick = ALL) -> pa.StringArray | None:
        """Return the headers as JSON, with null for an invalid table; None if no row has any.

        Cost: each distinct table is decoded once.
        """
        found = self._places.found("headers")
        if found is None:
            return None
        tables = self._gather.octets(found.starts[pick], found.lengths[pick], found.present[pick]).dictionary_encode()
        texts = pa.array([self._to_json(table) for table in tables.dictionary.to_pylist()], pa.string())
        return texts.take(tables.indices)

    def _to_json(self, table: bytes) -> str | None:
        known = self._json
        if table not in known:
            try:
                known[table] = table_to_json(table)
            except (ValueError, RecursionError):
                known[table] = None
        return known[table]

    def page_out(self) -> None:
        """Release the resident pages of large mapped files; they are read again when they are used."""
        for view in self._views:
            mapped = view.buffer.obj
            if isinstance(mapped, mmap.mmap) and len(mapped) > STEP_BYTES and MADV_DONTNEED is not None:
                mapped.madvise(MADV_DONTNEED)

    # ---- unreadable rows

    def bad(self, *, headers: bool = True) -> list[BadRow]:
        """Return the rows with a wrong checksum, and those whose properties cannot be decoded.

        Shapes: without `headers`, headers tables are not checked.
        """
        firsts = np.cumsum([0, *(view.rows for view in self._views)])
        damaged = [
            int(first) + at
            for first, view in zip(firsts, self._views, strict=False)
            for at in view.verify(self.page_out)
        ]
        reasons = dict.fromkeys(damaged, "its checksum is wrong")
        for position in np.flatnonzero(self._places.malformed).tolist():
            reasons.setdefault(position, "its properties cannot be decoded")
        for position in self._invalid_tables() if headers else ():
            reasons.setdefault(position, "its headers cannot be decoded")
        return [BadRow(position, reasons[position], self._raw(position)) for position in sorted(reasons)]

    def _invalid_tables(self) -> list[int]:
        found, texts = self._places.found("headers"), self.headers()
        if found is None or texts is None:
            return []
        positions: list[int] = np.flatnonzero(found.present & texts.is_null().to_numpy(zero_copy_only=False)).tolist()
        return positions

    def _raw(self, position: int) -> bytes:
        start, end = int(self._at[position]), int(self._end[position])
        return bytes(self._buffer[start : min(end, start + RAW_MAX_BYTES)])


def joined_rows(views: Sequence[SlotView], *, headers: bool = True) -> SlotRows | None:
    """Return the rows of several slot files, or None if there are fewer than two or any is damaged.

    After None, the caller reads the files one by one, so that errors name the file.
    """
    if len(views) < 2:
        return None
    try:
        rows = SlotRows(*views)
    except BadSlotFile:
        return None
    return None if rows.bad(headers=headers) else rows
