"""Measures memory and disk, raises and clears the alarms, and has the intake act on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.core.flow import Flow, Watermark
from broker.delivery.machine import memory_limit_bytes, resident_bytes
from broker.event_log import get_logger

if TYPE_CHECKING:
    from broker.net.intake import Intake
    from broker.net.transport import Transport
    from broker.settings import Settings
    from broker.store.reserve import Reserve

__all__ = ["Alarms", "watermarks"]

_log = get_logger()


class Alarms:
    """Looks at memory and disk every so often, and has the data folder take its reserve back when the disk has room."""

    def __init__(self, flow: Flow[Transport], intake: Intake, reserve: Reserve) -> None:
        self._flow = flow
        self._intake = intake
        self._reserve = reserve

    def measure(self) -> None:
        """Look once, and tell whom it concerns when an alarm came or went."""
        changed = self._flow.measure("memory", resident_bytes())
        self._reserve.take_piece()
        changed |= self._flow.measure("disk", self._reserve.free_bytes())
        if not changed:
            return
        for alarm in self._flow.alarms.values():
            _log.warning("alarm.raised", **alarm.fields())
        if not self._flow.alarms:
            _log.info("alarm.cleared")
        self._intake.alarms_changed()

    def standing(self) -> list[dict[str, Any]]:
        """Return what each standing alarm is about."""
        return [alarm.fields() for alarm in self._flow.alarms.values()]


def watermarks(settings: Settings) -> list[Watermark]:
    """Return the limits that the settings ask for."""
    memory, store = settings.memory, settings.store
    if memory.alarm_bytes:
        limit = Watermark("memory", memory.alarm_bytes, "memory.alarm_bytes")
    else:
        limit = Watermark("memory", int(memory_limit_bytes() * memory.alarm_ratio), "memory.alarm_ratio")
    return [limit, Watermark("disk", store.disk_free_min_bytes, "store.disk_free_min_bytes")]
