"""The message log: positions, batches, rolling, and which position may be confirmed."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from broker.store.memory_files import MemoryFiles
from broker.store.message_log import APART_BYTES, LARGE_BYTES, SMALL_BYTES, MessageLog
from broker.store.record import HEAD_BYTES, MARK_BYTES, PREFIX_BYTES, TARGET, encode_message, encode_settled, is_whole
from broker.store.segment import AHEAD_MAX_BYTES, HEADER_BYTES, decode_header, segment_path

FOLDER = Path("/log")
RECORD = encode_settled(0, 0, 1, [1])


def new_log(files: MemoryFiles | None = None, *, segment_bytes: int = 1000, sync: bool = True) -> MessageLog:
    """Return a started log."""
    files = files or MemoryFiles()
    files.make_folder(FOLDER)
    log = MessageLog(files, FOLDER, segment_bytes=segment_bytes, sync=sync)
    log.begin()
    return log


def commit(log: MessageLog) -> None:
    """Write and sync the pending records."""
    batch = log.take()
    assert batch is not None
    log.write(batch)
    log.complete(batch)


@pytest.fixture
def log() -> MessageLog:
    """Provide a started log."""
    return new_log()


def test_a_record_is_read_where_it_was_appended(log: MessageLog) -> None:
    """The record is at the position that append returned, also after a roll."""
    positions = [log.append(RECORD) for _ in range(40)]
    commit(log)
    assert len({position >> 32 for position in positions}) > 1
    assert all(log.read_span(position, len(RECORD)) == RECORD for position in positions)
    assert not is_whole(log.read_span(positions[0] + 1, len(RECORD)))
    assert f"segment 1, offset {positions[0] & 0xFFFFFFFF}: why" in str(log.corrupt(positions[0], "why"))


@pytest.mark.parametrize("sync", [True, False])
def test_records_of_any_size_are_where_they_were_appended(sync: bool) -> None:
    """Pieces of any size, alone or in transactions, follow each other without a gap, whatever blocks join them."""
    random = Random(1)
    files = MemoryFiles()
    log = new_log(files, segment_bytes=3 << 20, sync=sync)
    expected: dict[int, bytes] = {}

    def append(body_bytes: int) -> None:
        body = random.randbytes(body_bytes)
        record = encode_message(0, 1, 0, b"\x00\x00", b"header", body, TARGET.pack(1, len(expected)))
        if body_bytes >= APART_BYTES:
            position = log.append_apart(record[:-body_bytes], body)
        else:
            position = log.append(record[:PREFIX_BYTES], record[PREFIX_BYTES:])
        expected[position] = record

    for _ in range(300):
        sizes = [random.choice([0, 50, 1000, APART_BYTES, LARGE_BYTES, 100_000]) for _ in range(random.randint(1, 9))]
        with log.group() if random.random() < 0.3 else nullcontext():
            for size in sizes:
                append(size)
        if random.random() < 0.1:
            commit(log)
    commit(log)
    for position, record in expected.items():
        found = log.read_span(position, len(record))
        assert is_whole(found)
        assert found[HEAD_BYTES:] == record[HEAD_BYTES:]
    for number in log.segments:
        content = files.read(log.path(number))
        at = HEADER_BYTES
        while at < log.segments[number]:
            size = PREFIX_BYTES + int.from_bytes(content[at : at + 4], "big")
            assert is_whole(content[at : at + size])
            at += size
        assert at == log.segments[number]


def test_position_names_the_segment_of_the_next_record() -> None:
    """Counting a reference before the append uses the right segment."""
    log = new_log(segment_bytes=300)
    for number in range(60):
        segment = log.position >> 32
        assert segment == log.active
        assert log.append(RECORD) >> 32 == segment
        if number % 7 == 0:
            commit(log)


def test_a_batch_begins_with_a_mark(log: MessageLog) -> None:
    """A batch starts with the bytes of one mark, after the header of a new segment too."""
    assert log.position == 1 << 32 | HEADER_BYTES
    assert log.append(RECORD) == 1 << 32 | HEADER_BYTES + MARK_BYTES
    assert log.append(RECORD) == 1 << 32 | HEADER_BYTES + MARK_BYTES + len(RECORD)
    commit(log)
    end = log.position
    assert log.append(RECORD) == end + MARK_BYTES


def test_only_what_was_taken_is_confirmable(log: MessageLog) -> None:
    """A sync confirms the records that were appended before its batch was taken, and no later ones."""
    log.append(RECORD)
    batch = log.take()
    assert batch is not None
    assert log.take() is None
    later = log.append(RECORD)
    log.write(batch)
    before = log.confirmable
    log.complete(batch)
    assert before < log.confirmable == log.synced == log.written <= later
    assert log.needs_sync
    commit(log)
    assert log.confirmable == log.position
    assert not log.needs_sync


def test_one_batch_at_a_time(log: MessageLog) -> None:
    """A second batch is refused while the first is written."""
    log.append(RECORD)
    log.take()
    log.append(RECORD)
    with pytest.raises(RuntimeError):
        log.take()


def test_pending_bytes_are_what_a_batch_writes() -> None:
    """Pending bytes count records, marks and headers over several segments, and are zero after a take."""
    log = new_log(segment_bytes=300)
    assert log.pending_bytes == 0
    for _ in range(20):
        log.append(RECORD)
    pending = log.pending_bytes
    batch = log.take()
    assert batch is not None
    assert batch.size_bytes == pending
    assert sum(len(block) for run in batch.runs for block in run.blocks) == pending
    assert log.pending_bytes == 0


def test_segments_follow_on_each_other() -> None:
    """A header contains the end of the segment before; a segment is hardly longer than configured."""
    files = MemoryFiles()
    log = new_log(files, segment_bytes=300)
    for _ in range(20):
        log.append(RECORD)
    commit(log)
    numbers = sorted(log.segments)
    for before, number in pairwise(numbers):
        path = segment_path(FOLDER, number)
        header = decode_header(files.read(path), path)
        assert header.number == number
        assert header.previous_end == before << 32 | log.segments[before]
        assert 300 <= log.segments[before] < 300 + len(RECORD)


def test_small_batches_do_not_change_the_length_of_the_file() -> None:
    """Zeros are ahead of the log, in steps of its own length; behind large batches and a closed log are none."""
    files = MemoryFiles()
    log = new_log(files, segment_bytes=1 << 20)
    path = segment_path(FOLDER, 1)
    lengths = []
    for _ in range(1000):
        log.append(RECORD)
        commit(log)
        lengths.append(files.size(path))
        assert not any(files.read(path)[log.segments[1] :])
    assert max(lengths) - log.segments[1] <= AHEAD_MAX_BYTES
    assert len(set(lengths)) <= 12
    for _ in range(3):
        log.append(encode_settled(0, 0, 1, range(1, SMALL_BYTES, 2)))
        commit(log)
    assert files.size(path) == log.segments[1]
    log.append(RECORD)
    commit(log)
    assert files.size(path) == log.segments[1] + AHEAD_MAX_BYTES
    log.close(clean=True)
    assert files.size(path) == log.segments[1]


def test_a_full_segment_has_no_zeros() -> None:
    """Zeros end where the segment is full, because a version that does not know them takes them for damage there."""
    files = MemoryFiles()
    log = new_log(files, segment_bytes=3000)
    while log.active < 4:
        log.append(RECORD)
        commit(log)
    assert [files.size(segment_path(FOLDER, number)) for number in (1, 2, 3)] == [log.segments[n] for n in (1, 2, 3)]


def test_without_sync_no_zeros_are_written() -> None:
    """Zeros save the journal's part of a sync, and nothing where none is made."""
    files = MemoryFiles()
    log = new_log(files, sync=False)
    log.append(RECORD)
    commit(log)
    assert files.size(segment_path(FOLDER, 1)) == log.segments[1]


def test_a_record_longer_than_a_segment_fits() -> None:
    """A record that exceeds the segment size has a segment of its own."""
    log = new_log(segment_bytes=300)
    long = encode_settled(0, 0, 1, [*range(1, 200), 900])
    position = log.append(long)
    commit(log)
    assert log.read_span(position, len(long)) == long


def test_without_sync_nothing_claims_to_be_synced() -> None:
    """With sync off a confirm follows the write, and no record claims that earlier ones are synced."""
    log = new_log(sync=False)
    log.append(RECORD)
    commit(log)
    assert log.confirmable == log.written == log.position
    assert log.synced == 0


def test_references_are_counted(log: MessageLog) -> None:
    """A segment is live while references exist; dropping more than were added is an error."""
    log.add_live(3, 2)
    log.drop_live(3, 1)
    assert log.live == {3: 1}
    log.drop_live(3, 1)
    assert log.live == {}
    with pytest.raises(ValueError, match="0 references"):
        log.drop_live(3, 1)
