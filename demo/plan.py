"""The plan of one run: its queues, their binding keys, and their consumers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

from demo.matcher import matched

EXCHANGE = "flights"
DEAD_BINDINGS = (
    "flight.*.JFK",
    "flight.#.nowhere.#",
    "flight.*.*.*.*.*",
    "",
    "flight..#",
    "FLIGHT.#",
    "*",
    "#.flight.*",
)


@dataclass(frozen=True, slots=True)
class Route:
    """One route of the flights: carrier, origin and destination, each a word of the routing key."""

    carrier: str
    origin: str
    dest: str


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """One queue, the kind of its pattern and its binding keys."""

    name: str
    kind: str
    binding_keys: tuple[str, ...]


# Builds the binding keys of one queue.
Form = Callable[[Route], tuple[str, ...]]


def _always(key: str) -> Form:
    """Return a form that builds the same binding key for every route."""
    return lambda _: (key,)


# Every kind of pattern: its share of the queues, and its forms, which are used in turn.
KINDS: dict[str, tuple[int, tuple[Form, ...]]] = {
    "literal": (
        40,
        (
            lambda r: (f"flight.{r.carrier}.{r.origin}.{r.dest}.on-time",),
            lambda r: (f"flight.{r.carrier}.{r.origin}.{r.dest}.late",),
            lambda r: (f"flight.{r.carrier}.{r.origin}.{r.dest}.cancelled",),
        ),
    ),
    "*": (
        45,
        (
            lambda r: (f"flight.*.{r.origin}.{r.dest}.*",),
            lambda r: (f"flight.{r.carrier}.{r.origin}.*.late",),
            lambda r: (f"*.{r.carrier}.*.*.cancelled",),
            lambda r: (f"flight.*.*.{r.dest}.late",),
            lambda r: (f"*.*.*.{r.dest}.*",),
            lambda r: (f"flight.{r.carrier}.{r.origin}.*.*",),
        ),
    ),
    "# first": (
        25,
        (
            lambda r: (f"#.{r.dest}.late",),
            lambda r: (f"#.{r.origin}.{r.dest}.*",),
            lambda r: (f"#.{r.carrier}.*.*.cancelled",),
            lambda r: (f"#.{r.origin}.*.late",),
            lambda r: (f"#.flight.{r.carrier}.{r.origin}.{r.dest}.on-time",),
        ),
    ),
    "# in the middle": (
        25,
        (
            lambda r: (f"flight.{r.carrier}.#.cancelled",),
            lambda r: (f"flight.#.{r.dest}.late",),
            lambda r: (f"flight.{r.carrier}.{r.origin}.#.{r.dest}.on-time",),
            lambda r: (f"*.*.#.{r.origin}.{r.dest}.*",),
            lambda r: (f"flight.{r.carrier}.#.late",),
        ),
    ),
    "# last": (
        25,
        (
            lambda r: (f"flight.{r.carrier}.{r.origin}.{r.dest}.#",),
            lambda r: (f"flight.*.{r.origin}.{r.dest}.#",),
            lambda r: (f"flight.{r.carrier}.{r.origin}.{r.dest}.late.#",),
            lambda r: (f"*.*.*.{r.dest}.#",),
            lambda r: (f"flight.{r.carrier}.{r.origin}.#",),
        ),
    ),
    # The last three forms have at most two '#' after a run of wildcards is written canonically.
    "several #": (
        25,
        (
            lambda r: (f"#.{r.dest}.#",),
            lambda r: (f"#.{r.carrier}.#.cancelled",),
            lambda r: (f"flight.#.{r.origin}.{r.dest}.#",),
            lambda r: (f"#.{r.origin}.#.late",),
            lambda r: (f"#.#.{r.dest}.late.#.#",),
            lambda r: (f"flight.#.*.#.{r.dest}.late",),
            lambda r: (f"flight.{r.carrier}.{r.origin}.#.*.#.#.cancelled",),
        ),
    ),
    "overlapping": (
        25,
        (
            lambda r: (
                f"flight.*.{r.origin}.{r.dest}.*",
                f"#.{r.origin}.{r.dest}.late",
                f"flight.{r.carrier}.{r.origin}.{r.dest}.#",
            ),
            lambda r: (
                f"flight.{r.carrier}.*.{r.dest}.#",
                f"#.{r.dest}.late",
                f"flight.{r.carrier}.{r.origin}.{r.dest}.late",
            ),
            lambda r: (
                f"*.{r.carrier}.*.*.cancelled",
                f"flight.{r.carrier}.#.cancelled",
                f"#.{r.carrier}.#.cancelled",
                f"#.{r.dest}.cancelled",
            ),
            lambda r: (
                f"flight.{r.carrier}.{r.origin}.{r.dest}.late",
                f"flight.{r.carrier}.{r.origin}.{r.dest}.*",
                f"#.{r.dest}.cancelled",
            ),
            lambda r: (
                f"flight.{r.carrier}.{r.origin}.#",
                f"flight.{r.carrier}.*.*.on-time",
                f"#.{r.origin}.{r.dest}.*",
            ),
        ),
    ),
    "matches none": (8, tuple(_always(key) for key in DEAD_BINDINGS)),
}


def routes_of(keys: Sequence[str]) -> list[Route]:
    """Return the routes in the keys, those with most flights first, so that a plan depends on the flights alone."""
    counts = Counter(tuple(key.split(".")[1:4]) for key in keys)
    ordered = sorted(counts, key=lambda words: (-counts[words], words))
    return [Route(*words) for words in ordered]


def make_plan(routes: Sequence[Route], queues: int) -> list[QueuePlan]:
    """Return the requested number of queues: one that receives everything, then every kind by its share.

    Two queues have the same binding keys only if the routes do not yield enough distinct ones.
    """
    plan = [QueuePlan("demo.000", "everything", ("#",))]
    seen: set[tuple[str, ...]] = set()
    forms = {kind: _binding_keys(kind_forms, routes, seen) for kind, (_, kind_forms) in KINDS.items()}
    for kind in _kinds_in_turn(queues - 1):
        plan.append(QueuePlan(f"demo.{len(plan):03}", kind, next(forms[kind])))
    return plan


def _kinds_in_turn(count: int) -> Iterator[str]:
    """Yield every kind once, and then in such an order that every prefix contains each by about its share."""
    given = dict.fromkeys(KINDS, 0)
    for _ in range(count):
        kind = min(KINDS, key=lambda kind: given[kind] / KINDS[kind][0])
        given[kind] += 1
        yield kind


def _binding_keys(
    forms: tuple[Form, ...], routes: Sequence[Route], seen: set[tuple[str, ...]]
) -> Iterator[tuple[str, ...]]:
    """Yield the binding keys of one queue after another, each form in turn, for both busy and rare routes."""
    # A stride that is coprime to the number of routes visits all of them; five steps go from busy to rare ones.
    stride = next(step for step in range(len(routes) // 5 + 1, 2 * len(routes) + 2) if _coprime(step, len(routes)))
    place = 0
    for form in cycle(forms):
        for _ in routes:
            keys = form(routes[place % len(routes)])
            place += stride
            if keys not in seen:
                break
        seen.add(keys)
        yield keys


def _coprime(one: int, other: int) -> bool:
    while other:
        one, other = other, one % other
    return one == 1


def expected_counts(plan: Sequence[QueuePlan], flights_by_key: Counter[str]) -> list[int]:
    """Return how many flights each queue must get, by the independent matcher."""
    keys = list(flights_by_key)
    return [
        sum(flights_by_key[key] for key, hit in zip(keys, matched(queue.binding_keys, keys), strict=True) if hit)
        for queue in plan
    ]


@dataclass(frozen=True, slots=True)
class Shares:
    """The assignment of queues to consumers, by index in the plan."""

    pika: list[list[int]]
    aio: list[list[int]]


def share_out(expected: Sequence[int], pika_consumers: int, aio_consumers: int, aio_part: float) -> Shares:
    """Return the queues of each consumer: aio-pika's up to its part of the deliveries, the others evenly to pika's.

    aio-pika creates a task for every delivery, which costs six times as much as pika's callback; so it gets a smaller
    part than pika.
    """
    shares = Shares([[] for _ in range(pika_consumers)], [[] for _ in range(aio_consumers)])
    loads = {id(queues): 0 for queues in (*shares.pika, *shares.aio)}
    left = int(sum(expected) * aio_part)

    def give(index: int, consumers: list[list[int]]) -> None:
        queues = min(consumers, key=lambda queues: (loads[id(queues)], len(queues)))
        queues.append(index)
        loads[id(queues)] += expected[index]

    for index in sorted(range(len(expected)), key=lambda index: -expected[index]):
        if aio_consumers and index % 4 == 1 and expected[index] <= left:
            left -= expected[index]
            give(index, shares.aio)
        else:
            give(index, shares.pika)
    return shares
