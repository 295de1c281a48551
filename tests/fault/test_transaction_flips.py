"""Single bits flip in a transaction on disk: it is refused, dropped or cut as a whole, never applied in part."""

from __future__ import annotations

from itertools import chain

import pytest

from broker.store.checkpoint import Checkpoint
from broker.store.damage import CorruptStore
from broker.store.memory_files import MemoryFiles
from broker.store.record import TARGET, encode_message, encode_route, encode_settled
from broker.store.recovery import Recovered
from broker.store.segment import segment_path
from broker.store.store import VhostStore
from tests.fault.store_model import FOLDER
from tests.fault.test_bit_flips import BITS, SEGMENT_BYTES, flips, open_store, present
from tests.fault.test_torn_tail import commit, cut_copy
from tests.stored_record import read_slot

ROUTE = encode_route("x", "k")
SEGMENT = segment_path(FOLDER / "log", 1)
BEFORE, INSIDE, BEHIND, LATER = [1, 2, 3], [4, 5, 6], [7, 8], [9, 10]
QUEUES = (1, 2)
LAST_BEFORE_BYTES = 100
# One flipped bit makes the length of the transaction, or of the message before, end where one of its records begins:
INNER_BOUNDARIES = {128, 232, 360}  # from the transaction's beginning


def message(message_id: int, size: int) -> bytes:
    """Return the record of a message with the same id in both queues, padded to a length."""
    targets = b"".join([TARGET.pack(queue, message_id) for queue in QUEUES])
    return encode_message(0, 1, 1, ROUTE, b"h", (b"%d" % message_id).ljust(size - 73), targets)


def write_log(files: MemoryFiles, *, later: bool = True) -> tuple[int, int]:
    """Write messages, a transaction that publishes three and settles message 1 of both queues, and more messages.

    Returns where the transaction begins and ends.
    """
    log = (store := open_store(files)).log
    for message_id in BEFORE:
        log.append(message(message_id, LAST_BEFORE_BYTES))
    begin = log.position
    with log.group():
        places = [log.append(message(INSIDE[0], 92))]
        places += [log.append(encode_settled(0, 1, queue, [1])) for queue in QUEUES]
        places += [log.append(message(message_id, 128)) for message_id in INSIDE[1:]]
    assert {place - begin for place in places} > INNER_BOUNDARIES
    end = log.position
    for message_id in BEHIND:
        log.append(message(message_id, 100))
    commit(store)
    if later:
        for message_id in LATER:
            log.append(message(message_id, 100))
        commit(store)
    return begin & 0xFFFFFFFF, end & 0xFFFFFFFF


def waiting(store: VhostStore, recovered: Recovered) -> list[list[int]]:
    """Return the ids of the ready messages by queue, as their bodies name them."""
    return [
        [
            int(one.body)
            for slot in recovered.queues[queue].slots
            for one in read_slot(store, queue, slot.first, slot.end, present(slot.settled, slot.end - slot.first))
            if one is not None
        ]
        for queue in QUEUES
    ]


def reopened(files: MemoryFiles, *, quarantine: bool) -> tuple[list[list[int]], Recovered]:
    """Open a copy of the files; return the ready messages and the recovery."""
    copy = cut_copy(files, len(files.contents[SEGMENT].block))
    store, recovered = VhostStore.open(copy, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True, quarantine=quarantine)
    return waiting(store, recovered), recovered


@pytest.mark.fault
def test_nothing_flipped() -> None:
    """The undamaged log of these tests has the whole transaction."""
    files = MemoryFiles()
    write_log(files)
    assert reopened(files, quarantine=False)[0] == [[2, 3, *INSIDE, *BEHIND, *LATER]] * 2


@pytest.mark.fault
@pytest.mark.slow
def test_every_bit_of_a_synced_transaction() -> None:
    """A flip below the last synced position makes the start fail with the place of the whole transaction."""
    files = MemoryFiles()
    begin, end = write_log(files)
    for offset, bit in flips(files.contents[SEGMENT].block, begin, end, range(0, 8, 3)):
        with pytest.raises(CorruptStore) as caught:
            open_store(files)
        assert (caught.value.segment, caught.value.offset) == (1, begin), f"bit {bit} of byte {offset}"


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("bits", BITS)
def test_quarantine_drops_all_of_it(bits: range) -> None:
    """With quarantine no part of the damaged transaction is applied, neither its messages nor its settlements.

    A damaged length, of the transaction or of the message before, never leads to a record of the transaction: the
    checksum tells where the damaged record ends.
    """
    files = MemoryFiles()
    begin, end = write_log(files)
    led_inside: set[int] = set()
    block = files.contents[SEGMENT].block
    lengths = [flips(block, at, at + 4) for at in (begin - LAST_BEFORE_BYTES, begin)]
    for offset, bit in chain(*lengths, flips(block, begin - LAST_BEFORE_BYTES, end, bits)):
        start = begin if offset >= begin else begin - LAST_BEFORE_BYTES
        leads_to = start + 8 + int.from_bytes(block[start : start + 4], "big") - begin
        if leads_to in INNER_BOUNDARIES:
            led_inside.add(leads_to)
        found, recovered = reopened(files, quarantine=True)
        expected = [*BEFORE, *BEHIND, *LATER] if start == begin else [2, *INSIDE, *BEHIND, *LATER]
        assert found == [expected] * 2, f"bit {bit} of byte {offset - start}"
        (finding,) = recovered.findings
        assert (finding.event, finding.offset) == ("store.quarantined", start)
    assert led_inside == INNER_BOUNDARIES


@pytest.mark.fault
@pytest.mark.slow
def test_queue_logs_are_rebuilt_from_a_damaged_transaction() -> None:
    """Slots of a checkpoint prove a transaction: a flip in it costs one of its messages, not the others."""
    files = MemoryFiles()
    begin, end = write_log(files)
    store, recovered = VhostStore.open(files, FOLDER, segment_bytes=SEGMENT_BYTES, sync=True)
    queues = list(recovered.queues.values())
    store.write_checkpoint(Checkpoint(store.log.position, False, recovered.topology, queues, 3))
    store.close()
    for path in [path for path in files.contents if path.suffix == ".queue"]:
        del files.contents[path]
    everything = [2, 3, *INSIDE, *BEHIND, *LATER]
    for offset, bit in flips(files.contents[SEGMENT].block, begin, end, range(0, 8, 3)):
        found, _ = reopened(files, quarantine=True)
        lost = [number for number in everything if number not in found[0]]
        assert lost in ([], *([number] for number in INSIDE)), f"bit {bit} of byte {offset - begin}"
        assert found == [[number for number in everything if number not in lost]] * 2


@pytest.mark.fault
def test_flips_in_the_last_batch_cut_it_whole() -> None:
    """A flip in a batch that may not have been synced cuts the log before the transaction."""
    files = MemoryFiles()
    begin, end = write_log(files, later=False)
    block = files.contents[SEGMENT].block
    for offset, bit in flips(block, begin, end, range(0, 8, 5)):
        found, recovered = reopened(files, quarantine=False)
        assert found == [BEFORE] * 2, f"bit {bit} of byte {offset}"
        assert recovered.cut_bytes == len(block) - begin
