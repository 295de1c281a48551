"""Counts publisher confirms, `multiple` and single, in any order."""

from __future__ import annotations


class Confirms:
    """The confirmed publish sequence numbers: a watermark and the few numbers above it.

    Invariant: every number up to `watermark` is confirmed, and `above` holds no number up to `watermark` + 1.
    """

    __slots__ = ("above", "frames", "watermark")

    def __init__(self) -> None:
        self.watermark = 0
        self.above: set[int] = set()
        self.frames = 0

    @property
    def count(self) -> int:
        """Return how many messages are confirmed."""
        return self.watermark + len(self.above)

    def add(self, tag: int, *, multiple: bool) -> None:
        """Count one basic.ack; a repeated tag changes nothing.

        Cost: one step per tag, and one more per number above the watermark when the watermark passes it.
        """
        self.frames += 1
        if tag <= self.watermark:
            return
        above = self.above
        if not multiple:
            above.add(tag)
            watermark = self.watermark
            while watermark + 1 in above:
                watermark += 1
                above.remove(watermark)
            self.watermark = watermark
            return
        watermark = tag
        if above:
            above = {one for one in above if one > tag}
            while watermark + 1 in above:
                watermark += 1
                above.remove(watermark)
            self.above = above
        self.watermark = watermark
