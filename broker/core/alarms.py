"""Memory and disk alarms as values, and the connections that are blocked while one is raised.

Pure: the caller measures, calls `measure`, and stops reading the connections that `block` returns. Consumers continue,
so that the queues can drain.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

Kind = Literal["memory", "disk"]
DATABASE: Final = "database"
ADVICE: Final[dict[Kind, str]] = {
    "memory": "publishers wait: consume or purge messages, close idle connections, or raise",
    "disk": "publishers wait: consume or purge messages, free disk space, or lower",
}
C = TypeVar("C", bound=Hashable)

CLEAR_DIVISOR: Final = 10  # an alarm ends a tenth of its limit away from it: otherwise each message could toggle it


@dataclass(frozen=True, slots=True)
class Alarm:
    """One limit that was passed, with the facts that an operator needs to act.

    Units: `value_bytes` is the used memory or the free disk space at the moment at which the alarm was raised.
    """

    kind: Kind
    value_bytes: int
    limit_bytes: int
    setting: str

    def fields(self) -> dict[str, str | int]:
        """Return the fields of the log event `alarm.raised`: the limit, its setting, and what to do."""
        return {
            "kind": self.kind,
            "value_bytes": self.value_bytes,
            "limit_bytes": self.limit_bytes,
            "setting": self.setting,
            "advice": f"{ADVICE[self.kind]} {self.setting}",
        }


@dataclass(frozen=True, slots=True)
class Outage:
    """The alarm of a cluster's database, which is unreachable or fails."""

    reason: str

    def fields(self) -> dict[str, str | int]:
        """Return the fields of the log event `alarm.raised`."""
        advice = "publishers wait: make PostgreSQL work, and reachable from this node"
        return {"kind": DATABASE, "reason": self.reason, "advice": advice}


@dataclass(frozen=True, slots=True)
class Watermark:
    """A limit on one resource, named by its setting. A limit of 0 never raises an alarm.

    Memory must stay under its limit, free disk space over it.
    """

    kind: Kind
    limit_bytes: int
    setting: str

    def passed(self, value_bytes: int) -> bool:
        """Return whether a measured value raises the alarm."""
        if not self.limit_bytes:
            return False
        return value_bytes >= self.limit_bytes if self.kind == "memory" else value_bytes < self.limit_bytes

    def recovered(self, value_bytes: int) -> bool:
        """Return whether a measured value is far enough from the limit for the alarm to end."""
        if not self.limit_bytes:  # the limit was removed while the alarm was raised
            return True
        margin = self.limit_bytes // CLEAR_DIVISOR
        if self.kind == "memory":
            return value_bytes < self.limit_bytes - margin
        return value_bytes >= self.limit_bytes + margin


class Alarms(Generic[C]):
    """Hold the raised alarms and the connections that they block.

    Invariant: after `unblock`, `blocked` is empty unless an alarm is raised.
    """

    def __init__(self, watermarks: Iterable[Watermark]) -> None:
        self._watermarks = {watermark.kind: watermark for watermark in watermarks}
        self.alarms: dict[str, Alarm | Outage] = {}
        self.blocked: set[C] = set()

    def set_watermarks(self, watermarks: Iterable[Watermark]) -> None:
        """Apply changed limits from the next measurement on, to raised alarms too."""
        self._watermarks = {watermark.kind: watermark for watermark in watermarks}

    def measure(self, kind: Kind, value_bytes: int, lacks: Watermark | None = None) -> bool:
        """Process a measured value, and return whether it raised or cleared the alarm of its kind: `alarms` contains
        the alarm if it was raised. Then call `block` or `unblock`. `lacks` is set while a resource is missing: the
        alarm is then raised, and not cleared, whatever the limit.
        """
        watermark = self._watermarks[kind]
        if kind in self.alarms:
            if lacks is not None or not watermark.recovered(value_bytes):
                return False
            del self.alarms[kind]
            return True
        if not watermark.passed(value_bytes):
            if lacks is None:
                return False
            watermark = lacks
        self.alarms[kind] = Alarm(kind, value_bytes, watermark.limit_bytes, watermark.setting)
        return True

    def raise_outage(self, reason: str) -> Outage:
        """Raise the alarm of the database and return it; then call `block`."""
        self.alarms[DATABASE] = outage = Outage(reason)
        return outage

    def clear_outage(self) -> None:
        """Clear the alarm of the database; then call `unblock`."""
        self.alarms.pop(DATABASE, None)

    @property
    def reason(self) -> str:
        """The reason in connection.blocked: an outage, and in RabbitMQ's words, low on memory, disk, or both."""
        low = " & ".join(sorted(self.alarms.keys() - {DATABASE}, reverse=True))
        outage = self.alarms.get(DATABASE)
        reasons = [outage.reason] if isinstance(outage, Outage) else []
        return ", ".join([*reasons, f"low on {low}"] if low else reasons)

    def block(self, publishers: Iterable[C]) -> list[C]:
        """Return the publishing connections that must now be blocked and were not before.

        Call it with all publishers when an alarm was raised, and with one when it publishes for the first time.
        """
        if not self.alarms:
            return []
        fresh = [publisher for publisher in publishers if publisher not in self.blocked]
        self.blocked.update(fresh)
        return fresh

    def unblock(self) -> list[C]:
        """Return the connections to be unblocked: all of them when no alarm is raised, else none."""
        if self.alarms:
            return []
        freed = list(self.blocked)
        self.blocked.clear()
        return freed

    def forget(self, connection: C) -> None:
        self.blocked.discard(connection)
