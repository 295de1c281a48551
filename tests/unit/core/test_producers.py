"""Producers of a vhost: without room for more sequence numbers, and with very many of them."""

from __future__ import annotations

import pytest

from broker.amqp.errors import ChannelError
from broker.core.deadlines import Clock, Deadlines
from broker.core.publishing.producers import BLOCKS_PER_CHANGE, Producer, ProducerLimits, Producers
from broker.core.publishing.sequences import BLOCK_SHIFT, Sequences

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
