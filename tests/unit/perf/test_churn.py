"""Methods of a churning worker: pairs of create and delete within its quota, with nothing left at the end."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from pamqp import frame

from broker.perf.faults import Refusal
from broker.perf.peer import Address, Script, opening
from broker.perf.scenarios.connections import KINDS, CycleQuota, CycleWorker

TUNE = pack(">HHHIH", 10, 30, 2047, 131_072, 60)
PAIRS = {
    "channels": ("Channel.Open", "Channel.Close"),
    "queues": ("Queue.Declare", "Queue.Delete"),
    "bindings": ("Queue.Bind", "Queue.Unbind"),
    "consumers": ("Basic.Consume", "Basic.Cancel"),
}
OPENED = ["ProtocolHeader", "Connection.StartOk", "Connection.TuneOk", "Connection.Open"]
ON_A_QUEUE = {"bindings", "consumers"}


def quota(cycles: int | None) -> CycleQuota:
    """Return a quota that ends by its number only."""
    return CycleQuota(cycles, lambda: False)


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


def cycles(worker: CycleWorker, allowed: CycleQuota) -> list[Any]:
    """Return the methods of a worker's cycles, until the quota is used up."""
    methods = []
    while allowed.take():
        methods += said(allowed.cycle(*worker.pair()))
    return methods


def names(methods: list[Any]) -> list[str]:
    """Return the names of methods."""
    return [method.name for method in methods]


@pytest.mark.parametrize("kind", PAIRS)
def test_a_cycle_makes_and_undoes(kind: str) -> None:
    """Five cycles are five pairs, in turn, with both times of each."""
    allowed = quota(5)
    worker = CycleWorker(kind, Address("127.0.0.1", 1), durable=False)
    assert names(cycles(worker, allowed)) == list(PAIRS[kind]) * 5
    assert (allowed.cycles, allowed.made.count, allowed.undone.count) == (5, 5, 5)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_worker_leaves_nothing(kind: str) -> None:
    """A worker opens its connection, creates and deletes the queue that it needs, and closes what it opened."""
    worker = CycleWorker(kind, Address("127.0.0.1", 1), durable=False)
    begun, ended = names(said(worker.begin())), names(said(worker.end()))
    needed = kind in ON_A_QUEUE
    assert begun == OPENED + ["Channel.Open"] + ["Queue.Declare"] * needed
    assert ended == ["Queue.Delete"] * needed + ["Connection.Close"]


def test_a_cycle_of_connections_is_a_connection() -> None:
    """A cycle opens and closes a connection, without a channel."""
    allowed = quota(1)
    methods = cycles(CycleWorker("connections", Address("127.0.0.1", 1), durable=False), allowed)
    assert names(methods) == [*OPENED, "Connection.Close"]
    assert allowed.cycles == 1


def test_a_connection_has_the_channels_that_are_asked_for() -> None:
    """Each channel is opened after the connection, in order."""
    opened = said(opening(Address("127.0.0.1", 1), channels=range(1, 4)))
    assert names(opened) == [*OPENED, *["Channel.Open"] * 3]


def test_the_same_binding_goes_as_came_and_the_next_is_another() -> None:
    """An unbind has the arguments of its bind, and each cycle has its own key."""
    methods = cycles(CycleWorker("bindings", Address("127.0.0.1", 1), durable=False), quota(3))
    keys = [(method.queue, method.exchange, method.routing_key) for method in methods]
    assert keys[::2] == keys[1::2]
    assert len(set(keys)) == 3


@pytest.mark.parametrize("durable", [True, False])
def test_queues_are_durable_when_they_shall_be(durable: bool) -> None:
    """The declare is durable if configured, and no two workers use one queue name."""
    first, second = (CycleWorker("queues", Address("127.0.0.1", 1), durable) for _ in range(2))
    declares = [cycles(worker, quota(1))[0] for worker in (first, second)]
    assert [declare.durable for declare in declares] == [durable, durable]
    assert declares[0].queue != declares[1].queue


def test_a_cycle_that_fails_is_not_counted() -> None:
    """A queue that was created and could not be deleted does not count as a cycle."""
    allowed = quota(None)
    script = allowed.cycle(*CycleWorker("queues", Address("127.0.0.1", 1), durable=False).pair())
    next(script)
    script.send(b"")
    with pytest.raises(Refusal):
        script.throw(Refusal("no"))
    assert (allowed.cycles, allowed.made.count) == (0, 0)


def test_a_quota_ends_at_ctrl_c_and_at_its_time() -> None:
    """No further cycle starts after Ctrl-C, a fault or the end of the time."""
    assert quota(None).take()
    assert not CycleQuota(None, lambda: True).take()
    late = quota(None)
    late.until_s = 0.0
    assert not late.take()


def test_each_kind_is_known() -> None:
    """A worker implements every kind that the command line offers."""
    assert set(KINDS) == {"connections", *PAIRS}
