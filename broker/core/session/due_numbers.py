"""The numbers of publishes that are due to be answered."""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["due_numbers"]


def due_numbers(numbers: list[int], upto: int) -> list[int]:
    """Remove the numbers up to `upto` from an ascending list, and return them."""
    at = bisect_right(numbers, upto)
    due = numbers[:at]
    del numbers[:at]
    return due
