"""The plan: queues of every kind, equal for equal flights, divided among consumers without loss."""

from collections import Counter
from collections.abc import Sequence

import pytest

from demo.plan import KINDS, QueuePlan, make_plan, routes_of, share_out

ROUTES = [
    (carrier, origin, dest)
    for carrier in ("UA", "AA", "B6", "9E")
    for origin in ("EWR", "JFK")
    for dest in ("ATL", "BOS", "LAX")
]


def kinds_of(plan: Sequence[QueuePlan]) -> Counter[str]:
    """Count the queues of each kind."""
    return Counter(queue.kind for queue in plan)


@pytest.mark.parametrize("queues", [9, 60, 220])
def test_plan_has_the_queues_asked_for_and_every_kind(queues: int) -> None:
    """Nine queues are enough for one of every kind."""
    plan = make_plan(ROUTES, queues)
    assert len(plan) == len({queue.name for queue in plan}) == queues
    assert set(kinds_of(plan)) == {"everything", *KINDS}


def test_plan_depends_on_the_flights_alone() -> None:
    """The order of the rows does not matter, and equal routes give an equal plan."""
    keys = [f"flight.{'.'.join(route)}.late" for count, route in enumerate(ROUTES, 1) for _ in range(count)]
    assert routes_of(keys) == routes_of(keys[::-1]) == ROUTES[::-1]
    assert make_plan(ROUTES, 50) == make_plan(list(ROUTES), 50)


def test_one_route_is_enough_for_a_plan() -> None:
    """With few routes binding keys repeat, but there are enough queues."""
    assert len(make_plan(ROUTES[:1], 100)) == 100


@pytest.mark.parametrize(("pika_consumers", "aio_consumers"), [(1, 0), (2, 1), (3, 2)])
def test_every_queue_has_one_consumer(pika_consumers: int, aio_consumers: int) -> None:
    """Each queue is assigned to exactly one consumer."""
    expected = [1_000, *range(100)]
    shares = share_out(expected, pika_consumers, aio_consumers, 0.1)
    assert len(shares) == pika_consumers + aio_consumers
    assert sorted(queue for group in shares for queue in group) == list(range(101))


def test_aio_pika_gets_no_more_than_its_part() -> None:
    """aio-pika's queues have at most its share of the deliveries, and more than none."""
    expected = [1_000, *range(100)]
    shares = share_out(expected, 2, 1, 0.1)
    assert 0 < sum(expected[queue] for queue in shares[2]) <= sum(expected) * 0.1
