"""The round of a queue's consumers: what each gets, and how many are asked for their room."""

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
    """Return a consumer with this much room; None is more than there are messages."""
    made = CLIENT.consumer(QUEUE, prefetch=0 if room is None else room + 1, priority=priority)
    made.unacked = 1  # a consumer without room would have a prefetch of 0, which means no limit
    return made


def round_of(*takers: Consumer, single_active: bool = False) -> ConsumerRing:
    """Return a round of these consumers."""
    made = ConsumerRing(single_active=single_active)
    for consumer in takers:
        made.add(consumer)
    return made


def left(consumer: Consumer) -> int:
    """Return the room of a consumer without counting a question."""
    return consumer.prefetch - consumer.unacked if consumer.prefetch else UNLIMITED


def give_room(consumer: Consumer) -> None:
    """Give a full consumer room for one message."""
    consumer.unacked = consumer.prefetch - 1


def fill(consumer: Consumer) -> None:
    """Leave a consumer without room."""
    consumer.prefetch = consumer.unacked


def deal(held: ConsumerRing, ready: int) -> list[Consumer]:
    """Deal messages out as a worker does, batch after batch, and return which consumer got each."""
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
    """Return the consumers that were asked for their room, in order."""
    calls: list[Consumer] = []
    room = Consumer.room

    def noted(consumer: Consumer) -> int:
        calls.append(consumer)
        return room(consumer)

    monkeypatch.setattr(Consumer, "room", noted)
    return calls


@pytest.mark.parametrize("count", [2, 3, 1000])
def test_messages_that_come_one_by_one_go_round(count: int) -> None:
    """Each consumer gets one message before any gets a second, in the order in which they came."""
    takers = [taker() for _ in range(count)]
    held = round_of(*takers)
    got = []
    for _ in range(2 * count):
        got += deal(held, 1)
        assert not held.next(0)  # checking for more messages does not advance the round
    assert got == takers * 2


def test_to_ask_whether_somebody_is_able_takes_nobodys_turn() -> None:
    """A queue with limits checks for room at each publish, and the round stays where it is."""
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
    """A message for a thousand consumers asks one of them for its room."""
    takers = [taker() for _ in range(1000)]
    held = round_of(*takers)
    for _ in range(100):
        deal(held, 1)
    assert len(asked) == 100


@pytest.mark.interpreted("a method of the consumer is replaced")
def test_who_is_full_is_not_asked_again_before_it_may_have_room(asked: list[Consumer]) -> None:
    """With a thousand full consumers with a prefetch of 1, an ack causes one question, to the consumer that acked."""
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
    """Consumers of a channel that may have room again are unparked in the order in which they were parked."""
    takers = [taker(room=1), taker(room=1), taker(room=1)]
    held = round_of(*takers)
    assert deal(held, 2) == takers[:2]
    assert deal(held, 2) == [takers[2]]
    assert not held.next(1)
    assert sorted(takers, key=lambda consumer: consumer.parked) == takers


def test_a_backlog_is_dealt_out_in_rows_and_evenly() -> None:
    """When there is enough for all, each consumer gets its share in rows, which saves a write per message."""
    takers = [taker() for _ in range(1000)]
    held = round_of(*takers)
    assert len(held.next(ROW_MESSAGES * 1000)) == BATCH_MESSAGES // ROW_MESSAGES
    got = Counter(id(taker) for taker in deal(held, ROW_MESSAGES * 1000))
    assert max(got.values()) - min(got.values()) <= ROW_MESSAGES
    assert len(got) == 1000


def test_less_than_one_row_each_is_spread_over_all() -> None:
    """As many messages as consumers: each consumer gets one."""
    takers = [taker() for _ in range(1000)]
    assert deal(round_of(*takers), 1000) == takers


def test_the_highest_priority_with_room_is_served() -> None:
    """Lower priorities are served while the higher ones are full, until one of those acks."""
    low, high, other = taker(), taker(room=1, priority=5), taker(room=1, priority=5)
    held = round_of(low, high, other)
    assert deal(held, 2) == [high, other]
    assert deal(held, 1) == [low]
    give_room(high)
    held.unpark(high)
    assert deal(held, 2) == [high, low]


def test_who_leaves_is_not_served_and_the_others_keep_their_turns() -> None:
    """A consumer may leave while parked, next or just served; unparking uses the consumers that remain."""
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
    """A lone consumer is asked each time, because the consumer that filled it may have left."""
    full, other = taker(room=0), taker(room=0)
    held = round_of(full, other)
    assert not held.next(1)
    held.remove(other)
    give_room(full)
    assert held.next(1) == [full]


def test_one_is_active_at_a_time() -> None:
    """Only the active consumer is served; the next one is of the highest priority."""
    first, second, third = taker(), taker(), taker(priority=1)
    held = round_of(first, second, third, single_active=True)
    assert deal(held, 2) == [first, first]
    fill(first)
    assert not held.next(1)
    held.remove(first)
    assert held.active is third
    assert deal(held, 1) == [third]


def test_the_active_one_yields_to_a_higher_priority_when_it_has_settled_all() -> None:
    """Meanwhile no one is served; who leaves meanwhile is neither active nor waited for."""
    low, same, high, higher = taker(), taker(), taker(priority=1), taker(priority=2)
    held = ConsumerRing(single_active=True, yields=True)
    for consumer in (low, same):
        held.add(consumer)
    assert deal(held, 1) == [low]
    held.add(high)
    assert (held.active, held.able(), held.room(1), held.next(1)) == (low, False, 0, [])
    held.add(higher)
    held.remove(higher)
    held.remove(high)
    assert deal(held, 1) == [low]
    held.add(high)
    low.unacked = 0
    assert (held.able(), held.active) == (True, high)
    assert deal(held, 1) == [high]
    held.remove(high)
    assert held.active is low
