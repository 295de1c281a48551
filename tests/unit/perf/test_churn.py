"""Churn: pairs of create and delete as often as wanted, with nothing left at the end."""

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
from broker.perf.crew import Interruption
from broker.perf.faults import Refusal
from broker.perf.histogram import Histogram
from broker.perf.peer import Address, PeerConnection, Script, opening
from broker.perf.progress import RunProgress
from broker.perf.scenarios.connections import KINDS, CycleWorker, ScriptedRun
from broker.perf.topology import RunTopology

TUNE = pack(">HHHIH", 10, 30, 2047, 131_072, 60)
PAIRS = {
    "channels": ("Channel.Open", "Channel.Close"),
    "queues": ("Queue.Declare", "Queue.Delete"),
    "bindings": ("Queue.Bind", "Queue.Unbind"),
    "consumers": ("Basic.Consume", "Basic.Cancel"),
}
OPENED = ["ProtocolHeader", "Connection.StartOk", "Connection.TuneOk", "Connection.Open"]
ON_A_QUEUE = {"bindings", "consumers"}


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


def names(methods: list[Any]) -> list[str]:
    """Return the names of methods."""
    return [method.name for method in methods]


@pytest.mark.parametrize("kind", PAIRS)
def test_a_cycle_makes_and_undoes(kind: str) -> None:
    """Five cycles are five pairs, in turn, with both times of each."""
    made, undone = Histogram(), Histogram()
    one = CycleWorker(kind, Address("127.0.0.1", 1), False, made, undone)
    assert names(cycles(one, 5)) == list(PAIRS[kind]) * 5
    assert (made.count, undone.count) == (5, 5)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_worker_leaves_nothing(kind: str) -> None:
    """A worker opens its connection, creates and deletes the queue that it needs, and closes what it opened."""
    one = worker(kind)
    begun, ended = names(said(one.begin())), names(said(one.end()))
    needed = kind in ON_A_QUEUE
    assert begun == OPENED + ["Channel.Open"] + ["Queue.Declare"] * needed
    assert ended == ["Queue.Delete"] * needed + ["Connection.Close"]


def test_a_cycle_of_connections_is_a_connection() -> None:
    """A cycle opens and closes a connection, without a channel."""
    assert names(cycles(worker("connections"), 1)) == [*OPENED, "Connection.Close"]


def test_a_connection_has_the_channels_that_are_asked_for() -> None:
    """Each channel is opened after the connection, in order."""
    opened = said(opening(Address("127.0.0.1", 1), channels=range(1, 4)))
    assert names(opened) == [*OPENED, *["Channel.Open"] * 3]


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
    ("total", "until_s", "asked", "last", "times"),
    [(7, math.inf, False, False, 7), (7, 0.0, False, False, 0), (7, math.inf, True, False, 0), (7, 0.0, True, True, 7)],
)
async def test_work_ends_at_its_number_its_time_and_ctrl_c(
    total: int, until_s: float, asked: bool, last: bool, times: int
) -> None:
    """Three workers share the number; none begins after the time or Ctrl-C, except the last work of a run."""
    done: list[int] = []

    async def work() -> None:
        done.append(1)
        assert len(done) <= total
        await asyncio.sleep(0)

    run = ScriptedRun(idle_stage(asked=asked))
    await run.repeat([work] * 3, total, until_s=until_s, last=last)
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


def test_each_kind_is_known() -> None:
    """A worker implements every kind that the command line offers."""
    assert set(KINDS) == {"connections", *PAIRS}


def idle_stage(*, asked: bool = False) -> Stage:
    """Return a stage without a broker."""
    interruption = Interruption()
    interruption.asked = asked
    options = Namespace(uri=Address("127.0.0.1", 1))
    control = create_autospec(PeerConnection)
    return Stage(options, RunTopology(()), RunProgress(quiet=True), interruption, None, control)
