"""The alarms of memory, disk and a cluster's database, and the connections that are blocked while one is raised.

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

CLEAR_DIVISOR: Final = 10  # an alarm clears a tenth of the limit away from where it is raised, to avoid flapping


@dataclass(frozen=True, slots=True)
class Alarm:
    """A raised alarm of memory or disk, with the facts that an operator needs to act.

    Units: `value_bytes` is the used memory or the free disk space when the alarm was raised.
    """

    kind: Kind
    value_bytes: int
    limit_bytes: int
    setting: str

    def fields(self) -> dict[str, str | int]:
        """Return the fields of the log event `alarm.raised`."""
        return {
            "kind": self.kind,
            "value_bytes": self.value_bytes,
            "limit_bytes": self.limit_bytes,
            "setting": self.setting,
            "advice": f"{ADVICE[self.kind]} {self.setting}",
        }


@dataclass(frozen=True, slots=True)
class Outage:
    """The alarm that is raised while a cluster's database is unreachable or fails."""

    reason: str

    def fields(self) -> dict[str, str | int]:
        """Return the fields of the log event `alarm.raised`."""
        advice = "publishers wait: make PostgreSQL work, and reachable from this node"
        return {"kind": DATABASE, "reason": self.reason, "advice": advice}


@dataclass(frozen=True, slots=True)
class Watermark:
    """A limit on one resource, named by its setting. A limit of 0 never raises an alarm.

    Used memory must stay below the limit, and free disk space must not fall below it.
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
    """The raised alarms, and the connections that they block.

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
        """Raise or clear the alarm of a resource after a measurement, and return whether this changed `alarms`. If it
        did, the caller must call `block` or `unblock`. `lacks` describes an incomplete reserve of the resource, or is
        None. While it is set, the alarm is raised whatever the value.
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
        """Raise the alarm of the database and return it. The caller must then call `block`."""
        self.alarms[DATABASE] = outage = Outage(reason)
        return outage

    def clear_outage(self) -> None:
        """Clear the alarm of the database. The caller must then call `unblock`."""
        self.alarms.pop(DATABASE, None)

    @property
    def reason(self) -> str:
        """The reason for connection.blocked; for memory and disk, in RabbitMQ's words."""
        low = " & ".join(sorted(self.alarms.keys() - {DATABASE}, reverse=True))
        outage = self.alarms.get(DATABASE)
        reasons = [outage.reason] if isinstance(outage, Outage) else []
        return ", ".join([*reasons, f"low on {low}"] if low else reasons)

    def block(self, publishers: Iterable[C]) -> list[C]:
        """Block publishers while an alarm is raised, and return those that were not blocked before.

        Call it with all publishers when an alarm is raised, and later with each connection that publishes.
        """
        if not self.alarms:
            return []
        fresh = [publisher for publisher in publishers if publisher not in self.blocked]
        self.blocked.update(fresh)
        return fresh

    def unblock(self) -> list[C]:
        """Unblock all connections unless an alarm is raised, and return those that were blocked."""
        if self.alarms:
            return []
        freed = list(self.blocked)
        self.blocked.clear()
        return freed

    def forget(self, connection: C) -> None:
        self.blocked.discard(connection)
