"""JSON from other programs: everything that is accepted can be written again."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from broker.core.definitions.json_text import LEVELS_MAX, read_json, reading_json


@pytest.fixture(params=[None, 1, 2, 3], ids=["whole", "1 level", "2 levels", "3 levels"])
def read(request: pytest.FixtureRequest) -> Callable[[bytes], Any]:
    """Return what reads JSON: in one step, or in one for each member of the outer levels."""
    if request.param is None:
        return read_json
    return lambda octets: in_steps(octets, request.param)[0]


def in_steps(octets: bytes, outer_levels: int) -> tuple[Any, int]:
    """Return the value, and in how many steps it was read."""
    steps, reading = 0, reading_json(octets, outer_levels)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return end.value, steps
        steps += 1


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1.5,
        1 << 70,
        "",
        "é🎉\x00\x1b",
        "\\ud800",
        {"a": [1, {"b": "\u2028"}]},
        [],
        {},
        [{}, []],
        {"a": {}, "b": [[[1, 2]], 3]},
    ],
)
def test_what_can_be_written_is_read(read: Callable[[bytes], Any], value: Any) -> None:
    """UTF-8 and escapes are read, with and without a byte order mark."""
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False), "\ufeff" + json.dumps(value)):
        assert read(text.encode()) == value


@pytest.mark.parametrize(
    "octets",
    [
        b"", b"{", b"\xff", b"{}{}", b'"\xed\xa0\x80"', rb'{"a": "\ud800"}', rb'{"\uDFFF": 1}', rb'["\ud83c x"]',
        b"NaN", b'{"a": [Infinity]}', b"-Infinity", b"1e999", b"[-1e400]", b"[" * 100_000, '{"a": 1}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_what_could_not_be_written_again_is_refused(read: Callable[[bytes], Any], octets: bytes) -> None:
    """Lone surrogates, invalid numbers, invalid UTF-8 and truncated text are refused."""
    with pytest.raises(ValueError):  # noqa: PT011 - the texts differ, and most are those of the standard library
        read(octets)


@pytest.mark.parametrize("inner", ["", "1", '"["', '"[", {}', '{"a": 1}, []'])
def test_levels_are_limited(read: Callable[[bytes], Any], inner: str) -> None:
    """Arrays and objects are levels; numbers and texts are none, whatever brackets the whole text contains."""
    outer_levels = LEVELS_MAX - ("{" in inner)
    within, beyond = ["[" * levels + inner + "]" * levels for levels in (outer_levels, outer_levels + 1)]
    assert json.dumps(read(within.encode())) == within
    assert len(read(f"[{'[],' * 1000}[]]".encode())) == 1001
    with pytest.raises(ValueError, match="nested too deeply"):
        read(beyond.encode())


@pytest.mark.parametrize(
    "text", ["[1 2]", "[1,", '{"a" 1}', '{"a": }', "{1: 2}", '{"a": 1 "b": 2}', "[] []", " ", "[x]"]
)
def test_invalid_text_is_refused_in_the_same_words(text: str) -> None:
    """An error in a long document is located, as in a short one."""
    with pytest.raises(ValueError) as whole:  # noqa: PT011 - the text is compared below
        read_json(text.encode())
    for levels in (1, 2):
        with pytest.raises(ValueError, match=f"^{re.escape(str(whole.value))}$"):
            in_steps(text.encode(), levels)


def test_a_step_reads_one_member() -> None:
    """A long document is read in as many steps as it has entries, and a field's name is stored once."""
    document = {"queues": [{"name": f"q{number}", "field of ours": 1} for number in range(5000)], "n": 1}
    found, steps = in_steps(json.dumps(document).encode(), 2)
    assert found == document
    assert steps == 5000 + len(document)
    assert len({id(name) for row in found["queues"] for name in row}) == 2
