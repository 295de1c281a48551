"""The plan of one run: its queues, their binding keys, the flights that each must get, and their consumers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

EXCHANGE = "flights"
Route = tuple[str, ...]  # carrier, origin and destination, each a word of the routing key
ANY_WORD = r"\.[^.]*"
WORDS = {"*": ANY_WORD, "#": f"(?:{ANY_WORD})*"}

# Every kind of pattern: its share of the queues, and its forms, used in turn, separated by "; ". A form has the binding
# keys of one queue, separated by spaces; {0}, {1} and {2} are carrier, origin and destination of a route.
KINDS = {
    "literal": (40, "flight.{0}.{1}.{2}.on-time; flight.{0}.{1}.{2}.late; flight.{0}.{1}.{2}.cancelled"),
    "*": (45, "flight.*.{1}.{2}.*; flight.{0}.{1}.*.late; *.{0}.*.*.cancelled; flight.*.*.{2}.late; *.*.*.{2}.*; "
              "flight.{0}.{1}.*.*"),
    "# first": (25, "#.{2}.late; #.{1}.{2}.*; #.{0}.*.*.cancelled; #.{1}.*.late; #.flight.{0}.{1}.{2}.on-time"),
    "# in the middle": (25, "flight.{0}.#.cancelled; flight.#.{2}.late; flight.{0}.{1}.#.{2}.on-time; "
                            "*.*.#.{1}.{2}.*; flight.{0}.#.late"),
    "# last": (25, "flight.{0}.{1}.{2}.#; flight.*.{1}.{2}.#; flight.{0}.{1}.{2}.late.#; *.*.*.{2}.#; "
                   "flight.{0}.{1}.#"),
    # The last three forms have at most two '#' after a run of wildcards is written canonically.
    "several #": (25, "#.{2}.#; #.{0}.#.cancelled; flight.#.{1}.{2}.#; #.{1}.#.late; #.#.{2}.late.#.#; "
                      "flight.#.*.#.{2}.late; flight.{0}.{1}.#.*.#.#.cancelled"),
    "overlapping": (25, "flight.*.{1}.{2}.* #.{1}.{2}.late flight.{0}.{1}.{2}.#; "
                        "flight.{0}.*.{2}.# #.{2}.late flight.{0}.{1}.{2}.late; "
                        "*.{0}.*.*.cancelled flight.{0}.#.cancelled #.{0}.#.cancelled #.{2}.cancelled; "
                        "flight.{0}.{1}.{2}.late flight.{0}.{1}.{2}.* #.{2}.cancelled; "
                        "flight.{0}.{1}.# flight.{0}.*.*.on-time #.{1}.{2}.*"),
    "matches none": (8, "flight.*.JFK; flight.#.nowhere.#; flight.*.*.*.*.*; ; flight..#; FLIGHT.#; *; #.flight.*"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """One queue, the kind of its pattern and its binding keys."""

    name: str
    kind: str
    binding_keys: tuple[str, ...]


def routes_of(keys: Sequence[str]) -> list[Route]:
    """Return the routes in the keys, those with most flights first, so that a plan depends on the flights alone."""
    counts = Counter(tuple(key.split(".")[1:4]) for key in keys)
    return sorted(counts, key=lambda route: (-counts[route], route))


def make_plan(routes: Sequence[Route], queues: int) -> list[QueuePlan]:
    """Return the requested number of queues: one that receives everything, then every kind by its share.

    Two queues have the same binding keys only if the routes do not yield enough distinct ones.
    """
    plan = [QueuePlan("demo.000", "everything", ("#",))]
    seen: set[tuple[str, ...]] = set()
    forms = {kind: _binding_keys(kind_forms.split("; "), routes, seen) for kind, (_, kind_forms) in KINDS.items()}
    given = dict.fromkeys(KINDS, 0)
    while len(plan) < queues:  # every kind once, and then each by about its share in every prefix
        kind = min(KINDS, key=lambda kind: given[kind] / KINDS[kind][0])
        given[kind] += 1
        plan.append(QueuePlan(f"demo.{len(plan):03}", kind, next(forms[kind])))
    return plan


def _binding_keys(
    forms: Sequence[str], routes: Sequence[Route], seen: set[tuple[str, ...]]
) -> Iterator[tuple[str, ...]]:
    """Yield the binding keys of one queue after another, each form in turn, for both busy and rare routes."""
    # A stride that is coprime to the number of routes visits all of them; five steps go from busy to rare ones.
    strides = range(len(routes) // 5 + 1, 2 * len(routes) + 2)
    stride = next(step for step in strides if math.gcd(step, len(routes)) == 1)
    place = 0
    for form in cycle(forms):
        for _ in routes:
            keys = tuple(form.format(*routes[place % len(routes)]).split(" "))
            place += stride
            if keys not in seen:
                break
        seen.add(keys)
        yield keys


def matched(binding_keys: Iterable[str], routing_keys: Sequence[str]) -> list[bool]:
    """Return for every routing key whether any of the binding keys matches it, by code independent of the broker.

    Every word of a key begins with a dot here, so that a key of no words and one of one empty word differ.
    Source: RabbitMQ splits on every dot; an empty word is a word, and the empty key has none.
    Cost: binding keys times routing keys; pass the distinct keys only, not the key of every flight.
    """
    words = [key.split(".") if key else [] for key in binding_keys]
    patterns = [re.compile("".join(WORDS.get(word, r"\." + re.escape(word)) for word in key)) for key in words]
    return [any(pattern.fullmatch(f".{key}" if key else "") for pattern in patterns) for key in routing_keys]


def share_out(expected: Sequence[int], pika_consumers: int, aio_consumers: int, aio_part: float) -> list[list[int]]:
    """Return each consumer's queues, by index in the plan: pika's consumers first, evenly, then aio-pika's.

    aio-pika creates a task for every delivery, which costs six times as much as pika's callback, so its consumers get
    only `aio_part` of the deliveries.
    """
    parts = [(1 - aio_part) / pika_consumers] * pika_consumers + [aio_part / (aio_consumers or 1)] * aio_consumers
    groups: list[list[int]] = [[] for _ in parts]
    loads = [0.0] * len(parts)
    for index in sorted(range(len(expected)), key=lambda index: -expected[index]):
        consumer = min(range(len(parts)), key=lambda one: (loads[one] + expected[index]) / parts[one])
        groups[consumer].append(index)
        loads[consumer] += expected[index]
    return groups
