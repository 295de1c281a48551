"""The plan: queues of every kind, equal for equal flights, divided among consumers without loss."""

from collections import Counter
from collections.abc import Sequence

import pytest

from demo.plan import KINDS, QueuePlan, make_plan, matched, routes_of, share_out

ROUTES = [
    (carrier, origin, dest)
    for carrier in ("UA", "AA", "B6", "9E")
    for origin in ("EWR", "JFK")
    for dest in ("ATL", "BOS", "LAX")
]
OUTCOMES = ("on-time", "late", "cancelled")


def hashes_left(binding_key: str) -> int:
    """Count the `#` that remain when each run of wildcards keeps one."""
    count, in_run = 0, False
    for word in binding_key.split("."):
        if word == "#" and not in_run:
            count, in_run = count + 1, True
        elif word not in {"*", "#"}:
            in_run = False
    return count


def kinds_of(plan: Sequence[QueuePlan]) -> Counter[str]:
    """Count the queues of each kind."""
    return Counter(queue.kind for queue in plan)


@pytest.mark.parametrize("queues", [9, 60, 220])
def test_plan_has_the_queues_asked_for_and_every_kind(queues: int) -> None:
    """Nine queues are enough for one of every kind."""
    plan = make_plan(ROUTES, queues)
    assert len(plan) == len({queue.name for queue in plan}) == queues
    assert set(kinds_of(plan)) == {"everything", *KINDS}


def test_kinds_have_the_wildcards_that_they_are_named_for() -> None:
    """`#` is at the place in the binding key that the kind's name says."""
    for queue in make_plan(ROUTES, 220):
        for words in (key.split(".") for key in queue.binding_keys):
            place = [index for index, word in enumerate(words) if word == "#"]
            if queue.kind == "literal":
                assert not {"*", "#"} & set(words)
            elif queue.kind == "*":
                assert "*" in words and not place
            elif queue.kind == "# first":
                assert place == [0] and len(words) > 1
            elif queue.kind == "# last":
                assert place == [len(words) - 1] and len(words) > 1
            elif queue.kind == "# in the middle":
                assert len(place) == 1 and 0 < place[0] < len(words) - 1
            elif queue.kind == "several #":
                assert len(place) >= 2


def test_no_binding_key_has_more_hashes_than_a_broker_must_take() -> None:
    """Every binding key has at most two `#` in canonical form."""
    for queue in make_plan(ROUTES, 220):
        assert all(hashes_left(key) <= 2 for key in queue.binding_keys)


def test_overlapping_queues_have_bindings_that_match_the_same_flights() -> None:
    """The bindings of such a queue match some flight more than once."""
    flights = [f"flight.{'.'.join(route)}.{outcome}" for route in ROUTES for outcome in OUTCOMES]
    for queue in (queue for queue in make_plan(ROUTES, 220) if queue.kind == "overlapping"):
        alone = [sum(matched([key], flights)) for key in queue.binding_keys]
        assert len(alone) > 1
        assert sum(alone) > sum(matched(queue.binding_keys, flights))


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
