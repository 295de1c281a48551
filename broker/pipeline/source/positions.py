"""Where reading begins and ends: `from` and `to` of the sources. Pure.

    earliest       what is there from the first on (of `from` alone)
    latest         what is sealed now: from there on, or up to there
    seal:N         slots from, or before, that seal
    id:N           messages from, or before, that message id of their queue
    2026-11-20T08:00:00Z, 2026-11-20   messages taken from, or before, that time; UTC unless it says otherwise

The first that is read is the one at `from`, the last the one before `to`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from broker.pipeline.source.filters import Condition

__all__ = ["EARLIEST", "LATEST", "BadPosition", "Position", "read_position"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
COLUMN_OF: Final = {"seal": "seal", "id": "offset", "time": "ts"}
NUMBER_MAX: Final = (1 << 63) - 1


class BadPosition(ValueError):
    """A text that names no position; one line."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the order of messages. Units: of a time microseconds since 1970."""

    kind: str
    value: int = 0

    def from_here(self) -> tuple[Condition, ...]:
        """Return the condition on what is read when it begins here."""
        return (Condition(COLUMN_OF[self.kind], ">=", self.value),) if self.kind in COLUMN_OF else ()

    def up_to_here(self) -> tuple[Condition, ...]:
        """Return the condition on what is read when it ends here."""
        return (Condition(COLUMN_OF[self.kind], "<", self.value),) if self.kind in COLUMN_OF else ()


EARLIEST: Final = Position("earliest")
LATEST: Final = Position("latest")


def read_position(text: str) -> Position:
    """Return the position that a text names. Raises: BadPosition."""
    text = text.strip()
    if text in ("earliest", "latest"):
        return Position(text)
    kind, colon, number = text.partition(":")
    if colon and kind in ("seal", "id"):
        if not (number.isascii() and number.isdigit()) or int(number) > NUMBER_MAX:
            raise BadPosition(f"{text!r} is no position: {kind}: wants a number behind it")
        return Position(kind, int(number))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadPosition(
            f"{text!r} is no position, such as earliest, latest, seal:12, id:5000 or 2026-11-20T08:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Position("time", (moment - EPOCH) // timedelta(microseconds=1))
