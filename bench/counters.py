"""The numbers that publisher, consumer and bench share during a run."""

from __future__ import annotations

from multiprocessing.sharedctypes import RawArray
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctypes import Array, c_longlong

_SENT, _DELIVERED, _TOTAL = range(3)


class Counters:
    """Messages sent and delivered so far, and the total of the run (-1: unknown yet).

    Invariant: each number has one writer, so none needs a lock.
    """

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells: Array[c_longlong] = RawArray("q", 3)
        self._cells[_TOTAL] = -1

    @property
    def sent(self) -> int:
        return self._cells[_SENT]

    @sent.setter
    def sent(self, count: int) -> None:
        self._cells[_SENT] = count

    @property
    def delivered(self) -> int:
        return self._cells[_DELIVERED]

    @delivered.setter
    def delivered(self, count: int) -> None:
        self._cells[_DELIVERED] = count

    @property
    def total(self) -> int:
        return self._cells[_TOTAL]

    @total.setter
    def total(self, count: int) -> None:
        self._cells[_TOTAL] = count
