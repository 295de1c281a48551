"""Counts the events of messages, in one process or in all."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class RunTally:
    """Messages since the run began."""

    published: int = 0
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    delivered: int = 0
    acked: int = 0
    deliver_bytes: int = 0
    blocked: int = 0  # publishers that the broker blocks now

    def __add__(self, other: RunTally) -> RunTally:
        return RunTally(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: RunTally) -> RunTally:
        return RunTally(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))
