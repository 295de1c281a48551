"""Producers in a vhost without room for more sequence numbers."""

from __future__ import annotations

import pytest

from broker.amqp.errors import ChannelError
from broker.core.deadlines import Clock, Deadlines
from broker.core.publishing.producers import Producer, ProducerLimits, Producers
from broker.core.publishing.sequences import BLOCK_SHIFT, Sequences

START_MS = 1_000_000


def use(producers: Producers, producer: Producer, block: int, clock: Clock) -> None:
    """Use the first number of a block. Raises: ChannelError 406."""
    producers.check_room(producer, block << BLOCK_SHIFT)
    producer.sequences.add(block << BLOCK_SHIFT, clock.now_ms)


def test_refusals_look_for_room_when_there_may_be_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many refused numbers cost one search for room, until the oldest block has expired."""
    looks: list[int] = []
    forget = Sequences.forget

    def counted(sequences: Sequences, before_ms: int) -> None:
        looks.append(before_ms)
        forget(sequences, before_ms)

    monkeypatch.setattr(Sequences, "forget", counted)
    clock = Clock(START_MS)
    producers = Producers("/", clock, Deadlines(), lambda _change: None, ProducerLimits(10, 1000, 3200))
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
