"""JSON from other programs: everything that is accepted can be written again."""

import json
from typing import Any

import pytest

from broker.core.definitions.json_text import read_json


@pytest.mark.parametrize(
    "value", [None, True, 0, -1.5, 1 << 70, "", "é🎉\x00\x1b", "\\ud800", {"a": [1, {"b": "\u2028"}]}, []]
)
def test_what_can_be_written_is_read(value: Any) -> None:
    """UTF-8 and escapes are read, with and without a byte order mark."""
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False), "\ufeff" + json.dumps(value)):
        assert read_json(text.encode()) == value


@pytest.mark.parametrize(
    "octets",
    [
        b"", b"{", b"\xff", b"{}{}", b'"\xed\xa0\x80"', rb'{"a": "\ud800"}', rb'{"\uDFFF": 1}', rb'["\ud83c x"]',
        b"NaN", b'{"a": [Infinity]}', b"-Infinity", b"1e999", b"[-1e400]", b"[" * 100_000, '{"a": 1}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_what_could_not_be_written_again_is_refused(octets: bytes) -> None:
    """Lone surrogates, invalid numbers, invalid UTF-8 and truncated text are refused."""
    with pytest.raises(ValueError):  # noqa: PT011 - the texts differ, and most are those of the standard library
        read_json(octets)
