"""Heartbeats: when the broker has to send one, and when a client has been silent for too long.

Source: AMQP 0-9-1, 4.2.7.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Heartbeats"]

SILENT_INTERVALS: Final = 2  # after two silent intervals the client is gone


class Heartbeats:
    """Counts the seconds in which nothing was sent to one client, or nothing came from it."""

    __slots__ = ("_heard_bytes", "_said_bytes", "_unsaid_s", "silent_s")

    def __init__(self) -> None:
        self._heard_bytes = self._said_bytes = -1
        self._unsaid_s = self.silent_s = 0

    def is_due(self, sent_bytes: int, interval_s: int) -> bool:
        """Count a second, and return whether a heartbeat is due after this many bytes in all."""
        if sent_bytes != self._said_bytes:
            self.said(sent_bytes)
        else:
            self._unsaid_s += 1
        return self._unsaid_s * 2 >= interval_s - 1  # what was sent may be a second older than this check

    def said(self, sent_bytes: int) -> None:
        """Note that something was just sent."""
        self._said_bytes, self._unsaid_s = sent_bytes, 0

    def is_silent(self, received_bytes: int, interval_s: int, *, reading: bool) -> bool:
        """Count a second, and return whether the client is gone; one that is not read may have sent something."""
        if received_bytes != self._heard_bytes or not reading:
            self._heard_bytes, self.silent_s = received_bytes, 0
            return False
        self.silent_s += 1
        return self.silent_s > interval_s * SILENT_INTERVALS
