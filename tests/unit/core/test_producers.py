"""Producers of a vhost: without room for more sequence numbers, with very many of them, and the broker's own."""

from __future__ import annotations

from typing import Any

import pytest

from broker.amqp.errors import ChannelError
from broker.core.deadlines import Clock, Deadlines
from broker.core.publishing.producers import BLOCKS_PER_CHANGE, Producer, ProducerLimits, Producers
from broker.core.publishing.sequences import BLOCK_NUMBERS, BLOCK_SHIFT, OwnSequence, Room, Sequences

START_MS = 1_000_000


def use(producers: Producers, producer: Producer, block: int, clock: Clock) -> None:
    """Use the first number of a block. Raises: ChannelError 406."""
    producers.check_room(producer, block << BLOCK_SHIFT)
    producer.sequences.add(block << BLOCK_SHIFT, clock.now_ms)


@pytest.mark.interpreted("a method of the sequences is replaced")
def test_refusals_look_for_room_when_there_may_be_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many refused numbers cost one search for room, until the oldest block has expired."""
    looks: list[int] = []
    forget = Sequences.forget

    def counted(sequences: Sequences, before_ms: int) -> None:
        looks.append(before_ms)
        forget(sequences, before_ms)

    monkeypatch.setattr(Sequences, "forget", counted)
    clock = Clock(START_MS)
    producers = Producers("/", Deadlines(clock), lambda _change: None, ProducerLimits(10, 1000, 3200))
    producer = producers.of("p", "ann")
    for block in range(10):
        clock.now_ms += 1
        use(producers, producer, block, clock)
    for block in range(50):
        with pytest.raises(ChannelError, match="producer bytes limit"):
            use(producers, producer, 100 + block, clock)
    assert len(looks) == 1
    clock.now_ms = 1_000_001 + 1000
    with pytest.raises(ChannelError, match="producer bytes limit"):
        use(producers, producer, 100, clock)
    clock.now_ms += 1
    use(producers, producer, 100, clock)
    assert sorted(producer.sequences.blocks) == [*range(1, 10), 100]
    assert len(looks) == 2


@pytest.mark.parametrize("blocks", [1, BLOCKS_PER_CHANGE, 3 * BLOCKS_PER_CHANGE + 1])
def test_what_many_blocks_of_numbers_say_is_written_in_pieces(blocks: int) -> None:
    """A snapshot names each used number of each producer, a bounded number of blocks in a change."""
    clock = Clock(START_MS)
    limits = ProducerLimits(10, 1 << 30, 3200)
    producers = Producers("/", Deadlines(clock), lambda _change: None, limits)
    used = {
        "ann": [block << BLOCK_SHIFT | block % 7 for block in range(blocks)],
        "bob": [(2 * block + 1) << BLOCK_SHIFT for block in range(blocks)],
    }
    for name, numbers in used.items():
        producer = producers.of(name, name)
        for number in numbers:
            producer.sequences.add(number, clock.now_ms)
            producer.sequences.add(number + 9, clock.now_ms)
    changes = list(producers.snapshot()())
    assert max(len(change.get("blocks", ())) for change in changes) == min(blocks, BLOCKS_PER_CHANGE)
    again = Producers("/", Deadlines(clock), lambda _change: None, limits)
    again.restore(changes)
    for name, numbers in used.items():
        sequences = again.of(name, name).sequences
        assert isinstance(sequences, Sequences)
        assert len(sequences.blocks) == blocks
        for number in numbers:
            assert [number in sequences, number + 1 in sequences, number + 9 in sequences] == [True, False, True]


def producers_of(
    journal: list[dict[str, Any]], clock: Clock | None = None, limits: ProducerLimits | None = None
) -> Producers:
    """Return the producers of a vhost."""
    return Producers("/", Deadlines(clock or Clock(START_MS)), journal.append, limits or ProducerLimits())


def test_numbers_up_to_the_highest_count_as_used() -> None:
    """Gaps count as used, numbers go up only, and the memory stays that of one block of a range."""
    room = Room()
    position = OwnSequence(room)
    assert position.highest == -1
    used = []
    for number in (0, 5, 3, 5, BLOCK_NUMBERS - 1, BLOCK_NUMBERS + 7, 9 * BLOCK_NUMBERS, 12, 9 * BLOCK_NUMBERS + 1):
        used.append(position.add(number, 1))
        assert 0 in position
        assert position.highest in position
        assert position.highest + 1 not in position
    assert used == [True, True, False, False, True, True, True, False, True]
    assert len(position.blocks) == 1
    one = Sequences(Room())
    one.add(0, 1)
    (block,) = one.blocks.values()
    assert room.used_bytes == block.size_bytes
    position.forget(1 << 60)
    assert position.highest == 9 * BLOCK_NUMBERS + 1


def test_position_comes_back_from_checkpoint_and_log() -> None:
    """The claim, the blocks of a checkpoint and the numbers of later records, in any order, give the highest number."""
    journal: list[dict[str, Any]] = []
    producers = producers_of(journal)
    own = producers.own("amq.overlay.x")
    assert own.reached == -1
    producers.advance(own, BLOCK_NUMBERS * 3 + 5)
    producers.advance(own, 7)  # passed already
    assert own.reached == BLOCK_NUMBERS * 3 + 5
    assert [change["change"] for change in journal] == ["producer_claimed", "producer_used", "producer_used"]
    changes = list(producers.snapshot()())
    own.sequences.add(BLOCK_NUMBERS * 3 + 6, 1)  # by the record of a message
    end = BLOCK_NUMBERS * 3 + 7
    later = {"change": "producer_used", "producer": own.number, "runs": [[4, 5], [end - 1, end]]}
    for found in ([*changes, later], [*journal, *changes, later], [*journal, later]):
        again = producers_of([])
        again.restore(found)
        assert again.own("amq.overlay.x").reached == BLOCK_NUMBERS * 3 + 6
        assert again.own("amq.overlay.x").number == own.number


def test_positions_are_no_clients_and_last_for_ever() -> None:
    """No client can claim or use such a name; the limit of producers and the expiry do not concern them."""
    clock = Clock(START_MS)
    producers = producers_of([], clock, ProducerLimits(1, 1000, 1))
    own = producers.own("amq.a")
    producers.own("amq.b")
    producers.advance(own, 3)
    for name in ("amq.a", "amq.other"):
        with pytest.raises(ChannelError, match="ACCESS_REFUSED"):
            producers.of(name, "ann")
    clock.now_ms += 1 << 40
    producers.forget_unused()
    assert producers.own("amq.a") is own
    assert own.reached == 3
