"""Transactions: one record around records that apply all together or not at all."""

from __future__ import annotations

import pytest

from broker.slots.redeliveries import ReturnRun
from broker.store.damage import NewerFormat
from broker.store.message_log import BLOCK_BYTES, MessageLog, encode_mark
from broker.store.record import (
    HEAD_BYTES,
    INNER,
    KIND_AT,
    MARK_BYTES,
    PERSISTENT,
    TARGET,
    TRANSACTION,
    TransactionHead,
    encode_inner,
    encode_message,
    encode_moved,
    encode_queue_deleted,
    encode_requeued,
    encode_settled,
    encode_topology,
    inner_records,
    is_whole,
)
from broker.store.segment import HEADER_BYTES
from tests.stored_record import decode_message, read_slot
from tests.unit.store.room import ROUTE, Room

SETTLED = encode_settled(5, 6, 7, [8])


def message(queue: int, message_id: int, body: bytes = b"body") -> bytes:
    """Return the record of one message."""
    return encode_message(0, 22, PERSISTENT, ROUTE, b"header", body, TARGET.pack(queue, message_id))


def around(inner: list[bytes], synced: int = 0) -> bytes:
    """Return the record of a transaction with these inner records."""
    head = TransactionHead(synced)
    head.add(inner)
    return head.encode() + b"".join(inner)


def transaction(*records: bytes) -> bytes:
    """Return the record of a transaction."""
    return around([encode_inner(record) for record in records], 3)


def test_records_come_out_as_they_went_in() -> None:
    """A transaction is one whole record; each inner record is whole and differs by one bit of its kind."""
    records = [message(1, 1), SETTLED, message(2, 9, b"")]
    outer = transaction(*records)
    assert is_whole(outer)
    assert outer[KIND_AT] == TRANSACTION
    inner = inner_records(outer)
    at = HEAD_BYTES
    for (place, found), record in zip(inner, records, strict=True):
        assert place == at
        at += len(record)
        assert is_whole(found)
        assert found[KIND_AT] == record[KIND_AT] | INNER
        assert (found[8:KIND_AT], found[KIND_AT + 1 :]) == (record[8:KIND_AT], record[KIND_AT + 1 :])
    assert at == len(outer)


def test_an_inner_message_is_a_message() -> None:
    """An inner message decodes like any other, and its copy is a separate record."""
    inner = encode_inner(message(1, 4))
    found = decode_message(9, inner)
    assert (found.body, found.targets, found.flags, found.size) == (b"body", TARGET.pack(1, 4), PERSISTENT, len(inner))
    assert encode_moved(0, inner, found.targets) == encode_moved(0, message(1, 4), found.targets)


@pytest.mark.parametrize(
    "inner",
    [SETTLED, encode_inner(SETTLED) + SETTLED, encode_inner(SETTLED)[:-1], encode_inner(SETTLED) + b"\0" * 60],
    ids=["alone", "second alone", "cut", "zeros"],
)
def test_what_no_writer_writes_is_refused(inner: bytes) -> None:
    """A standalone record, a part of one, or zeros are invalid within a transaction, whatever the checksum."""
    with pytest.raises(ValueError, match="bytes into the transaction"):
        inner_records(around([inner]))


@pytest.mark.parametrize("record", [encode_mark(0, b"t" * 16, 0), transaction(SETTLED)])
def test_marks_and_transactions_do_not_nest(record: bytes) -> None:
    """A mark, which recovery searches as a boundary, never occurs within a transaction."""
    with pytest.raises(AssertionError):
        encode_inner(record)


# -- in the log --------------------------------------------------------------------------------------------------------


def test_positions_inside_are_final(room: Room, log: MessageLog) -> None:
    """Each record of a group is where append said, after the mark of its batch and the transaction's head."""
    records = [message(1, number) for number in range(1, 4)]
    synced = log.synced
    with log.group():
        positions = [log.append(record) for record in records]
    end = log.position
    room.commit()
    assert positions[0] & 0xFFFFFFFF == HEADER_BYTES + MARK_BYTES + HEAD_BYTES
    assert end == positions[-1] + len(records[-1])
    inner = [encode_inner(record) for record in records]
    assert [log.read_span(position, len(records[0])) for position in positions] == inner
    outer = log.read_span(positions[0] - HEAD_BYTES, end - positions[0] + HEAD_BYTES)
    assert outer == around(inner, synced)


def test_a_group_stays_in_one_segment() -> None:
    """A segment rolls after the end of a group, so references counted before the append use the right segment."""
    room = Room(segment_bytes=300)
    log = room.store.log
    for size in range(1, 12):
        segment = log.position >> 32
        with log.group():
            positions = []
            for _ in range(size):
                assert log.position >> 32 == segment
                positions.append(log.append(room.message(1)))
        assert {position >> 32 for position in positions} == {segment}
        if size % 3 == 0:
            room.commit()
    room.commit()
    assert log.position >> 32 > 4
    assert all(size < 300 + 20 * len(room.message(2)) for size in log.segments.values())
    room.reopen()
    assert len(room.waiting(1)) == sum(range(1, 12))


def test_a_large_group_puts_its_records_into_blocks_while_it_is_open(room: Room, log: MessageLog) -> None:
    """At most BLOCK_BYTES of a group wait for its end, and the transaction is the same as that of a small group."""
    room.append(message(1, 1))  # in a block before the transaction
    records = [message(1, number, bytes(sizes)) for number, sizes in enumerate([900, 5000, 40_000] * 40, 2)]
    synced = log.synced
    waiting_bytes = []
    with log.group():
        positions = []
        for record in records:
            positions.append(log.append(record))
            assert log._group is not None
            waiting_bytes.append(log._group.size_bytes)
    assert max(waiting_bytes) < BLOCK_BYTES < sum(map(len, records)) // 10
    after = message(1, 500)
    room.commit()
    last = log.append(after)
    room.commit()
    begin = positions[0] - HEAD_BYTES
    assert log.read_span(begin, positions[-1] + len(records[-1]) - begin) == around(
        [encode_inner(record) for record in records], synced
    )
    assert log.read_span(last, len(after)) == after
    room.reopen()
    assert len(room.waiting(1)) == len(records) + 2


def test_an_empty_group_leaves_nothing(room: Room, log: MessageLog) -> None:
    """A group without records leaves nothing in the log, at the start of a batch and within one."""
    before = log.position
    with log.group():
        pass
    assert (log.position, log.take()) == (before, None)
    first = log.append(SETTLED)
    with log.group():
        pass
    assert log.append(SETTLED) == first + len(SETTLED)


def test_a_group_inside_a_group_is_part_of_it(room: Room, log: MessageLog) -> None:
    """Nested groups make one transaction."""
    with log.group():
        log.append(message(1, 1))
        with log.group():
            log.append(message(1, 2))
        log.append(message(1, 3))
    room.commit()
    recovered = room.reopen()
    assert (recovered.messages, recovered.records) == (3, 5)  # with the mark and the transaction around them


def test_an_exception_leaves_what_was_appended(room: Room, log: MessageLog) -> None:
    """Records that were appended before an exception are in the log, whole, and the exception propagates."""

    def fail() -> None:
        with log.group():
            log.append(message(1, 1))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    after = log.append(message(1, 2))
    room.commit()
    assert is_whole(log.read_span(after, len(message(1, 2))))
    room.reopen()
    assert sorted(room.waiting(1)) == [1, 2]


def test_no_batch_is_taken_inside(log: MessageLog) -> None:
    """A batch is never taken within a group, so no half transaction is written."""
    with log.group():
        log.append(SETTLED)
        with pytest.raises(AssertionError, match="half a transaction"):
            log.take()


@pytest.mark.interpreted("a constant of the log is replaced")
def test_a_transaction_has_a_limit(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that would exceed the maximal length is refused before it is added; the others stay."""
    monkeypatch.setattr("broker.store.message_log.RECORD_MAX_BYTES", HEAD_BYTES + 2 * len(message(1, 1)))
    log = room.store.log
    with log.group():
        log.append(message(1, 1))
        log.append(message(1, 2))
        with pytest.raises(AssertionError):
            log.append(message(1, 3))
    log.append(message(1, 3))
    room.commit()
    room.reopen()
    assert sorted(room.waiting(1)) == [1, 2, 3]


# -- in recovery -------------------------------------------------------------------------------------------------------


def test_every_kind_is_replayed() -> None:
    """An inner record has the effect of a standalone one, and reading it again changes nothing."""
    room = Room(window_messages=4)
    room.publish(6, 1)
    log = room.store.log
    with log.group():
        log.append(encode_settled(0, 1, 1, [1]))
        log.append(encode_requeued(0, 1, 1, 2, [ReturnRun(0, 1, 3, 2)]))
        log.append(room.message(1, 2, body=b"7"))
        log.append(encode_settled(0, 1, 1, range(3, 5)))
        log.append(message(3, 1))
        log.append(encode_queue_deleted(0, 1, 3))
        log.append(encode_topology(0, 1, {"change": "made"}))
    room.commit()
    for _ in range(2):
        recovered = room.reopen()
        assert room.waiting(1) == {2: b"2", 5: b"5", 6: b"6", 7: b"7"}
        assert room.waiting(2) == {1: b"7"}
        assert recovered.queues[1].slots[0].returns == [ReturnRun(1, 2, 3, 2)]
        assert recovered.topology == [{"change": "made"}]
        assert recovered.queues.keys() == {1, 2}
        assert recovered.next_queue_number == 4


def test_a_transaction_of_a_checkpoint_is_not_applied_again(room: Room) -> None:
    """Messages with known ids, read again after a checkpoint that covers them, are not added."""
    room.publish(2, 1)
    room.reopen()
    room.checkpoint()
    log = room.store.log
    with log.group():
        log.append(message(1, 2, b"again"))
        log.append(message(1, 3, b"3"))
    room.commit()
    room.reopen()
    assert room.waiting(1) == {1: b"1", 2: b"2", 3: b"3"}


def test_an_inner_record_that_stands_alone_is_damage(room: Room) -> None:
    """An inner record outside a transaction is damage: the log ends there."""
    room.publish(1, 1)
    room.append(encode_inner(message(1, 2)))
    recovered = room.reopen()
    assert room.waiting(1) == {1: b"1"}
    assert "belongs to a transaction" in recovered.findings[0].reason


def test_a_transaction_of_other_things_is_applied_as_a_whole_or_not(room: Room) -> None:
    """If a checksum is right but one record is invalid inside, none of the transaction is applied."""
    room.publish(1, 1)
    inner = [encode_inner(message(1, 2)), message(1, 3)]
    room.append(around(inner))
    room.reopen()
    assert room.waiting(1) == {1: b"1"}


def test_a_later_kind_inside_is_named(room: Room) -> None:
    """An unknown kind stops the start, also within a transaction."""
    later = bytearray(encode_mark(0, b"t" * 16, 0))
    later[KIND_AT] = 77
    inner = encode_inner(bytes(later))
    room.append(around([inner]))
    with pytest.raises(NewerFormat, match=r"newer SlotMQ, record kind 77; this version reads up to 8$"):
        room.reopen()


def test_lost_entries_are_written_again(room: Room, log: MessageLog) -> None:
    """Rebuilt queue logs contain the messages of transactions and point into them."""
    with log.group():
        positions = [log.append(message(1, number, b"%d" % number)) for number in (1, 2)]
    room.commit()
    room.reopen()
    room.checkpoint()
    room.lose_queue_logs()
    recovered = room.reopen()
    assert [finding.event for finding in recovered.findings] == ["store.queue_logs_rebuilt"]
    assert [one and one.position for one in read_slot(room.store, 1, 1, 3)] == positions
