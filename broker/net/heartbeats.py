"""Heartbeats: when the broker must send one, and when a client has been silent for too long.

Source: AMQP 0-9-1, 4.2.7.
"""

from __future__ import annotations

from typing import Final

SHORT_INTERVAL_MAX_S: Final = 10  # up to this interval, checks once a second would send heartbeats late
SILENT_INTERVALS: Final = 2  # after two silent intervals the client is considered gone


class Heartbeats:
    """The time since the last output to one client, and since the last input from it.

    Units: the first is counted in calls of `is_due`, the second in calls of `is_silent`, one a second.
    """

    __slots__ = ("_received_bytes", "_sent_bytes", "_unsent_calls", "silent_s")

    def __init__(self) -> None:
        self._received_bytes = self._sent_bytes = -1
        self._unsent_calls = self.silent_s = 0

    def is_due(self, sent_bytes: int, interval_calls: int) -> bool:
        """Return whether nothing was sent for half an interval.

        Units: `sent_bytes` is the total so far, `interval_calls` the interval in calls of this method.
        """
        if sent_bytes != self._sent_bytes:
            self.sent(sent_bytes)
        else:
            self._unsent_calls += 1
        return self._unsent_calls * 2 >= interval_calls - 1  # the last output may be up to one call older than counted

    def sent(self, sent_bytes: int) -> None:
        """Record that output was just sent."""
        self._sent_bytes, self._unsent_calls = sent_bytes, 0

    def is_silent(self, received_bytes: int, interval_s: int, *, reading: bool) -> bool:
        """Count a second, and return whether the client is considered gone; without `reading`, it never is."""
        if received_bytes != self._received_bytes or not reading:
            self._received_bytes, self.silent_s = received_bytes, 0
            return False
        self.silent_s += 1
        return self.silent_s > interval_s * SILENT_INTERVALS
