"""Whose turn it is among the consumers of a queue: what they get, and how many of them are asked for room."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from broker.core.round import BATCH_MESSAGES, ROW_MESSAGES, Round

pytestmark = pytest.mark.interpreted("the consumers are stand-ins")


class Taker:
    """A consumer with so much room, which counts how often it is asked for it."""

    def __init__(self, room: int = 1 << 30, priority: int = 0) -> None:
        self.left = room
        self.priority = priority
        self.exclusive = False
        self.parked = False
        self.asked = 0

    def room(self) -> int:
        """Returns how many messages it can take."""
        self.asked += 1
        return self.left


def round_of(*takers: Taker, single_active: bool = False) -> Any:
    """Returns a round of them."""
    made: Any = Round(single_active=single_active)
    for taker in takers:
        made.add(taker)
    return made


def deal(held: Any, ready: int) -> list[Taker]:
    """Deals messages out as a worker does, one batch after the other, and returns who got each."""
    got: list[Taker] = []
    while ready and (takers := held.next(ready)):
        batch: list[Taker] = []
        while len(batch) < min(ready, BATCH_MESSAGES) and (open_takers := [taker for taker in takers if taker.left]):
            for taker in open_takers[: min(ready, BATCH_MESSAGES) - len(batch)]:
                taker.left -= 1
                batch.append(taker)
        if len(takers) > 1:
            held.served(max(batch, key=takers.index))
        got += batch
        ready -= len(batch)
    return got


@pytest.mark.parametrize("count", [2, 3, 1000])
def test_messages_that_come_one_by_one_go_round(count: int) -> None:
    """Each consumer gets one before any gets a second, in the order in which they came."""
    takers = [Taker() for _ in range(count)]
    held = round_of(*takers)
    got = []
    for _ in range(2 * count):
        got += deal(held, 1)
        assert not held.next(0)  # a worker that looks whether there is more takes nobody's turn
    assert got == takers * 2


def test_to_ask_whether_somebody_is_able_takes_nobodys_turn() -> None:
    """A queue with limits asks at each publish, and its messages go round all the same."""
    takers = [Taker(), Taker(room=1), Taker()]
    held = round_of(*takers)
    got = []
    for _ in range(5):
        assert held.able()
        got += deal(held, 1)
    assert got == [takers[0], takers[1], takers[2], takers[0], takers[2]]
    for taker in takers:
        taker.left = 0
    assert not held.able()
    assert all(taker.parked for taker in takers)


def test_a_round_asks_no_more_than_it_serves() -> None:
    """A message for a thousand consumers is offered to one of them."""
    takers = [Taker() for _ in range(1000)]
    held = round_of(*takers)
    for _ in range(100):
        deal(held, 1)
    assert sum(taker.asked for taker in takers) == 100


def test_who_is_full_is_not_asked_again_before_it_may_have_room() -> None:
    """Of a thousand consumers with a prefetch of 1, an ack has the one asked that acked."""
    takers = [Taker(room=1) for _ in range(1000)]
    held = round_of(*takers)
    assert deal(held, 1000) == takers
    assert not held.next(1)
    asked = sum(taker.asked for taker in takers)
    for taker in takers[500:600]:
        taker.left = 1
        held.unpark(taker)
        assert deal(held, 5) == [taker]
    assert sum(taker.asked for taker in takers) - asked <= 300


def test_a_backlog_is_dealt_out_in_rows_and_evenly() -> None:
    """Where there is enough for everybody each gets its share in rows, which spares a write for each message."""
    takers = [Taker() for _ in range(1000)]
    held = round_of(*takers)
    assert len(held.next(ROW_MESSAGES * 1000)) == BATCH_MESSAGES // ROW_MESSAGES
    got = Counter(id(taker) for taker in deal(held, ROW_MESSAGES * 1000))
    assert max(got.values()) - min(got.values()) <= ROW_MESSAGES
    assert len(got) == 1000


def test_less_than_one_row_each_is_spread_over_all() -> None:
    """As many messages as consumers go to all of them, one each."""
    takers = [Taker() for _ in range(1000)]
    assert deal(round_of(*takers), 1000) == takers


def test_the_highest_priority_with_room_is_served() -> None:
    """The lower ones have their turn while the higher ones are full, and lose it when one of those acks."""
    low, high, other = Taker(), Taker(room=1, priority=5), Taker(room=1, priority=5)
    held = round_of(low, high, other)
    assert deal(held, 2) == [high, other]
    assert deal(held, 1) == [low]
    high.left = 1
    held.unpark(high)
    assert deal(held, 2) == [high, low]


def test_who_leaves_is_not_served_and_the_others_keep_their_turns() -> None:
    """A consumer may leave whether it is parked, next or just served; unparking goes by who is there."""
    first, second, third, full = Taker(), Taker(), Taker(), Taker(room=0)
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
    full, other = Taker(room=0), Taker(room=0)
    held = round_of(full, other)
    assert not held.next(1)
    held.remove(other)
    full.left = 1
    assert held.next(1) == [full]


def test_one_is_active_at_a_time() -> None:
    """The active one is served alone, and the next of the highest priority follows it."""
    first, second, third = Taker(), Taker(), Taker(priority=1)
    held = round_of(first, second, third, single_active=True)
    assert deal(held, 2) == [first, first]
    first.left = 0
    assert not held.next(1)
    held.remove(first)
    assert held.active is third
    assert deal(held, 1) == [third]
