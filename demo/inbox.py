"""Handles a consumer's deliveries, for either client library."""

from collections.abc import Sequence

from demo.flights import checksum
from demo.ledger import FRESH_MASK, MOST_COPIES, REDELIVERED_SHIFT, Count, Ledger


class Inbox:
    """The cells of one consumer's queues, and its unacked deliveries.

    One channel carries all its queues, so one `basic.ack` with multiple settles them all. The acked tag is that of the
    last delivery: deliveries of a channel are processed in the order of their tags.
    """

    __slots__ = ("_cells", "_checksums", "_counts", "_unacked", "ack_every", "last_tag")

    def __init__(self, ledger: Ledger, client: int, queues: Sequence[int], ack_every: int) -> None:
        self._cells = {queue: ledger.copies(queue) for queue in queues}
        self._checksums = ledger.checksums
        self._counts = ledger.counts(client)
        self.ack_every = ack_every
        self._unacked = 0
        self.last_tag = 0

    def connected(self) -> None:
        """Start with a new channel: unacked messages will be redelivered."""
        self._counts[Count.CONNECTED] += 1
        self._unacked = 0
        self.last_tag = 0

    def take(self, queue: int, tag: int, redelivered: bool, message_id: str | None, key: str, body: bytes) -> bool:
        """Count one delivery; return whether it is time to ack."""
        counts = self._counts
        counts[Count.DELIVERED] += 1
        row = int(message_id) if message_id and message_id.isdecimal() else len(self._checksums)
        if row >= len(self._checksums) or self._checksums[row] != checksum(key.encode(), body):
            counts[Count.ALTERED] += 1
        else:
            cells = self._cells[queue]
            copies = cells[row]
            if not copies:
                counts[Count.DISTINCT] += 1
            if redelivered:
                if copies >> REDELIVERED_SHIFT < MOST_COPIES:
                    cells[row] = copies + (1 << REDELIVERED_SHIFT)
            elif copies & FRESH_MASK < MOST_COPIES:
                cells[row] = copies + 1
        self.last_tag = tag
        self._unacked += 1
        return self._unacked >= self.ack_every

    def acked(self) -> None:
        """Record that everything up to the last tag was acked."""
        self._unacked = 0

    @property
    def owes_ack(self) -> bool:
        """Return whether a delivery waits for its ack."""
        return self._unacked > 0
