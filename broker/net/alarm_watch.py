"""Watch memory and disk: raise and clear the alarms, and notify the publisher throttle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.core.alarms import Alarms, Kind, Watermark
from broker.event_log import get_logger
from broker.net.publisher_throttle import PublisherThrottle, ThrottledConnection
from broker.process_memory import memory_limit_bytes, resident_bytes
from broker.settings import Settings
from broker.store.data_folder import Reserve

_log = get_logger()


class AlarmWatch:
    """A monitor of memory and disk, which also restores the data folder's reserve when the disk has room.

    Invariant: after measure(), the disk alarm is raised if a part of the reserve is missing.
    """

    def __init__(
        self,
        alarms: Alarms[ThrottledConnection],
        throttle: PublisherThrottle,
        reserve: Reserve,
        save_space: Callable[[bool], None],
    ) -> None:
        """`save_space` is called with True when the disk has too little space, and with False once it has enough."""
        self._save_space = save_space
        self._alarms = alarms
        self._throttle = throttle
        self._reserve = reserve

    def measure(self) -> None:
        """Extend the reserve if there is room, measure once, and report a changed alarm to the log and the throttle."""
        changed = self._measure("memory", resident_bytes())
        reserve = self._reserve
        reserve.allocate_piece()
        missing = Watermark("disk", reserve.size_bytes, "store.reserve_bytes") if reserve.missing_bytes else None
        if self._measure("disk", reserve.free_bytes(), missing):
            changed = True
            self._save_space("disk" in self._alarms.alarms)
        if changed:
            self._throttle.alarms_changed()

    def _measure(self, kind: Kind, value_bytes: int, missing: Watermark | None = None) -> bool:
        if not self._alarms.measure(kind, value_bytes, missing):
            return False
        alarm = self._alarms.alarms.get(kind)
        if alarm is None:
            _log.info("alarm.cleared", kind=kind, value_bytes=value_bytes)
        else:
            _log.warning("alarm.raised", **alarm.fields())
        return True

    def active_alarms(self) -> list[dict[str, Any]]:
        """Return the fields of each active alarm."""
        return [alarm.fields() for alarm in self._alarms.alarms.values()]


def watermarks(settings: Settings) -> list[Watermark]:
    """Return the watermarks that the settings define."""
    memory, store = settings.memory, settings.store
    if memory.alarm_bytes:
        limit = Watermark("memory", memory.alarm_bytes, "memory.alarm_bytes")
    else:
        limit = Watermark("memory", int(memory_limit_bytes() * memory.alarm_ratio), "memory.alarm_ratio")
    return [limit, Watermark("disk", store.disk_free_min_bytes, "store.disk_free_min_bytes")]
