"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """WARN: the broker works, and less well than it could. BAD: it will not start, or breaks a promise."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of the report. Shapes: `advice` says what to change, empty if nothing."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


def fine(check: str, found: str) -> Diagnosis:
    """Return a finding that needs no change."""
    return Diagnosis(check, Verdict.OK, found)


def warn(check: str, found: str, advice: str) -> Diagnosis:
    """Return a finding that should be changed some time."""
    return Diagnosis(check, Verdict.WARN, found, advice)


def bad(check: str, found: str, advice: str) -> Diagnosis:
    """Return a finding that must be changed."""
    return Diagnosis(check, Verdict.BAD, found, advice)
