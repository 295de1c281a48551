"""JSON from other programs: everything that is accepted can be written again."""

import json
from typing import Any

import pytest

from broker.core.definitions.json_text import LEVELS_MAX, read_json


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


def test_levels_are_limited() -> None:
    """Whatever writes a value again, such as a field table, has a limit of its own."""
    within, beyond = ["[" * levels + "]" * levels for levels in (LEVELS_MAX, LEVELS_MAX + 1)]
    assert json.dumps(read_json(within.encode())) == within
    assert len(read_json(f"[{'[],' * 1000}[]]".encode())) == 1001
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(beyond.encode())
