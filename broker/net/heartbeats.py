"""Heartbeats: when the broker has to send one, and when a client has been silent for too long.

Source: AMQP 0-9-1, 4.2.7.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BRISK_MAX_S", "Heartbeats"]

BRISK_MAX_S: Final = 10  # with an interval up to this, a look once a second would make a heartbeat late
SILENT_INTERVALS: Final = 2  # after two silent intervals the client is gone


class Heartbeats:
    """Counts for how long nothing was sent to one client, or nothing came from it.

    Units: what was not sent counts in looks, so many a second as the caller likes; silence counts in seconds.
    """

    __slots__ = ("_heard_bytes", "_said_bytes", "_unsaid", "silent_s")

    def __init__(self) -> None:
        self._heard_bytes = self._said_bytes = -1
        self._unsaid = self.silent_s = 0

    def is_due(self, sent_bytes: int, interval: int) -> bool:
        """Count a look, and return whether nothing was sent for half an interval, which is one of so many looks."""
        if sent_bytes != self._said_bytes:
            self.said(sent_bytes)
        else:
            self._unsaid += 1
        return self._unsaid * 2 >= interval - 1  # what was sent may be a look older than this one

    def said(self, sent_bytes: int) -> None:
        """Note that something was just sent."""
        self._said_bytes, self._unsaid = sent_bytes, 0

    def is_silent(self, received_bytes: int, interval_s: int, *, reading: bool) -> bool:
        """Count a second, and return whether the client is gone; one that is not read may have sent something."""
        if received_bytes != self._heard_bytes or not reading:
            self._heard_bytes, self.silent_s = received_bytes, 0
            return False
        self.silent_s += 1
        return self.silent_s > interval_s * SILENT_INTERVALS
