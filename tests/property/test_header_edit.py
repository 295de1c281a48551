"""Editing content headers against a model: a list of entries with their octets."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.amqp.content_header import measure_header
from broker.amqp.header_edit import edit_header, read_headers

FIXED = {b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"l": 8, b"L": 8}
FIXED |= {b"f": 4, b"d": 8, b"D": 5, b"T": 8, b"V": 0}
KEYS = st.sampled_from(["a", "b", "CC", "x-death", "ñ", ""])


def counted(octets: bytes) -> bytes:
    """Return octets after their length."""
    return struct.pack(">I", len(octets)) + octets


def short(octets: bytes) -> bytes:
    """Return a short string."""
    return bytes([len(octets)]) + octets


def entry(pair: tuple[bytes, bytes]) -> bytes:
    """Return the octets of one entry."""
    return short(pair[0]) + pair[1]


FIXED_VALUES = st.sampled_from(sorted(FIXED)).flatmap(
    lambda kind: st.binary(min_size=FIXED[kind], max_size=FIXED[kind]).map(lambda octets: kind + octets)
)
COUNTED_VALUES = st.tuples(st.sampled_from([b"S", b"x"]), st.binary(max_size=6).map(counted)).map(b"".join)
VALUES = st.recursive(
    FIXED_VALUES | COUNTED_VALUES,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda values: b"A" + counted(b"".join(values)))
        | st.lists(st.tuples(st.binary(max_size=3), inner).map(entry), max_size=3).map(
            lambda entries: b"F" + counted(b"".join(entries))
        )
    ),
    max_leaves=6,
)
ENTRIES = st.lists(st.tuples(KEYS.map(str.encode) | st.binary(max_size=3), VALUES), max_size=6)
TEXTS = st.text("a\x00ñ€", max_size=4)
NEW_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | TEXTS | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
# The properties around the headers table: content type before it; delivery mode, priority and expiration after it.
AROUND = st.tuples(
    st.none() | st.binary(max_size=4), st.none() | st.binary(min_size=2, max_size=2), st.none() | st.binary(max_size=4)
)


def header_of(
    entries: list[tuple[bytes, bytes]] | None, around: tuple[bytes | None, bytes | None, bytes | None]
) -> bytes:
    """Return the octets of a content header in the layout of section 4.2.6.1."""
    content_type, octets, expiration = around
    flags, parts = 0, b""
    if content_type is not None:
        flags, parts = flags | 1 << 15, parts + short(content_type)
    if entries is not None:
        flags, parts = flags | 1 << 13, parts + counted(b"".join(map(entry, entries)))
    if octets is not None:
        flags, parts = flags | 3 << 11, parts + octets
    if expiration is not None:
        flags, parts = flags | 1 << 8, parts + short(expiration)
    return struct.pack(">HHQH", 60, 0, 7, flags) + parts


@given(
    st.none() | ENTRIES, AROUND, st.dictionaries(KEYS, NEW_VALUES, max_size=3), st.sets(KEYS, max_size=3), st.booleans()
)
def test_edit_keeps_what_it_does_not_name(
    entries: list[tuple[bytes, bytes]] | None,
    around: tuple[bytes | None, bytes | None, bytes | None],
    added: dict[str, Any],
    dropped: set[str],
    expires: bool,
) -> None:
    """The edited header equals one built without the named entries, followed by the entries that were set."""
    octets = header_of(entries, around)
    measure_header(octets)
    drop_properties = [] if expires else ["expiration"]
    edited = edit_header(octets, set_headers=added, drop_headers=dropped, drop_properties=drop_properties)
    measure_header(edited)
    gone = {key.encode() for key in (*added, *dropped)}
    kept = None if entries is None else [pair for pair in entries if pair[0] not in gone]
    if not expires:
        around = (around[0], around[1], None)
    if added:
        assert read_headers(edited, *added) == added
        edited = edit_header(edited, drop_headers=list(added))
        kept = kept or []
    assert edited == header_of(kept, around)
