"""Which streams of a leaf are stuck: its acks stand still although more was sent."""

from __future__ import annotations

from broker.overlay.packets import Space


class LagWatch:
    """Tells when the acks of a stream have stood still for `stall_ms`, and again after each further `tip_ms`."""

    __slots__ = ("_due", "_stall_ms", "_tip_ms")

    def __init__(self, stall_ms: int, tip_ms: int) -> None:
        self._stall_ms = stall_ms
        self._tip_ms = tip_ms
        self._due: dict[Space, tuple[int, int]] = {}  # the first number that is not acknowledged, and when to tell

    def stands(self, space: Space, needed: int, sent: int, now_ms: int) -> bool:
        """Return whether a stream is stuck; call it now and then. `needed` is the first number that a leaf lacks."""
        if needed > sent:
            self._due.pop(space, None)
            return False
        known, due_ms = self._due.get(space, (0, 0))
        if known != needed:
            self._due[space] = (needed, now_ms + self._stall_ms)
            return False
        if now_ms < due_ms:
            return False
        self._due[space] = (needed, now_ms + self._tip_ms)
        return True

    def forget(self, space: Space) -> None:
        """Drop a stream that nobody needs any more."""
        self._due.pop(space, None)
