"""Format numbers for readers: counts, rates, durations, sizes and ratios."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_THOUSANDS: Final = ("", "k", "M", "G", "T", "P")
_SPANS: Final = (
    (31_536_000, "y", 86_400, "d"),
    (86_400, "d", 3_600, "h"),
    (3_600, "h", 60, "min"),
    (60, "min", 1, "s"),
)


def count_text(value: float) -> str:
    """Return a count in full: 1,234,567."""
    return f"{value:,.0f}"


def rate_text(per_s: float) -> str:
    """Return a rate: 123,456/s, 3.2/s."""
    return f"{number_text(per_s)}/s"


def short_text(value: float) -> str:
    """Return a count with a suitable suffix: 950, 1.2k, 34M."""
    return _scaled(value, 1000, _THOUSANDS, "")


def size_text(size_bytes: float) -> str:
    """Return a size in a suitable unit: 950 B, 1.2 KiB."""
    return _scaled(size_bytes, KIB, _SIZES, " ")


def duration_text(us: float) -> str:
    """Return a duration in a suitable unit: 12.3 us, 4.5 ms, 2 s."""
    if us < 999.5:
        return f"{digits(us)} us"
    if us < 999_500:
        return f"{digits(us / 1e3)} ms"
    return f"{number_text(us / 1e6)} s"


def span_text(seconds: float) -> str:
    """Return a span of time in its largest unit and a smaller one: 2 d 3 h, 40 s."""
    whole = round(seconds)
    for size, name, smaller, smaller_name in _SPANS:
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{whole} s"


def many(count: int, noun: str) -> str:
    """Return a count with its noun: 1 message, 1,234 messages."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def number_text(value: float) -> str:
    """Return a number in full from 1,000 on, else to three significant digits: 123,456, 12.3, 0.0123."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else digits(value)


def ratio_text(value: float, base: float) -> str | None:
    """Return the ratio of a value to `base`, or None if the value is negative or `base` is not above 0."""
    if base <= 0 or value < 0:
        return None
    ratio = value / base
    return f"{ratio:,.0f}x" if ratio >= 99.5 else f"{digits(ratio)}x"


def figure_text(value: float, unit: str) -> str:
    """Return a number with its unit. Shapes: `unit` is us, s, bytes, per_s, share, or a noun."""
    match unit:
        case "us":
            return duration_text(value)
        case "s":
            return duration_text(value * 1e6)
        case "bytes":
            return size_text(value)
        case "per_s":
            return rate_text(value)
        case "share":
            return share_text(value)
    return f"{number_text(value)} {unit}".rstrip()


def share_text(share: float) -> str:
    """Return a fraction of 1 as a percentage."""
    return f"{digits(share * 100)} %"


def digits(value: float) -> str:
    """Return a number to three significant digits, or whole from 1,000 on, without separators: 1234, 12.3, 0.00123."""
    if value == 0:
        return "0"
    places = 0
    while places < 9 and abs(value) * 10**places < 99.95:
        places += 1
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, base: int, units: tuple[str, ...], gap: str) -> str:
    for unit in units:
        text = digits(value)
        if abs(float(text)) < base or unit == units[-1]:
            return f"{text}{gap if unit else ''}{unit}"
        value /= base
    raise AssertionError(value)
