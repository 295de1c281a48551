"""Measures memory and disk, raises and clears the alarms, and tells the publisher throttle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.core.alarms import Alarms, Watermark
from broker.event_log import get_logger
from broker.process_memory import memory_limit_bytes, resident_bytes

if TYPE_CHECKING:
    from broker.net.publisher_throttle import PublisherThrottle, ThrottledConnection
    from broker.settings import Settings
    from broker.store.reserve import Reserve

__all__ = ["AlarmWatch", "watermarks"]

_log = get_logger()


class AlarmWatch:
    """Measures memory and disk periodically, and restores the data folder's reserve when the disk has room."""

    def __init__(self, alarms: Alarms[ThrottledConnection], throttle: PublisherThrottle, reserve: Reserve) -> None:
        self._alarms = alarms
        self._throttle = throttle
        self._reserve = reserve

    def measure(self) -> None:
        """Measure once, and tell the throttle when an alarm was raised or cleared."""
        changed = self._alarms.measure("memory", resident_bytes())
        self._reserve.take_piece()
        changed |= self._alarms.measure("disk", self._reserve.free_bytes())
        if not changed:
            return
        for alarm in self._alarms.alarms.values():
            _log.warning("alarm.raised", **alarm.fields())
        if not self._alarms.alarms:
            _log.info("alarm.cleared")
        self._throttle.alarms_changed()

    def standing(self) -> list[dict[str, Any]]:
        """Return the fields of each active alarm."""
        return [alarm.fields() for alarm in self._alarms.alarms.values()]


def watermarks(settings: Settings) -> list[Watermark]:
    """Return the limits of the settings."""
    memory, store = settings.memory, settings.store
    if memory.alarm_bytes:
        limit = Watermark("memory", memory.alarm_bytes, "memory.alarm_bytes")
    else:
        limit = Watermark("memory", int(memory_limit_bytes() * memory.alarm_ratio), "memory.alarm_ratio")
    return [limit, Watermark("disk", store.disk_free_min_bytes, "store.disk_free_min_bytes")]
