"""Records: they decode to what was encoded, and their layout is the documented one."""

from __future__ import annotations

import json
from struct import unpack_from

import pytest
from crc32c import crc32c

from broker.slots.redeliveries import ReturnRun
from broker.store import record as records
from broker.store.record import (
    HEAD_BYTES,
    PERSISTENT,
    RUN,
    TARGET,
    decode_topology,
    encode_message,
    encode_moved,
    encode_requeued,
    encode_route,
    encode_settled,
    encode_topology,
    is_whole,
)
from tests.stored_record import decode_message

ROUTE = encode_route("topic", "flight.UA")
TARGETS = TARGET.pack(7, 1) + TARGET.pack(8, 99)


def test_a_message_comes_back() -> None:
    """Exchange, key, header, body, targets, time and flags decode as encoded."""
    record = encode_message(5 << 32 | 64, 1_700_000_000_123, PERSISTENT, ROUTE, b"header", b"body", TARGETS)
    message = decode_message(3 << 32 | 100, record)
    assert (message.exchange, message.key) == ("topic", "flight.UA")
    assert (message.header, message.body, message.targets) == (b"header", b"body", TARGETS)
    assert (message.timestamp_ms, message.persistent) == (1_700_000_000_123, True)
    assert (message.position, message.size, message.route) == (3 << 32 | 100, len(record), ROUTE)
    assert is_whole(record)


def test_the_layout_is_the_drawn_one() -> None:
    """Length, checksum, synced, time, kind, flags and lengths are at their documented offsets, big-endian."""
    record = encode_message(11, 22, 1, ROUTE, b"header", b"body", TARGETS)
    assert unpack_from(">IIQQBBHII", record) == (
        len(record) - 8,
        crc32c(record[8:]),
        11,
        22,
        records.MESSAGE,
        1,
        len(ROUTE),
        6,
        32,
    )
    assert record[36:] == TARGETS + ROUTE + b"header" + b"body"


def test_names_that_are_not_ascii_come_back() -> None:
    """A route is UTF-8, and its limit is in bytes."""
    record = encode_message(0, 0, 0, encode_route("ä" * 127, "日本"), b"", b"", b"")
    message = decode_message(0, record)
    assert (message.exchange, message.key) == ("ä" * 127, "日本")
    with pytest.raises(ValueError, match="256"):
        encode_route("ä" * 128, "")


def test_a_moved_record_keeps_all_but_its_targets() -> None:
    """Compaction copies the message and names only the queues that still need it."""
    record = encode_message(1, 22, PERSISTENT, ROUTE, b"header", b"body", TARGETS)
    moved = encode_moved(9, record, TARGETS[16:])
    message = decode_message(1, moved)
    assert (message.exchange, message.header, message.body) == ("topic", b"header", b"body")
    assert (message.timestamp_ms, message.flags, message.targets) == (22, PERSISTENT, TARGETS[16:])
    assert is_whole(moved)
    assert decode_message(1, encode_moved(9, moved, TARGETS)).targets == TARGETS


@pytest.mark.parametrize(
    ("ids", "flags", "tail"),
    [
        ([5], 0, [7, 5]),
        ([5, 6], 0, [7, 5, 6]),
        ([5, 9, 7], 0, [7, 5, 9, 7]),
        ([5, 6, 7], RUN, [7, 5, 3]),
        ([7, 5, 6, 8], RUN, [7, 5, 4]),
        (range(10, 1010), RUN, [7, 10, 1000]),
    ],
)
def test_a_run_of_settled_ids_is_short(ids: list[int], flags: int, tail: list[int]) -> None:
    """Consecutive ids take two numbers, in any order; other ids are listed."""
    record = encode_settled(1, 2, 7, ids)
    assert record[25] == flags
    assert list(unpack_from(f">{(len(record) - HEAD_BYTES) // 8}Q", record, HEAD_BYTES)) == tail
    assert is_whole(record)


def test_other_kinds_hold_their_numbers() -> None:
    """Requeued has runs of ids with both counts, after the queue number."""
    requeued = encode_requeued(1, 2, 7, 5, [ReturnRun(0, 2, 3, 1), ReturnRun(4, 5, 1, 0)])
    assert unpack_from(">QQIIIQIII", requeued, HEAD_BYTES) == (7, 5, 2, 3, 1, 9, 1, 1, 0)
    assert len(requeued) == HEAD_BYTES + 8 + 2 * 20


def test_a_change_comes_back() -> None:
    """A topology change is JSON; a value that JSON cannot hold is refused when encoded."""
    change: dict[str, object] = {"change": "bound", "key": "*.ä", "arguments": {"x": [1, None, {"y": True}]}}
    change |= {
        "queue": '"\\\n\x00\u2028',
        "number": 1 << 40,
        "auto_delete": True,
        "recovered": None,
        "empty": {},
        "none": [],
    }
    record = encode_topology(1, 2, change)
    assert decode_topology(record) == change
    assert record[HEAD_BYTES:].decode() == json.dumps(change, ensure_ascii=False, separators=(",", ":"))
    with pytest.raises(TypeError):
        encode_topology(1, 2, {"change": object()})


@pytest.mark.parametrize("damage", [b"", b"\0" * 36, b"\0" * 500])
def test_zeros_are_no_record(damage: bytes) -> None:
    """Zeros are not record, although the checksum of nothing matches."""
    assert not is_whole(damage)
