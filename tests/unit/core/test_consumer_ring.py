"""Whose turn it is among the consumers of a queue: what they get, and how many of them are asked for room."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from broker.core.queue.consumer import UNLIMITED, Consumer
from broker.core.queue.consumer_ring import BATCH_MESSAGES, ROW_MESSAGES, ConsumerRing
from tests.unit.core.room import Room

ROOM = Room()
CLIENT = ROOM.enter()
QUEUE = ROOM.vhost.queues.declare("q")


def taker(room: int | None = None, priority: int = 0) -> Consumer:
    """Return a consumer with so much room; None: more than there are messages."""
    made = CLIENT.consumer(QUEUE, prefetch=0 if room is None else room + 1, priority=priority)
    made.unacked = 1  # or a consumer without room would have a prefetch of 0, which is none
    return made


def round_of(*takers: Consumer, single_active: bool = False) -> ConsumerRing:
    """Return a round of them."""
    made = ConsumerRing(single_active=single_active)
    for consumer in takers:
        made.add(consumer)
    return made


def left(consumer: Consumer) -> int:
    """Return how much room a consumer has, without asking it."""
    return consumer.prefetch - consumer.unacked if consumer.prefetch else UNLIMITED


def give_room(consumer: Consumer) -> None:
    """Let a full consumer have room for one."""
    consumer.unacked = consumer.prefetch - 1


def fill(consumer: Consumer) -> None:
    """Let a consumer have no room any more."""
    consumer.prefetch = consumer.unacked


def deal(held: ConsumerRing, ready: int) -> list[Consumer]:
    """Deal messages out as a worker does, one batch after the other, and return who got each."""
    got: list[Consumer] = []
    while ready and (takers := cast("list[Consumer]", held.next(ready))):
        batch: list[Consumer] = []
        while len(batch) < min(ready, BATCH_MESSAGES) and (able := [consumer for consumer in takers if left(consumer)]):
            for consumer in able[: min(ready, BATCH_MESSAGES) - len(batch)]:
                consumer.unacked += 1
                batch.append(consumer)
        if len(takers) > 1:
            held.served(max(batch, key=takers.index))
        got += batch
        ready -= len(batch)
    return got


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Consumer]:
    """Return whom somebody asked for room, in order."""
    calls: list[Consumer] = []
    room = Consumer.room

    def noted(consumer: Consumer) -> int:
        calls.append(consumer)
        return room(consumer)

    monkeypatch.setattr(Consumer, "room", noted)
    return calls


@pytest.mark.parametrize("count", [2, 3, 1000])
def test_messages_that_come_one_by_one_go_round(count: int) -> None:
    """Each consumer gets one before any gets a second, in the order in which they came."""
    takers = [taker() for _ in range(count)]
    held = round_of(*takers)
    got = []
    for _ in range(2 * count):
        got += deal(held, 1)
        assert not held.next(0)  # a worker that looks whether there is more takes nobody's turn
    assert got == takers * 2


def test_to_ask_whether_somebody_is_able_takes_nobodys_turn() -> None:
    """A queue with limits asks at each publish, and its messages go round all the same."""
    takers = [taker(), taker(room=1), taker()]
    held = round_of(*takers)
    got = []
    for _ in range(5):
        assert held.able()
        got += deal(held, 1)
    assert got == [takers[0], takers[1], takers[2], takers[0], takers[2]]
    for consumer in takers:
        fill(consumer)
    assert not held.able()
    assert all(consumer.parked for consumer in takers)


@pytest.mark.interpreted("a method of the consumer is replaced")
def test_a_round_asks_no_more_than_it_serves(asked: list[Consumer]) -> None:
    """A message for a thousand consumers is offered to one of them."""
    takers = [taker() for _ in range(1000)]
    held = round_of(*takers)
    for _ in range(100):
        deal(held, 1)
    assert len(asked) == 100


@pytest.mark.interpreted("a method of the consumer is replaced")
def test_who_is_full_is_not_asked_again_before_it_may_have_room(asked: list[Consumer]) -> None:
    """Of a thousand consumers with a prefetch of 1, an ack has the one asked that acked."""
    takers = [taker(room=1) for _ in range(1000)]
    held = round_of(*takers)
    assert deal(held, 1000) == takers
    assert not held.next(1)
    asked.clear()
    for consumer in takers[500:600]:
        give_room(consumer)
        held.unpark(consumer)
        assert deal(held, 5) == [consumer]
    assert len(asked) <= 300


def test_who_was_parked_first_is_told_by_a_number() -> None:
    """Those of a channel that may have room again at once are unparked in the order in which they lost it."""
    takers = [taker(room=1), taker(room=1), taker(room=1)]
    held = round_of(*takers)
    assert deal(held, 2) == takers[:2]
    assert deal(held, 2) == [takers[2]]
    assert not held.next(1)
    assert sorted(takers, key=lambda consumer: consumer.parked) == takers


def test_a_backlog_is_dealt_out_in_rows_and_evenly() -> None:
    """Where there is enough for everybody each gets its share in rows, which spares a write for each message."""
    takers = [taker() for _ in range(1000)]
    held = round_of(*takers)
    assert len(held.next(ROW_MESSAGES * 1000)) == BATCH_MESSAGES // ROW_MESSAGES
    got = Counter(id(taker) for taker in deal(held, ROW_MESSAGES * 1000))
    assert max(got.values()) - min(got.values()) <= ROW_MESSAGES
    assert len(got) == 1000


def test_less_than_one_row_each_is_spread_over_all() -> None:
    """As many messages as consumers go to all of them, one each."""
    takers = [taker() for _ in range(1000)]
    assert deal(round_of(*takers), 1000) == takers


def test_the_highest_priority_with_room_is_served() -> None:
    """The lower ones have their turn while the higher ones are full, and lose it when one of those acks."""
    low, high, other = taker(), taker(room=1, priority=5), taker(room=1, priority=5)
    held = round_of(low, high, other)
    assert deal(held, 2) == [high, other]
    assert deal(held, 1) == [low]
    give_room(high)
    held.unpark(high)
    assert deal(held, 2) == [high, low]


def test_who_leaves_is_not_served_and_the_others_keep_their_turns() -> None:
    """A consumer may leave whether it is parked, next or just served; unparking goes by who is there."""
    first, second, third, full = taker(), taker(), taker(), taker(room=0)
    held = round_of(full, first, second, third)
    assert deal(held, 1) == [first]
    held.remove(full)
    held.remove(first)
    assert not full.parked
    assert deal(held, 1) == [second]
    held.served(first)
    assert deal(held, 2) == [third, second]
    held.remove(second)
    assert deal(held, 2) == [third, third]
    assert held.clear() == [third]
    assert not held.next(1)
    assert not held.present


def test_the_last_one_left_is_served_though_it_was_parked() -> None:
    """A consumer alone is asked each time: whoever made it full may have left with the reason."""
    full, other = taker(room=0), taker(room=0)
    held = round_of(full, other)
    assert not held.next(1)
    held.remove(other)
    give_room(full)
    assert held.next(1) == [full]


def test_one_is_active_at_a_time() -> None:
    """The active one is served alone, and the next of the highest priority follows it."""
    first, second, third = taker(), taker(), taker(priority=1)
    held = round_of(first, second, third, single_active=True)
    assert deal(held, 2) == [first, first]
    fill(first)
    assert not held.next(1)
    held.remove(first)
    assert held.active is third
    assert deal(held, 1) == [third]
