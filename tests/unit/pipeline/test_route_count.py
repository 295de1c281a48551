"""Counting the messages that queues would get."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from broker.pipeline.routes import route_count
from broker.pipeline.routes.matcher import Matcher
from broker.pipeline.routes.route_count import RouteTally
from broker.pipeline.routes.topology import Topology, read_text
from tests.unit.pipeline.encoded import properties

NEW = read_text("ex,a.*,q1\nex,a.#,q1\nex,b,q2\nex,never,q3\nother,#,q1\n")
OLD = read_text("ex,a.*,q1\nex,b,q4\nex,b,q2\nother,#,q5\n")


def rows(tally: RouteTally) -> dict[str, dict[Any, tuple[int, int]]]:
    """Return the counts by kind and name."""
    found: dict[str, dict[Any, tuple[int, int]]] = {}
    for kind, vhost, name, detail, number, messages, keys in tally.rows():
        what = number if kind in ("binding", "fan-out") else name if kind == "total" else (vhost, name, detail)
        found.setdefault(kind, {})[what] = (messages, keys)
    return found


def test_counts_are_those_of_matching_message_by_message() -> None:
    """Counts per queue, per binding and in total equal those of single messages, in any batches; so do differences."""
    draw = random.Random(7)
    words = ["a", "b", "c"]
    keys = sorted({(draw.choice(["ex", "other", "gone", ""]), ".".join(draw.choices(words, k=draw.randint(1, 3))))
                   for _ in range(90)})  # fmt: skip
    counts = [draw.randint(1, 9) for _ in keys]
    new, old = Matcher(NEW), Matcher(OLD)
    tally = RouteTally((new, old))
    places: list[Any] = [("/", exchange, key, None) for exchange, key in keys]
    for at in (0, 40):
        upto = at + 40 if at == 0 else len(places)
        tally.add(places[at:upto], np.array(counts[at:upto]))
    expected: dict[str, Counter[Any]] = {
        kind: Counter() for kind in ("queue", "today", "gained", "lost", "binding", "fan-out")
    }
    totals: Counter[str] = Counter()
    nobody = {}
    for place, messages in zip(places, counts, strict=True):
        match, was = new.match(*place), old.match(*place)
        will = set() if match is None else set(match.queues)
        before = set() if was is None else set(was.queues)
        for kind, queues in (("queue", will), ("today", before), ("gained", will - before), ("lost", before - will)):
            expected[kind].update({("/", queue, ""): messages for queue in queues})
        expected["binding"].update(dict.fromkeys(match.bindings if match else (), messages))
        expected["fan-out"][len(will)] += messages
        totals["all"] += messages
        totals["no exchange"] += messages * (match is None)
        totals["routed"] += messages * bool(will)
        totals["copies"] += messages * len(will)
        totals["changed"] += messages * (will != before)
        totals["lost by all"] += messages * bool(before and not will)
        if not will:
            nobody["/", place[1], place[2]] = messages
    found = rows(tally)
    for kind, counter in expected.items():
        assert {what: messages for what, (messages, _) in found[kind].items()} == counter
    assert {name: messages for name, (messages, _) in found["total"].items()} == totals
    assert {what: messages for what, (messages, _) in found["nobody"].items()} == nobody
    assert totals["lost by all"] == 0 < totals["changed"]
    assert 3 not in found["binding"]


def test_only_the_most_frequent_keys_are_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the most frequent keys are named, but all are counted."""
    monkeypatch.setattr(route_count, "SHOWN_MAX", 3)
    tally = RouteTally((Matcher(Topology((), (), ())),))
    for first in (0, 10):
        tally.add([("/", "ex", f"k{n}", None) for n in range(first, first + 10)], np.arange(first, first + 10))
    found = rows(tally)
    assert sorted(found["nobody"].values()) == [(17, 1), (18, 1), (19, 1)]
    assert found["total"]["all"] == (190, 20)


def test_a_key_whose_messages_are_looked_at_one_by_one_is_ranked_by_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key with CC and varying properties counts as one key."""
    monkeypatch.setattr(route_count, "SHOWN_MAX", 2)
    matcher = Matcher(read_text("ex,a.*,q1\n"))
    places: list[route_count.Place] = [("/", "ex", "lost", properties({"CC": ["gone"], "n": n})) for n in range(50)]
    places += [("/", "ex", key, None) for key in ("k", "l", "m")]
    tally = RouteTally((matcher,))
    for first in range(0, len(places), 10):
        some = places[first : first + 10]
        tally.add(some, np.full(len(some), 2))
    assert rows(tally)["nobody"] == {("/", "ex", "lost"): (100, 1), ("/", "ex", "m"): (2, 1)}


def test_a_key_with_and_without_properties_is_ranked_by_all_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a key are added up before it is ranked, also if they end one batch and begin the next."""
    monkeypatch.setattr(route_count, "SHOWN_MAX", 2)
    rest: list[route_count.Place] = [("/", "ex", "lost", properties({"CC": ["gone"], "n": n})) for n in range(3)]
    plain: list[route_count.Place] = [("/", "ex", key, None) for key in ("k", "l", "m", "lost")]
    tally = RouteTally((Matcher(read_text("ex,a.*,q1\n")),))
    tally.add(plain, np.array([5, 4, 3, 2]))
    tally.add(rest, np.array([2, 1, 1]))
    assert rows(tally)["nobody"] == {("/", "ex", "lost"): (6, 1), ("/", "ex", "k"): (5, 1)}
