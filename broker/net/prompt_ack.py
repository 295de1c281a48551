"""Prompt acknowledgements, for clients that leave Nagle's algorithm on.

Such a client sends its second small segment when the first is acknowledged. Linux delays an acknowledgement by 40 ms
when the broker has nothing to send: after connection.tune-ok, after the first half of a publish, or after a publish
without confirms. So the client waits that long in each connect, and in each publish followed by a get.

A small read that ends amid a message is acknowledged at once: its rest may wait for that. Other reads are once the
client was seen waiting: most publishes are not followed by anything, and Linux acknowledges every second full segment
of a large body by itself.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import Final

__all__ = ["DELAYED_MS", "PROMPT_ACKS", "WAITS", "PromptAck", "acknowledge"]

DELAYED_MS: Final = 38
"""A client whose next octets arrive later than this after a read without an answer may have waited for our ACK."""
LONGEST_DELAY_MS: Final = 60
"""The kernel's 40 to 44 ms, a short round trip, and some patience: other pauses are not mistaken for it."""
WAITS: Final = 1
"""So many waits in a row let the broker acknowledge at once: for a client that paused by chance, it costs little."""
WAITS_MAX: Final = 48
"""Twice as many are needed after each time that the client then waited all the same, up to this number."""
PROMPT_ACKS: Final = 1000
"""Reads that are acknowledged at once. Then the client has to be seen waiting again."""


class PromptAck:
    """Decides which reads of one client are acknowledged at once."""

    __slots__ = ("_left", "_needed", "_quiet_ms", "_waits")

    def __init__(self) -> None:
        self._quiet_ms = 0  # when the client was last read, if there was nothing to answer
        self._waits = 0
        self._needed = WAITS
        self._left = 0

    def after_read(self, now_ms: int, answered: bool, amid_message: bool) -> bool:
        """Return whether to acknowledge a read now; an answer carries its acknowledgement with it. HOT."""
        if self._quiet_ms:
            if DELAYED_MS <= now_ms - self._quiet_ms <= LONGEST_DELAY_MS:
                self._note_wait()
            else:
                self._waits = 0
        if answered or amid_message:
            self._quiet_ms = 0
            return not answered
        self._quiet_ms = now_ms
        if self._left:
            self._left -= 1
            return True
        return False

    def _note_wait(self) -> None:
        """Note that the client may have waited for an acknowledgement, or for something else if that came at once."""
        self._waits += 1
        if self._left:
            self._left = self._waits = 0
            self._needed = min(2 * self._needed, WAITS_MAX)
        elif self._waits >= self._needed:
            self._waits = 0
            self._left = PROMPT_ACKS


def acknowledge(end: socket.socket | None) -> None:
    """Acknowledge at once what was read from a TCP socket; do nothing for another socket, or without Linux.

    The option holds until the broker sends something.
    """
    if sys.platform == "linux" and end is not None:
        with suppress(OSError):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
