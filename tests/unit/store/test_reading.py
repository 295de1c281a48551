"""Reading records: few calls, and damage is never taken for a record."""

from __future__ import annotations

from broker.store.reading import GAP_MAX_BYTES, SPAN_MAX_BYTES, read_records
from broker.store.record import encode_settled

RECORD = encode_settled(0, 0, 1, [1])
SIZE = len(RECORD)


def read(places: list[int], held: dict[int, bytes]) -> tuple[list[tuple[int, int]], list[bytes | None]]:
    """Return the calls made and the records found at these positions."""
    calls = []

    def read_span(position: int, size: int) -> bytes:
        calls.append((position, size))
        block = bytearray(size)
        for place, record in held.items():
            if position <= place < position + size:
                block[place - position : place - position + len(record)] = record
        return bytes(block[:size])

    found = read_records(read_span, [(place, SIZE, None) for place in places])
    return calls, [record for _, record, _ in found]


def test_neighbours_share_a_call() -> None:
    """Records with small gaps are read in one call, distant ones in one each, in log order."""
    places = [SIZE * 3, 0, SIZE, GAP_MAX_BYTES * 4]
    calls, found = read(places, dict.fromkeys(places, RECORD))
    assert found == [RECORD] * 4
    assert calls == [(0, SIZE * 4), (GAP_MAX_BYTES * 4, SIZE)]


def test_a_call_is_bounded() -> None:
    """One call reads less than the memory limit, however many neighbours are requested."""
    places = list(range(0, SPAN_MAX_BYTES * 2, GAP_MAX_BYTES))
    calls, found = read(places, dict.fromkeys(places, RECORD))
    assert found == [RECORD] * len(places)
    assert len(calls) == 2
    assert max(size for _, size in calls) <= SPAN_MAX_BYTES


def test_damage_is_none() -> None:
    """A position without a whole record is None, and its neighbours are read."""
    assert read([0, SIZE], {SIZE: RECORD})[1] == [None, RECORD]
