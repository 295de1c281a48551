"""Monitors a run: its progress, when it began, when it was complete, and for how long nothing has changed."""

from demo.ledger import Count, Ledger
from demo.progress import Snapshot


class Watch:
    """The state of the ledger at the last reading.

    `began_s`, `published_s`, `moved_s` are the times of the readings that first saw a flight published, saw the last
    one confirmed, and last saw any change.
    """

    def __init__(self, ledger: Ledger, deliveries: int, now_s: float) -> None:
        self._ledger = ledger
        self._deliveries = deliveries
        self.published = 0
        self.confirmed = 0
        self.delivered = 0
        self.began_s: float | None = None
        self.published_s: float | None = None
        self.moved_s = now_s

    def look(self, now_s: float, broker: str) -> Snapshot:
        """Read the ledger; return the number of distinct flights published and confirmed, and of deliveries."""
        before = (self.published, self.confirmed, self.delivered)
        self.published = self._ledger.total(Count.PUBLISHED) - self._ledger.total(Count.RESENT)
        self.confirmed = self._ledger.total(Count.CONFIRMED)
        self.delivered = self._ledger.total(Count.DELIVERED)
        if (self.published, self.confirmed, self.delivered) != before:
            self.moved_s = now_s
        if self.began_s is None and self.published:
            self.began_s = now_s
        if self.published_s is None and self.confirmed >= self._ledger.rows:
            self.published_s = now_s
        return Snapshot(now_s, self.published, self.confirmed, self.delivered, broker)

    def excuse(self, now_s: float) -> None:
        """Restart the time without progress from now: there was no broker."""
        self.moved_s = now_s

    @property
    def complete(self) -> bool:
        """Return whether all flights are confirmed and the expected number of distinct deliveries has arrived."""
        return self.published_s is not None and self._ledger.total(Count.DISTINCT) >= self._deliveries
