"""The findings of checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The result of a check. WARN: the broker works, but not as well as it could. BAD: it fails or breaks a promise."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of the report. Shapes: `advice` says what to change, and is empty if nothing needs to change."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


def fine(check: str, found: str) -> Diagnosis:
    """Return a finding that needs no change."""
    return Diagnosis(check, Verdict.OK, found)


def warn(check: str, found: str, advice: str) -> Diagnosis:
    """Return a finding that should be changed."""
    return Diagnosis(check, Verdict.WARN, found, advice)


def bad(check: str, found: str, advice: str) -> Diagnosis:
    """Return a finding that must be changed."""
    return Diagnosis(check, Verdict.BAD, found, advice)
