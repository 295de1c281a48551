"""Sizes and times as people write them: 512MiB, 10GB, 30s, 7d."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

SIZES: Final = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
"""The bytes of each unit. K, M and G alone mean powers of 1000 to some and of 1024 to others, so they are refused."""
TIMES_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
QUANTITY: Final = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII)


def size_bytes(text: str) -> int:
    """Return the bytes of a size such as 4096, 512MiB or 10GB. Raises: ValueError with the expected form."""
    return _quantity(text, {"": 1, **SIZES}, "a size such as 10GB or 512MiB")


def duration_ms(text: str, *, plain_ms: int = 1) -> int:
    """Return the milliseconds of a time such as 90s, 12h or 7d; a number without a unit is multiplied by `plain_ms`.

    Raises: ValueError with the expected form.
    """
    return _quantity(text, {"": plain_ms, **TIMES_MS}, "a time such as 500ms, 90s, 12h or 7d")


def _quantity(text: str, units: dict[str, int], expected: str) -> int:
    found = QUANTITY.fullmatch(text.strip().lower())
    unit = None if found is None else units.get(found[2])
    if found is None or unit is None or (value := Fraction(found[1]) * unit).denominator != 1:
        raise ValueError(f"should be {expected}")
    return int(value)
