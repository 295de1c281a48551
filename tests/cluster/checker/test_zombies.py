"""A node that was frozen for longer than its lease does nothing when it wakes: it closes its clients and joins anew."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from pamqp import commands

from tests.broker_process import PACKAGE, BrokerAddress
from tests.cluster.checker.analysis import Analysis
from tests.cluster.checker.conftest import MakeCluster
from tests.cluster.checker.conversation import Conversation, Gone
from tests.cluster.checker.crew import EXCHANGE, ROUTES, declare, receipt
from tests.cluster.checker.faults import CALLS
from tests.cluster.checker.history import History
from tests.cluster.checker.system import System
from tests.cluster.proxy import Point, Then
from tests.deadline import DEADLINE_S, wait_until
from tests.raw_client import PROTOCOL_HEADER, RawClient, method_frame, publish_frames

pytestmark = [pytest.mark.fault, pytest.mark.slow]

COUNT: Final = 50
PERSISTENT: Final = commands.Basic.Properties(delivery_mode=2)
CAPABILITIES: Final = {"publisher_confirms": True, "basic.nack": True}
"""Without connection.blocked, which a node sends whenever PostgreSQL takes longer than its lease."""

STOPS_ITSELF: Final = """
import os, signal
from broker.net.transport import Transport

flush = Transport.flush


def stopped(transport):
    # A node that has looked at its lease, and is about to write a delivery.
    if b"\\0\\x3c\\0\\x3c" in b"".join(transport.connection.out) and os.path.exists({flag!r}):
        os.unlink({flag!r})
        os.kill(os.getpid(), signal.SIGSTOP)
    flush(transport)


Transport.flush = stopped
"""


def client_of(address: BrokerAddress) -> RawClient:
    """Return a client with channel 1 in confirm mode."""
    client = RawClient(address.host, address.port)
    client.open(capabilities=CAPABILITIES)
    client.open_channel(1)
    client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    return client


def publish(client: RawClient, first: int, count: int) -> None:
    """Publish numbered messages to the queue, without waiting for confirms."""
    client.send(
        *(publish_frames(1, "", "q", b"%d" % number, properties=PERSISTENT) for number in range(first, first + count))
    )


def await_confirms(client: RawClient, count: int) -> None:
    """Return when this many publishes are confirmed."""
    confirmed = 0
    while confirmed < count:
        confirmed = int(client.expect(commands.Basic.Ack, 1).delivery_tag or 0)


def deliveries(client: RawClient, count: int) -> list[tuple[int, bool]]:
    """Return the numbers of the next messages, with their redelivered flags."""
    found = []
    for _ in range(count):
        deliver: Any = client.expect(commands.Basic.Deliver, 1)
        _, body = client.expect_content(1)
        found.append((int(body), bool(deliver.redelivered)))
    return found


def read_on(conversation: Conversation) -> None:
    """Read until the connection ends."""
    while True:
        conversation.pump(1)


def epoch_of(system: System, name: str) -> int:
    """Return the epoch of a node, 0 if it is not a member."""
    return int(system.sql(f"SELECT epoch FROM member WHERE node = '{name}'") or 0)


def is_read(client: RawClient, address: BrokerAddress) -> bool:
    """Return whether the broker has accepted the client, and has read all that it sent."""
    ends = [f":{port:04X}" for port in (address.port, client.socket.getsockname()[1])]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _number, local, remote, _state, queues, *_ = line.split()
        if [local[-5:], remote[-5:]] == ends:
            return queues.endswith(":00000000")
    return False


def test_a_client_that_comes_before_a_lost_node_has_joined_again_is_answered_then(make_cluster: MakeCluster) -> None:
    """Nothing else happens that would make the node look at what the client sent."""
    system = make_cluster(1)
    address = system.nodes["a"].address
    clients: list[RawClient] = []

    def come() -> None:
        client = RawClient(address.host, address.port)
        clients.append(client)
        client.send(PROTOCOL_HEADER)
        wait_until(lambda: is_read(client, address), "the node has read the header")

    trap = system.proxies["a"].trap(CALLS["join"], Point.DONE, Then.FORWARD, come)
    system.sql("SELECT leave(node, epoch) FROM member")
    assert trap.done.wait(DEADLINE_S)
    with clients[0] as client:
        client.expect(commands.Connection.Start, 0)


def test_a_frozen_node_does_nothing_when_it_wakes(make_cluster: MakeCluster) -> None:
    """Its messages are delivered elsewhere, its acks and publishes have no effect, and its clients get 320."""
    system = make_cluster(2)
    a, b = (node.address for node in system.nodes.values())
    epoch = epoch_of(system, "a")
    with client_of(a) as publisher, client_of(a) as zombie, client_of(b) as other:
        publisher.declare_queue(1, "q", durable=True)
        zombie.call(1, commands.Basic.Qos(prefetch_count=COUNT), commands.Basic.QosOk)
        zombie.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        publish(publisher, 0, COUNT)
        assert deliveries(zombie, COUNT) == [(number, False) for number in range(COUNT)]
        await_confirms(publisher, COUNT)
        other.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)

        system.freeze("a")
        # The kernel takes these bytes; the node reads them when it wakes.
        zombie.send(method_frame(1, commands.Basic.Ack(delivery_tag=COUNT, multiple=True)))
        publish(publisher, 1000, COUNT)
        zombie.send(publish_frames(1, "", "q", b"2000", properties=PERSISTENT))
        assert deliveries(other, COUNT) == [(number, True) for number in range(COUNT)]

        system.thaw("a")
        for client in (publisher, zombie):
            client.expect_connection_close(320)
        wait_until(lambda: epoch_of(system, "a") > epoch, "a joins as a new epoch")
        other.method(1, commands.Basic.Recover(requeue=True))
        other.expect(commands.Basic.RecoverOk, 1)
        assert deliveries(other, COUNT) == [(number, True) for number in range(COUNT)], "no ack of the zombie counts"
        with client_of(a) as again:
            publish(again, 3000, 1)
            await_confirms(again, 1)
        assert deliveries(other, 1) == [(3000, False)], "no publish of the zombie arrives"


def test_a_frozen_node_stalls_a_change_of_the_topology_for_its_lease_only(make_cluster: MakeCluster) -> None:
    """A declare is answered once the frozen node is counted out, and the next ones continue without it."""
    system = make_cluster(3)
    a, b, c = (node.address for node in system.nodes.values())
    epoch = epoch_of(system, "c")
    with client_of(a) as one, client_of(b) as other, client_of(c) as zombie:
        system.freeze("c")
        one.declare_queue(1, "q", durable=True)
        assert epoch_of(system, "c") == 0, "the answer came before every member had the queue"
        other.call(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
        other.declare_queue(1, "after", durable=True)
        bind = commands.Queue.Bind(queue="after", exchange="amq.topic", routing_key="#")
        one.call(1, bind, commands.Queue.BindOk)
        publish(other, 0, 1)
        await_confirms(other, 1)
        one.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        assert deliveries(one, 1) == [(0, False)]

        system.thaw("c")
        assert zombie.expect(commands.Connection.Close, 0).reply_code == 320
        wait_until(lambda: epoch_of(system, "c") > epoch, "c joins as a new epoch")
        with client_of(c) as again:
            for queue in ("q", "after"):
                again.call(1, commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk)


@pytest.mark.torture
def test_a_node_that_is_stopped_in_a_write_ends_it_and_writes_nothing_else(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """The docs name this write as the exception, and the analysis of a run knows it from its time."""
    flag = tmp_path / "stop"
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(STOPS_ITSELF.format(flag=str(flag)))
    system = make_cluster(2, {"PYTHONPATH": f"{site}:{PACKAGE}"})
    a, b = (node.address for node in system.nodes.values())
    declare(a)
    history = History()
    with ExitStack() as stack:

        def talk(client: str, address: BrokerAddress, node: str) -> Conversation:
            conversation = Conversation(address, history, client, node)
            stack.callback(conversation.drop)
            conversation.confirm_select()
            return conversation

        publisher, *zombies = talk("publisher", a, "a"), talk("zombie-0", b, "b"), talk("zombie-1", b, "b")
        for zombie in zombies:
            zombie.consume("shared", 1)
        flag.touch()
        publisher.send(*(publisher.publish(EXCHANGE, "a", ROUTES[EXCHANGE, "a"], 20) for _ in zombies))
        wait_until(lambda: not flag.exists(), "b is about to write")
        system.freeze("b")  # it has stopped itself
        publisher.await_confirms()
        other = talk("other", a, "a")
        other.consume("shared", len(zombies))
        wait_until(lambda: (other.pump(0.02), len(other.inbox) == len(zombies))[1], "a has what b had")
        other.settle(other.inbox[-1][0], [delivery for _, delivery in other.inbox], multiple=True)
        receipt(other)
        other.await_confirms()
        for zombie in zombies:
            assert not zombie.pump(0), "b has written nothing yet"
        system.thaw("b")
        for zombie in zombies:
            with pytest.raises(Gone, match="320"):
                read_on(zombie)
    late = [delivery for zombie in zombies for delivery in zombie.session.deliveries]
    assert [delivery.redelivered for delivery in late] == [False], "the write under way, and no other"
    assert len(Analysis(history).judge().faults["returned"]) == 1
    assert "returned" not in Analysis(history, stops=system.stops).judge().faults
