"""The settlements of asynchronous calls, which a crash of PostgreSQL can undo after it has answered them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bitarray import bitarray

    from broker.cluster.batch import SharedSlot

__all__ = ["UnsavedSettlements"]

KEPT_S: Final = 2.0  # PostgreSQL writes an asynchronous commit within three times wal_writer_delay, 0.6 s by default

Settlement = tuple["SharedSlot", "bitarray"]


class UnsavedSettlements:
    """Keeps what a node settled until the database has it on disk, so that the node can settle it again after a crash.

    A synchronous call writes every call that was answered before it, because PostgreSQL writes its log in order.
    """

    __slots__ = ("_newer", "_older", "_since_s")

    def __init__(self) -> None:
        self._older: list[Settlement] = []
        self._newer: list[Settlement] = []
        self._since_s = 0.0  # when the newer ones began

    def __iter__(self) -> Iterator[Settlement]:
        yield from self._older
        yield from self._newer

    def add(self, settlements: list[Settlement], now_s: float) -> None:
        """Keep the settlements of an asynchronous call for at least `KEPT_S`."""
        if now_s - self._since_s >= KEPT_S:
            self._older, self._newer, self._since_s = self._newer, [], now_s
        self._newer += settlements

    def clear(self) -> None:
        """Forget all: they are on disk, or the epoch of this node has ended."""
        self._older.clear()
        self._newer.clear()
