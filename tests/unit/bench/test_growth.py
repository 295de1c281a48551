"""The growth benchmark: the evaluation of its measurements, and its clients against a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench.growth import sharing, tables
from bench.growth.curve import growth, medians, worst
from bench.growth.curves import curves
from bench.growth.ground import EXCHANGE, control, declare_bound, source
from bench.growth.herd import Herd, Sink
from bench.growth.light import EVERY_S, LightClient
from bench.growth.plan import FULL, QUICK
from broker.perf.peer import Address
from tests.in_process import queue_of
from tests.raw_talk import mortal_broker, talk


def cells(*rounds: dict[int, float]) -> list[dict[str, Any]]:
    """Return the cells of rounds that have a cost for each size."""
    return [
        {"size": size, "round": turn, "cpu_us": cost}
        for turn, costs in enumerate(rounds)
        for size, cost in costs.items()
    ]


def test_growth_is_told_within_each_round() -> None:
    """A machine that is three times slower in one round does not change the growth."""
    measured = cells({1: 10.0, 100: 11.0}, {1: 30.0, 100: 33.0}, {1: 10.0, 100: 14.0})
    assert growth(measured) == pytest.approx({1: 1.0, 100: 1.1})
    assert medians(measured, "cpu_us") == {1: 10.0, 100: 14.0}
    size, ratio = worst(measured)
    assert (size, round(ratio, 6)) == (100, 1.1)


def test_a_size_that_a_round_lacks_the_smallest_of_has_no_ratio_there() -> None:
    """A round without the smallest size gives no ratio; the other rounds do."""
    assert growth(cells({100: 50.0}, {1: 10.0, 100: 12.0})) == pytest.approx({1: 1.0, 100: 1.2})


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ({1: 10.0, 10: 12.0}, "flat within 20%"),
        ({1: 10.0, 10: 9.0}, "flat within 0%"),
        ({1: 10.0, 10: 12.2, 100: 12.1}, "1.2 times at 10"),
        ({1: 10.0, 10: 11.0, 1000: 35.0}, "3.5 times at 1,000"),
    ],
)
def test_the_verdict_names_what_is_not_flat(costs: dict[int, float], said: str) -> None:
    """Growth up to a fifth is flat; above it the worst size is named with its ratio to the smallest."""
    assert tables.verdict({"cells": cells(costs)}) == said


def content(**more: Any) -> dict[str, Any]:
    """Return the stored content of a run."""
    curve = {"panel": "queues", "name": "queues", "title": "one by one", "cells": cells({1: 10.0, 10: 30.0})}
    light = {"name": "flood", "title": "a flood", "p50_ms": 1.0, "p99_ms": 25.5, "max_ms": 30.0, "confirmed_per_s": 1.5}
    silent = {"rate_ratio": 0.99, "cost_ratio": 1.01}
    fairness = {"light": [light | {"delivered_least_share": 0.9}], "silent": silent}
    return {"compiled": True, "curves": [curve], "fairness": fairness, "failures": [], **more}


def test_the_summary_says_what_failed() -> None:
    """The summary lists the parts that could not be measured."""
    said = tables.summary(content(fairness=None, failures=["backlog at 10,000,000: the time was used up"]))
    assert "failed: backlog at 10,000,000: the time was used up" in said


class PausedOnce:
    """A light client whose messages wait in its second round only."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def watch(self, seconds: float) -> dict[str, float]:
        """Return the latencies of a round."""
        self.seconds.append(seconds)
        slow = len(self.seconds) == 2
        return {"messages": 10, "p50_ms": 1.0, "p99_ms": 118.0 if slow else 3.0, "max_ms": 163.0 if slow else 4.0}


def test_a_pause_in_one_round_of_a_light_client_shows_in_the_longest_time_only() -> None:
    """One pause of 160 ms in five seconds would be the 99th percentile of all messages together."""
    client = PausedOnce()
    found = sharing._watched(client, FULL)  # type: ignore[arg-type]
    assert found == {"messages": 10 * FULL.rounds, "p50_ms": 1.0, "p99_ms": 3.0, "max_ms": 163.0}
    assert sum(client.seconds) == pytest.approx(FULL.seconds * FULL.share_factor)


def test_every_curve_reaches_the_sizes_that_were_asked_for() -> None:
    """The sizes are 1 to 10,000 queues, 0 to 10 million backlog, 1 to 1,000 consumers and 10 to 100,000 bindings."""
    reach = {(curve.panel, curve.sizes[0], curve.sizes[-1]) for curve in curves(FULL)}
    assert reach == {
        ("queues", 1, 10_000), ("backlog", 0, 10_000_000), ("consumers", 1, 1_000), ("bindings", 10, 100_000),
    }  # fmt: skip
    assert [curve.name for curve in curves(QUICK)] == [curve.name for curve in curves(FULL)]


async def test_a_paced_herd_leaves_the_backlog_as_long_as_it_is(tmp_path: Path) -> None:
    """The run's messages are acked elsewhere in the queue, so the backlog shrinks by those in transit at most."""
    async with mortal_broker(tmp_path) as broker:
        address = Address("127.0.0.1", broker.listener.port)

        def fill() -> None:
            peer = control(address)
            declare_bound(peer, ["q"], ["g.#"])
            herd = Herd([source(address, ["g.a", "g.b"])], [], lead=5_000)
            herd.run(20, lambda: herd.confirmed >= 5_000)
            herd.close()
            peer.close()

        def consume() -> tuple[int, int]:
            peer = control(address)
            peer.consume("q", "c", auto_ack=False, prefetch=100)
            herd = Herd([source(address, ["g.a", "g.b"])], [Sink(peer, 10)], lead=200, paced=True)
            moved = herd.run(20, lambda: herd.published >= 3_000)
            herd.close()
            return herd.published, sum(moved.got_each)

        await talk(broker, fill)
        assert queue_of(broker, "q").ready == 5_000
        published, delivered = await talk(broker, consume)
        manager = queue_of(broker, "q").stream.manager
        assert published >= 3_000
        assert abs(delivered - published) <= 400
        settled = manager.next_id - 1 - manager.ready - manager.unacked
        assert settled <= published
        assert settled >= published - 400


async def test_the_light_client_counts_every_message_of_its_schedule(tmp_path: Path) -> None:
    """The count is that of the messages that were due, even if the client was delayed."""
    async with mortal_broker(tmp_path) as broker:
        address = Address("127.0.0.1", broker.listener.port)

        def watch() -> dict[str, Any]:
            control(address).close()
            light = LightClient(address, EXCHANGE)
            try:
                return light.watch(20 * EVERY_S)
            finally:
                light.close()

        found = await asyncio.wait_for(talk(broker, watch), 30)
    assert found["messages"] == 20
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
