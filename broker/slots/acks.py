"""The settled messages of a slot, as one bit per message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bitarray import bitarray
from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True)  # when compiled, the garbage collector ignores it: each slot has one
class Acks:
    """Mark the settled messages of one slot.

    Shapes: index 0 is the slot's first message id. While messages are settled in order, no bit array exists: the first
        ``count`` messages are settled. Later the bit array has whole bytes, at least up to the highest settled index.
    Invariant: ``count`` is the number of settled messages; an index is settled once.
    """

    __slots__ = ("_bits", "count")

    def __init__(self, settled: bytes = b"", length: int = 0) -> None:
        self._bits: bitarray | None = None
        self.count = 0
        if settled:
            bits = bitarray(endian="little")
            bits.frombytes(settled)
            del bits[length:]
            bits.fill()
            self._bits = bits
            self.count = bits.count()

    def __contains__(self, index: int) -> bool:
        bits = self._bits
        if bits is None:
            return index < self.count
        return index < len(bits) and bool(bits[index])

    def settle(self, index: int) -> None:
        """Mark one message settled. Raises: ValueError if it is already settled: a defect of the caller."""
        bits = self._bits
        if bits is None:
            if index == self.count:
                self.count = index + 1
                return
            bits = self._leave_order()
        if index >= len(bits):
            bits.frombytes(bytes((index - len(bits) >> 3) + 1))
        elif bits[index]:
            raise ValueError(f"message {index} of the slot is already settled")
        bits[index] = 1
        self.count += 1

    def settle_all(self, indexes: Iterable[int]) -> None:
        """Mark messages settled. Raises: ValueError if one of them is already settled.

        Cost: for a ``range``, one addition if it continues the order, otherwise one count and one slice assignment.
        """
        if not isinstance(indexes, range) or indexes.step != 1:
            for index in indexes:
                self.settle(index)
            return
        start, stop = indexes.start, indexes.stop
        bits = self._bits
        if bits is None:
            if start == self.count:
                self.count = max(start, stop)
                return
            bits = self._leave_order()
        if bits.count(1, start, stop):
            raise ValueError(f"some message in {start}..{stop - 1} of the slot is already settled")
        if stop > len(bits):
            bits.frombytes(bytes((stop - 1 - len(bits) >> 3) + 1))
        bits[start:stop] = 1
        self.count += max(0, stop - start)

    def _leave_order(self) -> bitarray:
        """Create and return the bit array, because a message is settled out of order."""
        bits = self._bits = self.bits(self.count)
        bits.fill()
        return bits

    def bits(self, length: int) -> bitarray:
        """Return a bit for each of the first `length` messages."""
        if self._bits is not None:
            bits = self._bits[:length]
        else:
            bits = bitarray(min(self.count, length), endian="little")
            bits.setall(1)
        bits.extend(bytes(length - len(bits)))
        return bits

    def settled_between(self, start: int, stop: int) -> int:
        """Count the settled messages with start <= index < stop."""
        if self._bits is None:
            return max(0, min(stop, self.count) - start)
        return self._bits.count(1, start, stop)

    def unsettled(self, start: int, stop: int) -> Iterator[int]:
        """Yield the indexes in start <= index < stop that are not settled, ascending."""
        bits = self._bits
        if bits is None:
            yield from range(max(start, self.count), stop)
            return
        known = min(stop, len(bits))
        if start < known:
            yield from bits.search(bitarray("0"), start, known)
        yield from range(max(start, known), stop)

    def to_bytes(self) -> bytes:
        """Return the bits, least significant first, for a checkpoint."""
        return self.bits(self.count).tobytes() if self._bits is None else self._bits.tobytes()
