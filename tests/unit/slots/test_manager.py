"""The slot manager: windows, leases and deletion."""

from __future__ import annotations

from broker.slots.manager import SlotManager
from broker.slots.redeliveries import ReturnRun
from broker.slots.slot import Slot
from broker.slots.states import Fill, Owner

ONE = Owner("node-1", "worker-1")
OTHER = Owner("node-2", "worker-1")


def manager(count: int, window: int = 4, **parts: object) -> SlotManager:
    """Return a manager with `count` messages."""
    made = SlotManager(window, 1 << 30, **parts)  # type: ignore[arg-type]
    for number in range(count):
        made.append_at_border([f"m{number}"], [1])
    return made


def take_all(made: SlotManager, owner: Owner, limit: int = 1000) -> list[int]:
    """Take the messages that this owner can get, and return their ids."""
    ids: list[int] = []
    while limit and (slot := made.get(owner)) is not None:
        indexes = made.take(slot, limit)
        limit -= len(indexes)
        ids += [slot.first + index for index in indexes]
    return ids


def lose_all(made: SlotManager) -> None:
    """Settle every ready message, as a purge does."""
    for slot in list(made.slots.values()):
        if slot.ready:
            made.lose(slot, slot.ready_indexes())


def test_ids_are_dense_and_the_window_seals() -> None:
    """Each message gets the next id; a slot is sealed at its window, by count or by bytes."""
    made = manager(10)
    assert [(slot.first, slot.end, slot.fill) for slot in made.slots.values()] == [
        (1, 5, Fill.SEALED),
        (5, 9, Fill.SEALED),
        (9, 11, Fill.OPEN),
    ]
    by_bytes = SlotManager(1000, 100)
    for _ in range(3):
        by_bytes.append_at_border(["m"], [60])
    assert [(slot.first, slot.length) for slot in by_bytes.slots.values()] == [(1, 2), (3, 1)]


def test_a_lone_message_is_handed_out_from_the_open_slot() -> None:
    """The filled part of the open slot can be leased at once; WSO2's slots waited for a window or a timeout."""
    made = manager(1)
    slot = made.get(ONE)
    assert slot is made.open
    assert take_all(made, ONE) == [1]
    made.append_at_border(["next"], [1])
    assert take_all(made, ONE) == [2]


def test_one_message_goes_as_several_do() -> None:
    """Appending, taking and settling one message leaves the same state as the methods for several do."""
    made, other = manager(1, window=5), manager(1, window=5)
    for number in range(1, 12):
        content = f"m{number}"
        fits = made.append_one(content, 1)
        assert other.append([content], 1) == fits
        if not fits:
            made.append_at_border([content], [1])
            other.append_at_border([content], [1])
        assert (made.ready, made.next_id) == (other.ready, other.next_id)
        one, several = made.get(ONE), other.get(ONE)
        assert one is not None
        assert several is not None
        index = made.take_one(one)
        assert other.take(several, 1) == range(index, index + 1)
        if number % 3 == 1:
            made.requeue(one, [index], failed=True)
            other.requeue(several, [index], failed=True)
            index = made.take_one(one)
            assert list(other.take(several, 1)) == [index]
        made.settle_one(one, index)
        other.settle(several, [index])
        assert (made.ready, made.unacked) == (other.ready, other.unacked)
        assert (one.contents, one.acks.count) == (several.contents, several.acks.count)
        assert one.returns_of(range(one.length)) == several.returns_of(range(one.length))
    assert [slot.first for slot in made.slots.values()] == [slot.first for slot in other.slots.values()]


def test_an_owner_goes_back_to_a_lower_slot() -> None:
    """A lower slot comes first when another owner gives it back, and when a message of it is requeued."""
    made = manager(12)
    lower = made.get(OTHER)
    higher = made.get(ONE)
    assert lower is not None
    assert higher is not None
    made.end_lease(lower)
    assert made.get(ONE) is lower
    taken = made.take(lower, lower.length)
    assert made.get(ONE) is higher
    made.requeue(lower, taken[:1], failed=True)
    assert made.get(ONE) is lower


def test_a_slot_goes_when_sealed_and_settled() -> None:
    """The open slot stays; a sealed one is deleted with its last message, and the deletion is reported."""
    gone: list[int] = []
    made = manager(6, on_delete=lambda slot: gone.append(slot.first))
    taken: dict[Slot, list[int]] = {}
    while (slot := made.get(ONE)) is not None:
        taken.setdefault(slot, []).extend(made.take(slot, 100))
    for slot, indexes in taken.items():
        made.settle(slot, indexes)
    assert gone == [1]
    assert (made.ready, made.unacked) == (0, 0)
    made.seal()
    assert gone == [1, 5]
    assert list(made.slots) == [7]


def test_the_bytes_of_ready_messages_follow_every_move() -> None:
    """Publish, take, return, requeue, recall, loss and purge all update the bytes that a limit compares."""
    made = SlotManager(window_messages=3)
    made.count_sizes(len)
    for content in ("a", "bb", "ccc", "dddd", "eeeee"):
        made.append_at_border([content], [1])
    assert made.ready_bytes == 15
    slot = made.get(ONE)
    assert slot is not None
    made.take(slot, 2)
    assert made.ready_bytes == 12
    made.put_back(slot, [1])
    assert made.ready_bytes == 14
    made.requeue(slot, [0], failed=True)
    assert made.ready_bytes == 15
    made.requeue(slot, made.take(slot, 3), failed=True)
    assert made.ready_bytes == 15
    made.lose(slot, [2])
    assert made.ready_bytes == 12
    made.pick(slot, [1])
    assert made.ready_bytes == 10
    lose_all(made)
    assert made.ready_bytes == 0


def test_sizes_of_slots_on_disk_count_once_they_are_told() -> None:
    """A later limit counts resident messages at once, and messages on disk after they were measured."""
    made = SlotManager(window_messages=2)
    for content in ("a", "bb", "ccc"):
        made.append_at_border([content], [1])
    on_disk = made.slots[1]
    on_disk.contents = None
    assert made.count_sizes(len) == [on_disk]
    assert made.ready_bytes == 3
    made.take(on_disk, 1)
    made.sizes_known(on_disk, [1, 2])
    assert made.ready_bytes == 5
    made.count_no_sizes()
    assert made.ready_bytes == 0


def test_the_front_is_ready_whoever_leases_it() -> None:
    """A ready message may be dropped or expire while another owner leases its slot."""
    made = SlotManager(window_messages=2)
    made.append_at_border(["a"], [1])
    assert made.front() is made.get(ONE)
    lose_all(made)
    assert made.front() is None


def test_leased_messages_become_a_sealed_slot_behind_all_others() -> None:
    """Adopted messages follow what the open slot has; those with a delivery count, and those seen, are redelivered."""
    opened: list[Slot] = []
    made = manager(1, on_open=opened.append)
    slot = made.adopt(["a", "b", "c"], 30, [ReturnRun(0, 1, 2, 2), ReturnRun(1, 2, 0, 0)])
    assert [(one.first, one.end, one.fill) for one in made.slots.values()] == [
        (1, 2, Fill.SEALED),
        (2, 5, Fill.SEALED),
        (5, 5, Fill.OPEN),
    ]
    assert (made.next_id, made.ready, slot.bytes, opened[-1]) == (5, 4, 30, slot)
    assert [slot.redelivered(index) for index in range(3)] == [True, True, False]
    assert not made.adopt(["d"], 1, ()).redelivered(0)
    assert take_all(made, ONE) == [1, 2, 3, 4, 5]


def test_adopted_messages_count_for_a_limit_in_bytes() -> None:
    """The size of each adopted message is known at once."""
    made = manager(0)
    made.count_sizes(len)
    made.adopt(["a", "bbb"], 30, ())
    assert made.ready_bytes == 4
