"""How long to wait for an answer before asking again."""

from __future__ import annotations

FIRST_MS = 300
LEAST_MS = 100
LONGEST_MS = 5_000


class RoundTrip:
    """An estimate of the time until an answer arrives, in milliseconds.

    Source: RFC 6298, with shorter limits; as there, no answer to a repeated question is measured.
    """

    __slots__ = ("_deviation_ms", "_smoothed_ms", "timeout_ms")

    def __init__(self) -> None:
        self._smoothed_ms = 0
        self._deviation_ms = 0
        self.timeout_ms = FIRST_MS

    def measured(self, elapsed_ms: int) -> None:
        """Learn from an answer."""
        if self._smoothed_ms:
            self._deviation_ms = (3 * self._deviation_ms + abs(self._smoothed_ms - elapsed_ms)) // 4
            self._smoothed_ms = (7 * self._smoothed_ms + elapsed_ms) // 8
        else:
            self._smoothed_ms = max(1, elapsed_ms)
            self._deviation_ms = elapsed_ms // 2
        self.timeout_ms = min(LONGEST_MS, max(LEAST_MS, self._smoothed_ms + 4 * self._deviation_ms))

    def missed(self) -> None:
        """Wait twice as long for the next answer."""
        self.timeout_ms = min(LONGEST_MS, 2 * self.timeout_ms)
