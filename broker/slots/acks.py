"""Which messages of a slot are settled: one bit each.

Pure: knows neither queues nor files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bitarray import bitarray

__all__ = ["Acks"]


class Acks:
    """Marks the settled messages of one slot.

    Shapes: index 0 is the slot's first message id; the bit array grows by whole bytes with the highest index that was
        settled, so a slot without settled messages costs no bits.
    Invariant: ``count == bits.count()``; an index is settled once.
    """

    __slots__ = ("bits", "count")

    def __init__(self, settled: bytes = b"", length: int = 0) -> None:
        self.bits = bitarray(endian="little")
        self.bits.frombytes(settled)
        del self.bits[length:]
        self.bits.fill()
        self.count = self.bits.count()

    def __contains__(self, index: int) -> bool:
        bits = self.bits
        return index < len(bits) and bool(bits[index])

    def settle(self, index: int) -> None:
        """Mark one message settled.

        Raises: ValueError when it was settled before (a second settlement is a defect of the caller).
        """
        bits = self.bits
        if index >= len(bits):
            bits.frombytes(bytes((index - len(bits) >> 3) + 1))
        elif bits[index]:
            raise ValueError(f"message {index} of the slot is settled already")
        bits[index] = 1
        self.count += 1

    def settle_all(self, indexes: Iterable[int]) -> None:
        """Mark many messages settled; a ``range`` costs one slice assignment.

        Raises: ValueError when one of them was settled before.
        """
        if not isinstance(indexes, range) or indexes.step != 1:
            for index in indexes:
                self.settle(index)
            return
        start, stop = indexes.start, indexes.stop
        if stop == start + 1:
            self.settle(start)
            return
        bits = self.bits
        if bits.count(1, start, stop):
            raise ValueError(f"some message in {start}..{stop - 1} of the slot is settled already")
        if stop > len(bits):
            bits.frombytes(bytes((stop - 1 - len(bits) >> 3) + 1))
        bits[start:stop] = 1
        self.count += max(0, stop - start)

    def settled_between(self, start: int, stop: int) -> int:
        """Count the settled messages with start <= index < stop."""
        return self.bits.count(1, start, stop)

    def unsettled(self, start: int, stop: int) -> Iterator[int]:
        """Yield the indexes in start <= index < stop that are not settled, ascending."""
        known = min(stop, len(self.bits))
        if start < known:
            yield from self.bits.search(bitarray("0"), start, known)
        yield from range(max(start, known), stop)

    def to_bytes(self) -> bytes:
        """Return the bits, least significant first, for a checkpoint."""
        return self.bits.tobytes()
