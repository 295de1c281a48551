"""Log events of alarms: each is raised once and cleared once, by its name."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from broker.core.alarms import Alarms, Watermark
from broker.net import alarm_watch
from broker.net.alarm_watch import AlarmWatch
from broker.net.publisher_throttle import ThrottledConnection


def test_each_alarm_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm that stands is not told again when another one comes or goes."""
    used, free = [0], [0]
    monkeypatch.setattr(alarm_watch, "resident_bytes", lambda: used[0])
    watermarks = [Watermark("memory", 1000, "memory.alarm_bytes"), Watermark("disk", 500, "store.disk_free_min_bytes")]
    alarms: Alarms[ThrottledConnection] = Alarms(watermarks)
    saves: list[bool] = []
    watch = AlarmWatch(alarms, Mock(), Mock(free_bytes=lambda: free[0], missing_bytes=0), saves.append)

    def told(used_bytes: int, free_bytes: int) -> list[tuple[str, str]]:
        used[0], free[0] = used_bytes, free_bytes
        with capture_logs() as events:
            watch.measure()
        return [(event["event"], event["kind"]) for event in events]

    assert told(1000, 9000) == [("alarm.raised", "memory")]
    assert told(1000, 1) == [("alarm.raised", "disk")]
    assert told(0, 1) == [("alarm.cleared", "memory")]
    assert told(0, 1) == []
    assert told(0, 9000) == [("alarm.cleared", "disk")]
    assert saves == [True, False]
