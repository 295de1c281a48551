"""Times as users write them: 2026-11-20, 2026-11-20T08:30, with a zone or in UTC, or 7d for seven days ago."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

from broker.pipeline.faults import LakeRefused

__all__ = ["Instant", "instant_ms", "now_ms"]

Instant = datetime | str | None

UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
FIRST_MS: Final = 0  # all messages are later
_AGO: Final = re.compile(r"(\d{1,9})([smhd])")


def instant_ms(instant: Instant, now_ms: int) -> int | None:
    """Return a time in milliseconds since 1970, None for None; one without a zone is UTC. Raises: LakeRefused."""
    if instant is None:
        return None
    if isinstance(instant, str):
        ago = _AGO.fullmatch(instant)
        if ago is not None:
            return max(FIRST_MS, now_ms - int(ago[1]) * UNITS_MS[ago[2]])
        try:
            instant = datetime.fromisoformat(instant)
        except ValueError as error:
            raise LakeRefused(f"{instant!r} is no time such as 2026-11-20, 2026-11-20T08:30:00Z or 7d") from error
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return round(instant.timestamp() * 1000)


def now_ms() -> int:
    """Return the time of the machine's clock."""
    return time.time_ns() // 1_000_000
