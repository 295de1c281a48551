"""Reading around bad sectors."""

from __future__ import annotations

import pytest

from broker.store.damage import FAILURES_MAX, SECTOR_BYTES, StoreFailed, read_around

CONTENT = bytes(range(1, 251)) * 400


class Disk:
    """A file with unreadable sectors."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad
        self.calls = 0

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file. Raises: StoreFailed."""
        self.calls += 1
        first, end = offset // SECTOR_BYTES, (offset + size - 1) // SECTOR_BYTES + 1
        if [sector for sector in self.bad if first <= sector < end]:
            raise StoreFailed("disk", "Input/output error")
        return CONTENT[offset : offset + size]


@pytest.mark.parametrize("bad", [(), (0,), (3,), (3, 4, 9), (24,)])
@pytest.mark.parametrize(("offset", "size"), [(0, len(CONTENT)), (100, 3 * SECTOR_BYTES), (3 * SECTOR_BYTES + 5, 70)])
def test_what_cannot_be_read_is_zeros(bad: tuple[int, ...], offset: int, size: int) -> None:
    """All readable bytes are returned in place, and bad sectors are zeros."""
    expected = bytearray(CONTENT)
    for sector in bad:
        piece = expected[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]
        expected[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES] = bytes(len(piece))
    block, reason = read_around(Disk(*bad).read, offset, size)
    assert block == expected[offset : offset + size]
    assert reason == ("" if block == CONTENT[offset : offset + size] else "Input/output error")


def test_the_end_of_the_file_is_the_end() -> None:
    """The result is shorter at the end of the file, damaged or not."""
    assert read_around(Disk().read, len(CONTENT) - 10, 100) == (CONTENT[-10:], "")
    block, _ = read_around(Disk(2).read, 0, len(CONTENT) + 5 * SECTOR_BYTES)
    assert len(block) == len(CONTENT)


def test_a_dead_disk_is_not_asked_for_every_sector() -> None:
    """On a dead disk, where each sector takes long, the rest is given up."""
    disk = Disk(*range(100_000))
    block, reason = read_around(disk.read, 0, 100_000 * SECTOR_BYTES)
    assert len(block) == 100_000 * SECTOR_BYTES
    assert (reason, block.strip(b"\0")) == ("Input/output error", b"")
    assert disk.calls < 2 * FAILURES_MAX
