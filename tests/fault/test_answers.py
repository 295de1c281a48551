"""kill -9 right after -ok: what the broker has answered holds after the restart."""

from __future__ import annotations

import itertools
from typing import Any, Final, NamedTuple

import pytest
from pamqp import commands

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.raw_client import RawClient, publish_frames

pytestmark = pytest.mark.fault

Exchange, Queue = commands.Exchange, commands.Queue
ROUNDS: Final = 2
QUEUES: Final = {"kept", "bound", "full", "doomed"}
EXCHANGES: Final = {"source", "doomed"}
BINDINGS: Final = {("source", "bound", "k"), ("source", "doomed", "e")}


class Topology(NamedTuple):
    """The existing objects, without the predeclared exchanges, and the number of messages in the queue `full`."""

    queues: set[str]
    exchanges: set[str]
    bindings: set[tuple[str, str, str]]
    messages: int


class Act(NamedTuple):
    """A method, its answer, and what is there after it."""

    method: Any
    answer: Any
    after: Topology


ACTS: Final = [
    Act(
        Queue.Declare(queue="new", durable=True),
        Queue.DeclareOk,
        Topology(QUEUES | {"new"}, EXCHANGES, BINDINGS, 1),
    ),
    Act(
        Queue.Bind(queue="kept", exchange="source", routing_key="n"),
        Queue.BindOk,
        Topology(QUEUES, EXCHANGES, BINDINGS | {("source", "kept", "n")}, 1),
    ),
    Act(
        Queue.Unbind(queue="bound", exchange="source", routing_key="k"),
        Queue.UnbindOk,
        Topology(QUEUES, EXCHANGES, BINDINGS - {("source", "bound", "k")}, 1),
    ),
    Act(Queue.Purge(queue="full"), Queue.PurgeOk, Topology(QUEUES, EXCHANGES, BINDINGS, 0)),
    Act(Queue.Delete(queue="doomed"), Queue.DeleteOk, Topology(QUEUES - {"doomed"}, EXCHANGES, BINDINGS, 1)),
    Act(
        Exchange.Declare(exchange="new", exchange_type="topic", durable=True),
        Exchange.DeclareOk,
        Topology(QUEUES, EXCHANGES | {"new"}, BINDINGS, 1),
    ),
    Act(
        Exchange.Bind(destination="doomed", source="source", routing_key="n"),
        Exchange.BindOk,
        Topology(QUEUES, EXCHANGES, BINDINGS | {("source", "doomed", "n")}, 1),
    ),
    Act(
        Exchange.Unbind(destination="doomed", source="source", routing_key="e"),
        Exchange.UnbindOk,
        Topology(QUEUES, EXCHANGES, BINDINGS - {("source", "doomed", "e")}, 1),
    ),
    Act(
        Exchange.Delete(exchange="doomed"),
        Exchange.DeleteOk,
        Topology(QUEUES, EXCHANGES - {"doomed"}, BINDINGS - {("source", "doomed", "e")}, 1),
    ),
]


def connect(process: BrokerProcess) -> RawClient:
    """Return a client with channel 1 open."""
    return RawClient(process.address.host, process.address.port).with_channel()


def restore(client: RawClient) -> None:
    """Make what each act begins with, whatever the last one has left, and return when it is on disk."""
    for queue in ("new", "doomed"):
        client.call(1, Queue.Delete(queue=queue), Queue.DeleteOk)
    for exchange in ("new", "doomed", "source"):
        client.call(1, Exchange.Delete(exchange=exchange), Exchange.DeleteOk)
    for queue in sorted(QUEUES):
        client.call(1, Queue.Declare(queue=queue, durable=True), Queue.DeclareOk)
    for exchange in sorted(EXCHANGES):
        declare = Exchange.Declare(exchange=exchange, exchange_type="topic", durable=True)
        client.call(1, declare, Exchange.DeclareOk)
    client.call(1, Queue.Bind(queue="bound", exchange="source", routing_key="k"), Queue.BindOk)
    client.call(1, Exchange.Bind(destination="doomed", source="source", routing_key="e"), Exchange.BindOk)
    client.call(1, Queue.Purge(queue="full"), Queue.PurgeOk)
    client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    client.send(publish_frames(1, "", "full", b"m", properties=commands.Basic.Properties(delivery_mode=2)))
    client.expect(commands.Basic.Ack, 1)


def found(process: BrokerProcess) -> Topology:
    """Return what is there."""
    queues = {row["name"]: row for row in ask(process.folder, "list_queues")}
    exchanges = {row["name"] for row in ask(process.folder, "list_exchanges")}
    bindings = {
        (row["source"], row["destination"], row["routing_key"])
        for row in ask(process.folder, "list_bindings")
        if row["source"]
    }
    made = {name for name in exchanges if name and not name.startswith("amq.")}
    return Topology(set(queues), made, bindings, queues["full"]["messages"])


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_what_was_answered_survives_a_kill(broker_process: BrokerProcess) -> None:
    """Each method alone, on a broker that has nothing else to do: no one else's sync writes its record."""
    process = broker_process
    process.start()
    lost = []
    for number, act in itertools.product(range(ROUNDS), ACTS):
        with connect(process) as client:
            restore(client)
            client.call(1, act.method, act.answer)
            process.kill()
        process.start()
        if found(process) != act.after:
            lost.append((number, act.method.name))
    assert not lost, f"lost {len(lost)} of {ROUNDS * len(ACTS)}: {lost}"
