"""A message as the store sees it: the bytes that a record holds, and where the record lies."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from broker.store.segment import SPILLED

__all__ = ["Recorded"]


@mypyc_attr(acyclic=True)
class Recorded:
    """The part of a message that the store reads and writes.

    Units: ``record_bytes`` is the length of the record at ``position``. Only the store, and what pages slots in and out
        on its behalf, uses these two.
    Invariant: ``position`` is 0, where no record is, until the message has a record in the log or the spill.
    """

    __slots__ = ("body", "header", "position", "record_bytes", "timestamp_ms")

    timestamp_ms: int
    header: bytes
    body: bytes
    position: int
    record_bytes: int

    def recorded(self, position: int, record_bytes: int) -> None:
        """Note where its record lies now."""
        self.position = position
        self.record_bytes = record_bytes

    @property
    def logged(self) -> bool:
        """Whether its record is in the log, and not in the spill."""
        return 0 < self.position < SPILLED
