"""Positions: the producers of the broker itself, which remember how far they came in a stream."""

from __future__ import annotations

from typing import Any

import pytest

from broker.amqp.errors import ChannelError
from broker.core.deadlines import Clock, Deadlines
from broker.core.publishing.producers import ProducerLimits, Producers
from broker.core.publishing.sequences import BLOCK_NUMBERS, OwnSequence, Room, Sequences

START_MS = 1_000


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
