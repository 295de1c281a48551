"""Headers tables as JSON: plain values, tagged values, and a lossless round trip."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from typing import Any

import pika.data
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.amqp.table_writer import counted
from broker.amqp.tables import FIXED, TableReader
from broker.pipeline.source.header_json import BadHeaderJson, json_to_table, table_to_json

# Drawing nested tables is slow on a busy machine.
WIDTHS = {kind: width for kind, (width, _) in FIXED.items() if kind not in (ord("t"), ord("D"))}


def fixed(kind: int) -> st.SearchStrategy[bytes]:
    """Draw values of a type of fixed width: the type octet, then any octets."""
    return st.binary(min_size=WIDTHS[kind], max_size=WIDTHS[kind]).map(bytes([kind]).__add__)


def entries(value: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Draw the contents of a table; names are any octets and often start with `$`."""
    name = st.one_of(st.binary(max_size=12), st.sampled_from([b"$F", b"$l", b"$", b"\x80\xff", "ü".encode()]))
    entry = st.tuples(name, value).map(lambda pair: bytes([len(pair[0])]) + pair[0] + pair[1])
    return st.lists(entry, max_size=4).map(b"".join)


LEAF = st.one_of(
    *[fixed(kind) for kind in WIDTHS],
    st.booleans().map(lambda value: b"t" + bytes([value])),
    st.tuples(st.integers(0, 255), st.integers(0, (1 << 32) - 1)).map(lambda pair: b"D" + struct.pack(">BI", *pair)),
    st.tuples(st.sampled_from([b"S", b"x"]), st.binary(max_size=20)).map(lambda pair: pair[0] + counted(pair[1])),
    st.text(max_size=10).map(lambda text: b"S" + counted(text.encode())),
)
VALUE = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda values: b"A" + counted(b"".join(values))),
        entries(inner).map(lambda octets: b"F" + counted(octets)),
    ),
    max_leaves=8,
)
TABLE = entries(VALUE).map(counted)


@given(TABLE)
def test_every_table_comes_back_octet_by_octet(table: bytes) -> None:
    """Any table becomes a JSON object in UTF-8, and from it the same octets."""
    text = table_to_json(table)
    assert isinstance(json.loads(text.encode()), dict)
    assert json_to_table(text) == table


@given(TABLE)
def test_tables_are_read_as_the_broker_reads_them(table: bytes) -> None:
    """A table that the broker's reader accepts has the same number of names at its top level."""
    entries = TableReader(table, 64, 1 << 20).entries(0)
    found = json.loads(table_to_json(table), object_pairs_hook=list)
    if len(found) == 1 and found[0][0] == "$F":
        found = found[0][1]
    assert [name.encode("utf-8", "surrogateescape") for name, _ in found] == [entry.key for entry in entries]


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        (b"S" + counted("grün".encode()), "grün"),
        (b"t\x01", True),
        (b"I" + struct.pack(">i", -7), -7),
        (b"l" + struct.pack(">q", 1 << 40), 1 << 40),
        (b"d" + struct.pack(">d", 2.0), 2.0),
        (b"V", None),
        (b"A" + counted(b"V" + b"t\x00"), [None, False]),
        (b"F" + counted(b"\x01aV"), {"a": None}),
        (b"l" + struct.pack(">q", 5), {"$l": 5}),
        (b"b\xff", {"$b": -1}),
        (b"B\xff", {"$B": 255}),
        (b"D" + struct.pack(">BI", 2, 150), {"$D": "1.50"}),
        (b"D" + struct.pack(">Bi", 2, -150), {"$D": "-1.50"}),
        (b"D" + struct.pack(">Bi", 0, -(1 << 31)), {"$D": "-2147483648"}),
        (b"T" + struct.pack(">Q", 1_700_000_000), {"$T": 1_700_000_000}),
        (b"x" + counted(b"\x00\x01\x02"), {"$x": "AAEC"}),
        (b"f" + bytes.fromhex("7fc00000"), {"$f": "7fc00000"}),
        (b"F" + counted(b"\x02$lV"), {"$F": {"$l": None}}),
    ],
)
def test_forms_are_those_that_are_documented(octets: bytes, value: Any) -> None:
    """Each type has the JSON form that the page on the source documents."""
    assert json.loads(table_to_json(counted(b"\x01h" + octets))) == {"h": value}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "headers are a JSON object"),
        ("nonsense", "cannot be a table"),
        ('{"a": {"$q": 1}}', "there is no field type '$q'"),
        ('{"a": {"$B": 256}}', "cannot be a table"),
        ('{"a": {"$x": "?"}}', "cannot be a table"),
        ('{"a": {"$d": "00"}}', "a float of 1 octets"),
        ('{"a": {"$D": "Infinity"}}', "a decimal that is Infinity"),
        ('{"a": {"$D": "4294967296"}}', "cannot be a table"),
        ('{"a": {"$D": "-2147483649"}}', "cannot be a table"),
        ('{"a": {"$D": "1E+2"}}', "cannot be a table"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": 99999999999999999999}', "cannot be a table"),
        ('{"a": {"$F": 1}}', "a table is a JSON object"),
        (json.dumps({"k" * 256: 1}), "cannot have 256 octets"),
        ('{"a":' * 100_000, "cannot be a table"),
    ],
)
def test_text_that_says_no_table_is_refused_in_one_line(text: str, said: str) -> None:
    """Invalid text in a headers column is refused with one line and one exception type."""
    with pytest.raises(BadHeaderJson) as refused:
        json_to_table(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.binary(max_size=40))
def test_octets_that_are_no_table_are_refused(octets: bytes) -> None:
    """Octets that are cut or wrong raise ValueError only."""
    try:
        text = table_to_json(octets)
    except ValueError:
        return
    assert json_to_table(text)[:4] == octets[:4]


@pytest.mark.parametrize("number", ["-1.5", "-0.01", "21474836.47", "-21474836.48", "0"])
def test_decimals_are_those_of_pika(number: str) -> None:
    """A negative decimal of a client is negative in the lake, and is written with the same octets."""
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, {"price": Decimal(number)})
    octets = b"".join(pieces)
    assert json.loads(table_to_json(octets)) == {"price": {"$D": number}}
    assert json_to_table(table_to_json(octets)) == octets
