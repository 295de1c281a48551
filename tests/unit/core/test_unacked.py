"""Delivery tags: the runs in which they are kept, and the cost of finding them; tests/property has the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import log2
from random import Random
from typing import Any

import pytest

from broker.amqp.errors import ChannelError
from broker.core.queue.consumer import Consumer
from broker.core.queue.unacked import SlotDelivery, Unacked, by_slot, differ
from broker.slots.slot import Slot
from tests.unit.core.room import Room

ROOM = Room()
CLIENT = ROOM.enter()
STREAM = ROOM.vhost.queues.declare("q").level
QUEUE = ROOM.vhost.queues["q"]
CONSUMER = CLIENT.consumer(QUEUE)
SLOT = Slot(1)


def unacked(count: int, run: int = 1) -> Unacked:
    """Return the tags 1 to `count`, all unacked, in runs of this length; each tag stands for the index of its value."""
    made = Unacked()
    for first in range(1, count + 1, run):
        made.handed_out(STREAM, SLOT, range(first, first + run), consumer_of(first))
    assert made.last_tag == count
    return made


def consumer_of(number: int) -> Consumer:
    """Return a separate consumer for each number, so that runs are not joined."""
    return CLIENT.consumer(QUEUE, f"consumer-{number}")


def tags(deliveries: Sequence[SlotDelivery]) -> list[int]:
    """Return the tags that the deliveries stand for."""
    return [index for delivery in deliveries for index in delivery.indexes]


def facts(delivery: SlotDelivery) -> tuple[Any, ...]:
    """Return what a delivery names; its count and its start agree with its indexes."""
    assert (delivery.start, delivery.count) == (delivery.indexes[0], len(delivery.indexes))
    return (delivery.level, delivery.slot, delivery.indexes, delivery.consumer)


def test_what_is_handed_out_in_one_piece_is_taken_in_one() -> None:
    """A dense piece of a slot is one range however many deliveries it took, and an ack in its middle splits nothing."""
    made = Unacked()
    for start in range(0, 1000, 250):
        made.handed_out(STREAM, SLOT, list(range(start, start + 250)), CONSUMER)
    assert [facts(one) for one in made.take(100, multiple=True)] == [(STREAM, SLOT, range(100), CONSUMER)]
    made.take(502, multiple=False)
    made.handed_out(STREAM, SLOT, range(1000, 1010), CONSUMER)
    rest = [*range(100, 501), *range(502, 1000)]
    assert [facts(one) for one in made.take_all()] == [
        (STREAM, SLOT, rest, CONSUMER),
        (STREAM, SLOT, range(1000, 1010), CONSUMER),
    ]


def test_an_ack_of_whole_runs_makes_no_objects() -> None:
    """The deliveries of an ack are returned as recorded; only an ack of a part of a run needs a new object."""
    made = unacked(10)
    made.handed_out(STREAM, SLOT, range(11, 14), CONSUMER)
    runs = list(made.runs)
    taken = [*made.take(7, multiple=True), *made.take(8, multiple=False), *made.take(10, multiple=True)]
    assert all(one is run for one, run in zip(taken, runs, strict=False))
    assert len(taken) == 10
    (part,) = made.take(12, multiple=True)
    assert part is not runs[10]
    assert facts(part) == (STREAM, SLOT, range(11, 13), CONSUMER)


class CountedList(list[Any]):
    """A list that counts the entries that its operations read or move."""

    steps = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.steps += len(found) if isinstance(place, slice) else 1
        return found

    def __setitem__(self, place: Any, value: Any) -> None:
        super().__setitem__(place, value)
        self.steps += len(self)

    def __delitem__(self, place: Any) -> None:
        super().__delitem__(place)
        self.steps += len(self)

    def __iter__(self) -> Iterator[Any]:
        for entry in super().__iter__():
            self.steps += 1
            yield entry


def shuffled(count: int) -> list[int]:
    """Return the tags 1 to `count` in a fixed random order."""
    order = list(range(1, count + 1))
    Random(6).shuffle(order)
    return order


ORDERS: dict[str, Callable[[int], list[int]]] = {
    "oldest first": lambda count: list(range(1, count + 1)),
    "newest first": lambda count: list(range(count, 0, -1)),
    "every other one, then the rest": lambda count: [*range(1, count + 1, 2), *range(2, count + 1, 2)],
    "from the middle on": lambda count: [*range(count // 2, count + 1), *range(1, count // 2)],
    "any": shuffled,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("run", [1, 3, 10])
def test_a_tag_is_taken_once(order: str, run: int) -> None:
    """A settled tag is refused for ever and settles nothing, whatever else is unacked."""
    made = unacked(60, run)
    taken: list[int] = []
    for tag in ORDERS[order](60):
        made.take(tag, multiple=False)
        taken.append(tag)
        for gone in taken:
            with pytest.raises(ChannelError):
                made.take(gone, multiple=False)
    assert made.count == 0


@pytest.mark.interpreted("the list of runs counts what is read of it")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("run", [1, 100])
def test_acks_cost_a_search_each_in_whatever_order_they_come(order: str, run: int) -> None:
    """An ack among many runs reads a logarithmic number of them, and moves few on average."""
    runs = 20_000 // run
    made = unacked(runs * run, run)
    made.runs = counted = CountedList(made.runs)
    for tag in ORDERS[order](runs * run):
        assert tags(made.take(tag, multiple=False)) == [tag]
    assert (made.count, len(counted)) == (0, 0)
    assert counted.steps <= runs * run * (log2(runs) + 8)
    if order == "oldest first":
        assert counted.steps <= 8 * runs * run


@pytest.mark.interpreted("the list of runs counts what is read of it")
@pytest.mark.parametrize("step", [1, 7])
def test_acks_with_multiple_visit_each_run_a_few_times(step: int) -> None:
    """Acknowledging a long list from its front costs a few steps per run, not the whole list each time."""
    count = 1400
    made = unacked(count)
    made.runs = counted = CountedList(made.runs)
    for tag in range(step, count + 1, step):
        assert len(made.take(tag, multiple=True)) == step
    assert not made.runs
    assert counted.steps <= 8 * count


def test_runs_that_are_done_with_are_let_go() -> None:
    """Few runs remain, however many messages around an unacked one were acknowledged."""
    made = unacked(1)
    longest = 0
    for number in range(2, 5000):
        made.handed_out(STREAM, SLOT, [number], consumer_of(number))
        if number % 2:
            made.take(number, multiple=False)
            made.take(number - 1, multiple=False)
        longest = max(longest, len(made.runs))
    assert made.oldest == 1
    assert longest < 100


def test_deliveries_are_grouped_by_slot() -> None:
    """Deliveries of one slot that several consumers got form a range again, or an ascending list; others differ."""
    other = Slot(100)
    made = Unacked()
    made.handed_out(STREAM, SLOT, [3, 5], CONSUMER)
    made.handed_out(STREAM, other, [2, 9], CONSUMER)
    made.handed_out(STREAM, SLOT, [4], None)
    assert made.indexes_of(other) == [2, 9]
    deliveries = made.take_all()
    assert [differ(deliveries[:count]) for count in range(4)] == [True, True, True, False]
    assert by_slot(deliveries) == [(STREAM, SLOT, range(3, 6)), (STREAM, other, [2, 9])]
