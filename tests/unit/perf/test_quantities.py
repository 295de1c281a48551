"""Quantities in the forms that users write."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from broker.perf.flags import argument, count, count_or_none, duration, rate, share, size


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (duration, "30", 30.0), (duration, "1.5s", 1.5), (duration, "500ms", 0.5), (duration, "2m", 120.0),
        (duration, "0", 0.0), (size, "16", 16), (size, "1KiB", 1024), (size, "64kB", 64_000), (size, "1.5MiB", 3 << 19),
        (size, "0", 0), (count, "10k", 10_000), (count, "2M", 2_000_000), (count_or_none, "0", 0), (rate, "0.5", 0.5),
        (rate, "10k", 10_000.0), (share, "1%", 0.01), (share, "0.25", 0.25), (share, "100%", 1.0),
        (argument, "x-max-length=10", ("x-max-length", 10)), (argument, "x-overflow=reject", ("x-overflow", "reject")),
        (argument, "a=true", ("a", True)), (argument, "a=", ("a", "")), (argument, "a=b=c", ("a", "b=c")),
    ],
)  # fmt: skip
def test_what_people_write_is_read(read: Callable[[str], object], text: str, value: object) -> None:
    """Units have their usual letters, in either case."""
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (duration, "x"), (duration, "5x"), (duration, "-1"), (duration, ""), (size, "1.5"), (size, "10s"),
        (size, "9" * 40), (count, "0"), (count, "1.5"), (rate, "0"), (share, "101%"), (share, "x%"),
        (argument, "x"), (argument, "=1"), (argument, "a" * 256 + "=1"), (duration, "nan"), (duration, "1e5"),
    ],
)  # fmt: skip
def test_what_is_none_is_told(read: Callable[[str], object], text: str) -> None:
    """An invalid quantity is refused with one line."""
    with pytest.raises(ArgumentTypeError, match=r"[a-z]"):
        read(text)
