"""Numbers for readers: a suitable unit, three digits, no meaningless zeros."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.figures.numerals import (
    digits,
    duration_text,
    figure_text,
    rate_text,
    ratio_text,
    share_text,
    short_text,
    size_text,
    span_text,
)


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 us"), (0.123, "0.123 us"), (1, "1 us"), (139.4, "139 us"), (999.4, "999 us"), (999.6, "1 ms"),
        (1_130, "1.13 ms"), (99_960, "100 ms"), (999_499, "999 ms"), (999_501, "1 s"), (60_000_000, "60 s"),
        (3_600_000_000, "3,600 s"),
    ],
)  # fmt: skip
def test_a_duration_has_the_unit_that_suits(us: float, text: str) -> None:
    """A duration is in microseconds, milliseconds or seconds."""
    assert duration_text(us) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (950, "950 B"), (1023.9, "1 KiB"), (1024, "1 KiB"), (1536, "1.5 KiB"), (60 << 20, "60 MiB")],
)
def test_a_size_is_in_powers_of_1024(size_bytes: float, text: str) -> None:
    """A size is in bytes, KiB, MiB ..."""
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (212.0, "us", "212 us"), (1.5, "s", "1.5 s"), (2048, "bytes", "2 KiB"), (4123.4, "per_s", "4,123/s"),
        (0.0123, "share", "1.23 %"), (2000, "connections", "2,000 connections"), (7, "", "7"),
    ],
)  # fmt: skip
def test_a_figure_has_its_unit(value: float, unit: str, text: str) -> None:
    """A known unit has its usual symbol; any other unit is a noun after the number."""
    assert figure_text(value, unit) == text


def test_rates_counts_and_ratios() -> None:
    """Rates, counts and ratios are written in full, and with three digits on an axis."""
    assert [rate_text(value) for value in (0, 3.21, 999.6, 123_456.7)] == ["0/s", "3.21/s", "1,000/s", "123,457/s"]
    assert [short_text(value) for value in (0, 950, 1_234, 100_000, 34e6)] == ["0", "950", "1.23k", "100k", "34M"]
    assert [ratio_text(value, 2) for value in (0, 1, 2, 3.14, 300)] == ["0x", "0.5x", "1x", "1.57x", "150x"]
    assert ratio_text(1, 0) is None
    assert share_text(1 / 3) == "33.3 %"


@given(st.floats(1e-6, 1e9))
def test_three_digits_are_kept(value: float) -> None:
    """The text reads back within half a percent, and is as short as possible."""
    text = digits(value)
    assert float(text) == pytest.approx(value, rel=0.00501)
    assert "." not in text or text[-1] not in ".0"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3700, "1 h 1 min"), (90000, "1 d 1 h")]
)
def test_spans_are_two_units(seconds: float, text: str) -> None:
    """A time span is in its largest unit and the next smaller one."""
    assert span_text(seconds) == text
