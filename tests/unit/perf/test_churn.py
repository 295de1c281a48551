"""Churn: pairs of create and delete as often as wanted."""

from __future__ import annotations

import asyncio
import math
from argparse import Namespace
from struct import pack
from typing import Any
from unittest.mock import create_autospec

import pytest
from pamqp import frame

from broker.perf.conductor import Stage
from broker.perf.faults import Refusal
from broker.perf.histogram import Histogram
from broker.perf.peer import Address, PeerConnection, Script
from broker.perf.process_group import Interruption
from broker.perf.progress import RunProgress
from broker.perf.scenarios.connections import CycleWorker, ScriptedRun
from broker.perf.topology import RunTopology

TUNE = pack(">HHHIH", 10, 30, 2047, 131_072, 60)


def worker(kind: str, *, durable: bool = False) -> CycleWorker:
    """Return a worker with times of its own."""
    return CycleWorker(kind, Address("127.0.0.1", 1), durable, Histogram(), Histogram())


def said(script: Script) -> list[Any]:
    """Return the methods that a script sends to a broker that accepts everything."""
    methods = []
    try:
        request, _ = next(script)
        while True:
            while request:
                size, _, method = frame.unmarshal(request)
                methods.append(method)
                request = request[size:]
            request, _ = script.send(TUNE)
    except StopIteration:
        return methods


def cycles(one: CycleWorker, number: int) -> list[Any]:
    """Return the methods of some of a worker's cycles."""
    return [method for _ in range(number) for method in said(one.cycle())]


def test_the_same_binding_goes_as_came_and_the_next_is_another() -> None:
    """An unbind has the arguments of its bind, and each cycle has its own key."""
    methods = cycles(worker("bindings"), 3)
    keys = [(method.queue, method.exchange, method.routing_key) for method in methods]
    assert keys[::2] == keys[1::2]
    assert len(set(keys)) == 3


@pytest.mark.parametrize("durable", [True, False])
def test_queues_are_durable_when_they_shall_be(durable: bool) -> None:
    """The declare is durable if configured, and no two workers use one queue name."""
    declares = [cycles(worker("queues", durable=durable), 1)[0] for _ in range(2)]
    assert [declare.durable for declare in declares] == [durable, durable]
    assert declares[0].queue != declares[1].queue


def test_a_cycle_that_fails_is_not_counted() -> None:
    """A queue that was created and could not be deleted does not count: the deletions are counted."""
    undone = Histogram()
    script = CycleWorker("queues", Address("127.0.0.1", 1), False, Histogram(), undone).cycle()
    next(script)
    script.send(b"")
    with pytest.raises(Refusal):
        script.throw(Refusal("no"))
    assert undone.count == 0


@pytest.mark.parametrize(
    ("total", "until_s", "asked", "always", "times"),
    [(7, math.inf, False, False, 7), (7, 0.0, False, False, 0), (7, math.inf, True, False, 0), (7, 0.0, True, True, 7)],
)
async def test_work_ends_at_its_number_its_time_and_ctrl_c(
    total: int, until_s: float, asked: bool, always: bool, times: int
) -> None:
    """Three workers share the number; none begins after the time or Ctrl-C, except the always work of a run."""
    done: list[int] = []

    async def work() -> None:
        done.append(1)
        assert len(done) <= total
        await asyncio.sleep(0)

    run = ScriptedRun(idle_stage(asked=asked))
    await run.repeat([work] * 3, total, until_s=until_s, always=always)
    assert len(done) == times


async def test_work_without_a_number_ends_at_a_fault() -> None:
    """A conversation that ends with a fault keeps every worker from beginning again."""
    run, done = ScriptedRun(idle_stage()), []

    async def work() -> None:
        done.append(1)
        run.fault = Refusal("no") if len(done) >= 20 else None
        assert len(done) < 23
        await asyncio.sleep(0)

    await run.repeat([work] * 3, None)
    assert len(done) == 20


def idle_stage(*, asked: bool = False) -> Stage:
    """Return a stage without a broker."""
    interruption = Interruption()
    interruption.requested = asked
    options = Namespace(uri=Address("127.0.0.1", 1))
    control = create_autospec(PeerConnection)
    return Stage(options, RunTopology(()), RunProgress(quiet=True), interruption, None, control)
