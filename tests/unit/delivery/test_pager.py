"""The pager's tick: how many slots it visits, and its accounting of slots that leave and return."""

from __future__ import annotations

import gc
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.core.deadlines import Clock
from broker.core.publish_credit import SHARE_ENTRIES
from broker.delivery import pager as module
from broker.delivery.pager import Pager
from broker.slots.manager import SlotManager
from broker.slots.slot import Slot
from broker.store.queue_entry import Entries
from broker.store.segment import SPILLED

pytestmark = pytest.mark.interpreted("a stream without a queue takes the place of one")


class Look(Pager):
    """Counts the slots that are visited."""

    looks = 0

    def _recount(self, resident: Any) -> None:
        self.looks += 1
        super()._recount(resident)


class Line:
    """A transient stream, reduced to what the pager uses."""

    durable = False
    deleted = False
    is_holding = False

    def __init__(self, pager: Pager) -> None:
        self.queue = SimpleNamespace(consumers=SimpleNamespace(present=False), is_tap=False)
        self.manager = SlotManager(10, 1 << 20, on_open=lambda slot: pager.opened(cast("Any", self), slot))


def lines(count: int) -> tuple[Look, list[Line]]:
    """Return a pager that knows this many streams, each with one message of 100 bytes."""
    pager = Look(cast("Any", None), 1 << 30, 10_000, Clock())
    found = [Line(pager) for _ in range(count)]
    for line in found:
        line.manager.append_at_border(["message"], [100])
    return pager, found


def settle_all(line: Line) -> None:
    """Settle all messages of a stream and seal its slot, which deletes the slot."""
    slot = line.manager.open
    line.manager.settle(slot, line.manager.take(slot, 10))
    line.manager.seal()


def test_one_tick_goes_through_a_part_of_very_many_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick visits 20 of 200 old slots, so ten ticks find every deleted slot."""
    monkeypatch.setattr(module, "CHECKS_MIN", 5)
    pager, found = lines(200)
    pager.tick()
    assert pager.resident_bytes == 200 * 100  # a slot is visited in the tick after its creation
    for line in found[:100]:
        settle_all(line)
    for _ in range(11):
        pager.looks = 0
        pager.tick()
        assert pager.looks <= 20
    assert pager.resident_bytes == 100 * 100


def test_a_slot_that_went_and_came_between_two_looks_counts_once() -> None:
    """A slot that was paged out and read back is resident once, with its present size."""
    pager, (line,) = lines(1)
    pager.tick()
    slot = line.manager.open
    line.manager.seal()
    slot.contents = None
    slot.contents = ["message"]
    pager.opened(cast("Any", line), slot)
    for _ in range(3):
        pager.tick()
    assert pager.resident_bytes == 100


def test_the_size_of_a_full_slot_is_known_when_the_next_one_begins() -> None:
    """A queue that fills slot after slot is counted without a tick."""
    pager, (line,) = lines(1)
    for _ in range(20):
        line.manager.append_at_border(["message"], [100])
    assert pager.resident_bytes == 20 * 100  # two full slots; the next tick counts the third
    pager.tick()
    assert pager.resident_bytes == 21 * 100


def test_slots_that_were_deleted_before_they_left_memory_are_forgotten() -> None:
    """A purge ends the pressure; the slots that were to be paged out would keep their messages until the next one."""
    pager, found = lines(10)
    pager.set_budget(100)
    pager.tick()
    assert pager.pressed
    assert len(pager._candidates) == 10
    for line in found:
        settle_all(line)
    pager.tick()
    assert (pager.pressed, pager._candidates) == (False, [])


def test_an_old_open_slot_is_sealed_by_a_tick() -> None:
    """A tick seals a slot that is older than the window; a younger slot stays open."""
    pager, (old,) = lines(1)
    cast("Any", pager._clock).now_ms = 20_000
    young = Line(pager)
    young.manager.append_at_border(["message"], [100])
    slots: list[Slot] = [old.manager.open, young.manager.open]
    pager.tick()
    assert [slot is line.manager.open for slot, line in zip(slots, (old, young), strict=True)] == [False, True]


def test_a_slot_of_an_idle_queue_that_was_sealed_for_its_age_counts_once() -> None:
    """The next message opens another slot and does not count the sealed one again."""
    pager, _ = lines(0)
    line = Line(pager)
    line.durable = True
    logged = SimpleNamespace(logged=True, position=1, record_bytes=100)
    line.manager.append_at_border([logged], [100])
    cast("Any", pager._clock).now_ms = 20_000
    pager.tick()
    line.manager.append_at_border([logged], [100])
    assert pager._idle_bytes == 100
    settled = next(iter(line.manager.slots.values()))
    line.manager.settle(settled, settled.take(1))
    pager.tick()
    assert pager._idle_bytes == 0


class Disk:
    """A store that accepts everything and counts spilled records."""

    def __init__(self) -> None:
        self.spilled: list[int] = []  # records of each call
        self.spill = self
        self.live: dict[int, int] = {}
        self.queues = self
        self.written = 0
        self.opens = True  # entries are written to files
        self.durable: set[bool] = set()
        self.log = SimpleNamespace(written=1 << 40)

    def extend(self, records: list[bytes]) -> list[int]:
        """Give each record a position in one segment."""
        self.spilled.append(len(records))
        return [SPILLED | at for at in range(1, len(records) + 1)]

    def add_live(self, _segment: int, _n: int) -> None:
        """Keep every segment live."""

    def write(self, _number: int, _first: int, _entries: Entries, _due_ms: list[int], *, durable: bool) -> None:
        """Store nothing, in a file or not."""
        self.durable.add(durable)
        self.written += self.opens


def filled_pager(
    queues: int, messages: int, body: bytes, *, position: int = 0, budget_bytes: int = 0
) -> tuple[Disk, Pager]:
    """Return a pager, and this many queues with messages that have positions in the log."""
    disk = Disk()
    pager = Pager(cast("Any", disk), budget_bytes, 10_000, Clock())
    envelope = SimpleNamespace(route=b"\0\0")
    for _ in range(queues):
        line = cast("Any", Line(pager))
        line.durable = position > 0
        line.manager = SlotManager(1000, 1 << 20, on_open=partial(pager.opened, line))
        line.number = 1
        for _ in range(messages):
            message = SimpleNamespace(
                position=position, record_bytes=1, logged=position > 0, timestamp_ms=0,
                envelope=envelope, header=b"h", body=body, recorded=lambda *_entry: None,
            )  # fmt: skip
            line.manager.append_at_border([message], [400 + len(body)])
    return disk, pager


def full_pager(queues: int, messages: int, body: bytes, *, position: int = 0) -> tuple[Disk, Pager]:
    """Return a `filled_pager` that has no budget."""
    disk, pager = filled_pager(queues, messages, body, position=position)
    pager.tick()
    assert pager.pressed
    return disk, pager


def test_a_turn_spills_one_slot_and_no_more() -> None:
    """Encoding messages is slow, so a turn spills one slot and not eight."""
    disk, pager = full_pager(1, 6000, b"b")
    assert pager.turn()  # the next turn reads less input
    assert disk.spilled == [1000]
    assert pager.paged_out == 1
    while pager.pressed:
        assert pager.turn() == pager.pressed
    assert (pager.paged_out, pager.spilled) == (6, 6000)


def test_a_turn_spills_a_mebibyte_of_large_bodies() -> None:
    """Large bodies are few in a slot, and a mebibyte takes as long as many small ones."""
    disk, pager = full_pager(1, 30, bytes(1 << 20))
    pager.turn()
    assert len(disk.spilled) == 1


@pytest.mark.parametrize("position", [0, 1])
def test_a_turn_pages_out_three_small_slots(position: int) -> None:
    """Each slot costs a file that is opened and written, so a turn pages out three of them at most."""
    disk, pager = full_pager(100, 1, b"b", position=position)
    pager.turn()
    assert pager.paged_out == 3
    while pager.pressed:
        pager.turn()
    assert pager.paged_out == 100
    assert disk.durable == {position > 0}


def test_a_turn_pages_out_three_full_slots() -> None:
    """A turn pages out what publishers may add to a vhost in a turn, and at most the rest of one slot more."""
    disk, pager = full_pager(1, 10_000, b"b", position=1)
    disk.log.written = 2
    paged_out = []
    while pager.pressed:
        before = pager.paged_out
        pager.turn()
        paged_out.append(pager.paged_out - before)
    assert sum(paged_out) * 1000 >= 7000
    assert max(paged_out) * 1000 <= SHARE_ENTRIES + 1000


def test_the_slots_of_an_idle_queue_leave_one_a_turn() -> None:
    """Many may leave at once, when a batch of the log is written; deliveries of other queues do not wait for them."""
    disk, pager = filled_pager(1, 30_500, b"b", position=1, budget_bytes=1 << 20)
    disk.log.written = 2
    assert not pager._candidates
    for turn in range(1, 30):
        assert pager.turn()  # the next turn reads less input
        assert pager.paged_out == turn


def test_the_collector_visits_no_messages_of_full_slots() -> None:
    """A list of messages is no part of a cycle, and the messages in memory would make collections long."""
    _, pager = filled_pager(1, 2500, b"b", position=1)
    tracked = [gc.is_tracked(resident.slot.contents) for resident in pager._resident.values()]
    assert tracked == [False, False, True]


def test_a_turn_pages_out_many_slots_that_need_no_file() -> None:
    """When a few entries stay in memory, a turn is long enough for many slots, but still ends."""
    disk, pager = full_pager(1000, 1, b"b", position=1)
    disk.opens = False
    pager.turn()
    assert pager.paged_out == -(-module.TURN_MESSAGES // (module.BUFFERED_COST + 1))


def test_a_slot_stays_until_the_last_byte_of_its_records_is_written() -> None:
    """A record that begins where the log file ends is in memory only, and so is its slot."""
    disk, pager = full_pager(1, 10, b"b", position=100)
    for written, paged_out in ((99, 0), (100, 0), (101, 1)):
        disk.log.written = written
        pager.tick()
        pager.turn()
        assert pager.paged_out == paged_out
