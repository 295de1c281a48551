"""Heartbeats: when the broker has to send one, and when a client has been silent for too long.

Source: AMQP 0-9-1, 4.2.7.
"""

from __future__ import annotations

from typing import Final

BRISK_MAX_S: Final = 10  # up to this interval, a check once a second would make a heartbeat late
SILENT_INTERVALS: Final = 2  # after two silent intervals the client is considered gone


class Heartbeats:
    """Measure how long nothing was sent to one client, and how long nothing was received from it.

    Units: the first in calls of `is_due`, the second in calls of `is_silent`, one a second.
    """

    __slots__ = ("_heard_bytes", "_said_bytes", "_unsaid", "silent_s")

    def __init__(self) -> None:
        self._heard_bytes = self._said_bytes = -1
        self._unsaid = self.silent_s = 0

    def is_due(self, sent_bytes: int, interval_calls: int) -> bool:
        """Return whether nothing was sent for half an interval. `sent_bytes` is the total so far.

        Units: `interval_calls` is the interval in calls of this method.
        """
        if sent_bytes != self._said_bytes:
            self.said(sent_bytes)
        else:
            self._unsaid += 1
        return self._unsaid * 2 >= interval_calls - 1  # the last output may be older than this call by one

    def said(self, sent_bytes: int) -> None:
        """Record that something was just sent."""
        self._said_bytes, self._unsaid = sent_bytes, 0

    def is_silent(self, received_bytes: int, interval_s: int, *, reading: bool) -> bool:
        """Count a second, and return whether the client is gone; a client that is not being read may have sent
        something.
        """
        if received_bytes != self._heard_bytes or not reading:
            self._heard_bytes, self.silent_s = received_bytes, 0
            return False
        self.silent_s += 1
        return self.silent_s > interval_s * SILENT_INTERVALS
