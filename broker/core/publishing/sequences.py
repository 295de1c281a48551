"""The sequence numbers that a producer has used, in blocks of 65,536."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any, Final

from bitarray import bitarray

BLOCK_SHIFT: Final = 16
BLOCK_NUMBERS: Final = 1 << BLOCK_SHIFT
BLOCK_BYTES: Final = 320  # the memory of a block without its bits


def block_of(sequence: int) -> int:
    """Return the index of the block that contains a number."""
    return sequence >> BLOCK_SHIFT


class Room:
    """Count the memory that the numbers of all producers of a vhost use."""

    def __init__(self) -> None:
        self.used_bytes = 0

    def resize(self, more_bytes: int) -> None:
        """Add bytes to the count; a negative number releases them."""
        self.used_bytes += more_bytes


class Block:
    """The used numbers of one block, as offsets from its start. They are stored as a range until there is a gap, and
    then as bits.

    Shapes: while ``bits`` is None, the numbers from ``first`` to ``end`` - 1 are used.
    Units: ``used_ms`` is the moment at which the block was last used.
    """

    __slots__ = ("bits", "end", "first", "used_ms")

    def __init__(self, used_ms: int) -> None:
        self.first = self.end = 0
        self.bits: bitarray | None = None
        self.used_ms = used_ms

    def __contains__(self, place: int) -> bool:
        bits = self.bits
        if bits is None:
            return self.first <= place < self.end
        return bool(bits[place])

    def add_range(self, first: int, end: int) -> None:
        """Add the offsets first <= offset < end; some may have been added before."""
        if self.bits is None:
            if self.first == self.end:
                self.first, self.end = first, end
                return
            if first <= self.end and self.first <= end:
                self.first, self.end = min(self.first, first), max(self.end, end)
                return
            self.bits = bitarray(BLOCK_NUMBERS)
            self.bits[self.first : self.end] = 1
        self.bits[first:end] = 1

    def add_bits(self, bits: bitarray) -> None:
        """Add the offsets whose bits are set."""
        if self.bits is not None:
            self.bits |= bits
        else:
            bits[self.first : self.end] = 1
            self.bits = bits

    def use(self, at_ms: int) -> None:
        self.used_ms = max(self.used_ms, at_ms)

    @property
    def size_bytes(self) -> int:
        return BLOCK_BYTES if self.bits is None else BLOCK_BYTES + BLOCK_NUMBERS // 8

    def shrink(self) -> None:
        """Convert the bits to a range if there are no more gaps."""
        bits = self.bits
        if bits is not None:
            first, end = bits.find(1), bits.find(1, right=True) + 1
            if bits.count(1) == end - first:
                self.first, self.end, self.bits = first, end, None


class Sequences:
    """The set of numbers that one producer has used.

    Shapes: ``index`` is the index of the block that was used last.
    Cost: a few comparisons to add the successor of the last number.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self.blocks: dict[int, Block] = {}
        self.index = -1
        self._block = Block(0)

    def __contains__(self, sequence: int) -> bool:
        block = self.blocks.get(block_of(sequence))
        return block is not None and (sequence & BLOCK_NUMBERS - 1) in block

    def add(self, sequence: int, now_ms: int) -> bool:
        """Add a number, and return whether it is new. HOT."""
        index = sequence >> BLOCK_SHIFT
        block = self._block if index == self.index else self._enter(index, now_ms)
        place = sequence & BLOCK_NUMBERS - 1
        block.used_ms = now_ms  # hot: set directly
        bits = block.bits
        if bits is None:
            if place == block.end:
                block.end = place + 1  # hot: set directly
                return True
            if block.first <= place < block.end:
                return False
            self._add_range(block, place, place + 1)
            return True
        if bits[place]:
            return False
        bits[place] = 1
        return True

    def add_range(self, first: int, end: int, now_ms: int) -> None:
        """Add the numbers first <= number < end; some may have been added before."""
        while first < end:
            index = block_of(first)
            base = index << BLOCK_SHIFT
            upto = min(end, base + BLOCK_NUMBERS)
            block = self._enter(index, now_ms)
            block.use(now_ms)
            self._add_range(block, first - base, upto - base)
            first = upto

    def forget(self, before_ms: int) -> None:
        """Discard the blocks that were last used before a moment."""
        for index in [index for index, block in self.blocks.items() if block.used_ms < before_ms]:
            self._room.resize(-self.blocks.pop(index).size_bytes)
        self.index = -1

    def shrink(self, since_ms: int) -> None:
        """Free the bits of blocks that were used since a moment and have no more gaps."""
        for block in self.blocks.values():
            if block.bits is not None and block.used_ms >= since_ms:
                self._room.resize(-block.size_bytes)
                block.shrink()
                self._room.resize(block.size_bytes)

    def _enter(self, index: int, now_ms: int) -> Block:
        block = self.blocks.get(index)
        if block is None:
            block = self.blocks[index] = Block(now_ms)
            self._room.resize(block.size_bytes)
        self.index, self._block = index, block
        return block

    def _add_range(self, block: Block, first: int, end: int) -> None:
        self._room.resize(-block.size_bytes)
        block.add_range(first, end)
        self._room.resize(block.size_bytes)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def copy(self) -> list[tuple[int, int, int, int, bitarray | None]]:
        """Return a copy for `written`, which runs in a thread: index, first, end, moment and bits of each block."""
        return [
            (index, block.first, block.end, block.used_ms, None if block.bits is None else block.bits.copy())
            for index, block in self.blocks.items()
        ]

    @staticmethod
    def written(copy: list[tuple[int, int, int, int, bitarray | None]]) -> Iterator[dict[str, Any]]:
        """Yield the blocks of a copy as JSON."""
        for index, first, end, used_ms, bits in copy:
            written: dict[str, Any] = {"block": index, "at_ms": used_ms}
            if bits is None:
                written |= {"first": first, "end": end}
            else:
                written["bits"] = b64encode(zlib.compress(bits.tobytes(), 1)).decode("ascii")
            yield written

    def read(self, written: dict[str, Any]) -> None:
        """Add a block from its JSON."""
        index, at_ms = int(written["block"]), int(written["at_ms"])
        block = self._enter(index, at_ms)
        block.use(at_ms)
        if "bits" not in written:
            self._add_range(block, int(written["first"]), int(written["end"]))
            return
        bits = bitarray()
        bits.frombytes(zlib.decompress(b64decode(written["bits"])))
        self._room.resize(-block.size_bytes)
        block.add_bits(bits)
        self._room.resize(block.size_bytes)


class OwnSequence(Sequences):
    """The numbers that one of the broker's own producers has used: all up to ``highest``.

    Invariant: ``highest`` never decreases and never expires. Cost: the memory of one block.
    """

    def __init__(self, room: Room) -> None:
        super().__init__(room)
        self.highest = -1

    def __contains__(self, sequence: int) -> bool:
        return sequence <= self.highest

    def add(self, sequence: int, now_ms: int) -> bool:
        """Use a number and all below it, and return whether it is new."""
        if sequence <= self.highest:
            return False
        self.add_range(sequence, sequence + 1, now_ms)
        return True

    def add_range(self, first: int, end: int, now_ms: int) -> None:
        """Use all numbers below `end`."""
        if end - 1 > self.highest:
            self.highest = end - 1
            super().add_range(block_of(end - 1) << BLOCK_SHIFT, end, now_ms)
            self._drop_lower()

    def read(self, written: dict[str, Any]) -> None:
        """Set the position from the JSON of a block."""
        super().read(written)
        base = int(written["block"]) << BLOCK_SHIFT
        self.highest = max(self.highest, base + int(written["end"]) - 1)
        self._drop_lower()

    def forget(self, before_ms: int) -> None:
        """Do nothing: the position never expires."""

    def _drop_lower(self) -> None:
        for index in [index for index in self.blocks if index < block_of(self.highest)]:
            self._room.resize(-self.blocks.pop(index).size_bytes)
