"""A client that moves messages in transactions, and a check of the result.

Messages go from one queue into two others, a few in each transaction. At every moment a message is either in the
first queue or in both others: a transaction that was applied in part would show.
"""

from __future__ import annotations

import threading
from random import Random

from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.raw_client import PeerGone, RawClient, publish_frames

Basic, Queue, Tx, Confirm = commands.Basic, commands.Queue, commands.Tx, commands.Confirm
SOURCE, TARGETS = "source", ("first", "second")
PERSISTENT = Basic.Properties(delivery_mode=2)


class Mover(threading.Thread):
    """Moves messages in transactions until the broker ends or the queue is empty."""

    def __init__(self, address: BrokerAddress, random: Random) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.random = random
        self.attempted: list[set[bytes]] = []
        self.committed: list[set[bytes]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Move messages; return when the broker has died."""
        try:
            with RawClient(self.address.host, self.address.port).with_channel() as client:
                client.call(1, Tx.Select(), Tx.SelectOk)
                while self.move(client):
                    pass
        except (PeerGone, ConnectionError):
            pass
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.error = error

    def move(self, client: RawClient) -> bool:
        """Move a few messages and return whether there were any."""
        moved = set()
        for _ in range(self.random.randint(1, 6)):
            client.method(1, Basic.Get(queue=SOURCE))
            got = client.next().value
            if not isinstance(got, Basic.GetOk):
                break
            _, body = client.expect_content(1)
            moved.add(body)
            client.send(publish_frames(1, "amq.fanout", "", body, properties=PERSISTENT))
            client.method(1, Basic.Ack(got.delivery_tag or 0))
        if not moved:
            return False
        if self.random.random() < 0.1:
            client.call(1, Tx.Rollback(), Tx.RollbackOk)
            client.call(1, Basic.Recover(requeue=True), Basic.RecoverOk)
            return True
        self.attempted.append(moved)
        client.call(1, Tx.Commit(), Tx.CommitOk)
        self.committed.append(moved)
        return True


def fill(address: BrokerAddress, count: int) -> None:
    """Declare the queues and publish this many numbered messages to the first."""
    with RawClient(address.host, address.port).with_channel() as client:
        client.declare_queue(1, SOURCE, durable=True)
        for queue in TARGETS:
            client.declare_queue(1, queue, durable=True)
            client.call(1, Queue.Bind(queue=queue, exchange="amq.fanout"), Queue.BindOk)
        client.call(1, Confirm.Select(), Confirm.SelectOk)
        bodies = [b"%d" % number + bytes(number % 700) for number in range(count)]
        client.send(*(publish_frames(1, "", SOURCE, body, properties=PERSISTENT) for body in bodies))
        while client.expect(Basic.Ack, 1).delivery_tag < count:
            pass


def contents(address: BrokerAddress, queue: str) -> list[bytes]:
    """Return the content of a queue, and leave it there."""
    with RawClient(address.host, address.port).with_channel() as client:
        bodies = []
        count = client.call(1, Queue.Declare(queue=queue, passive=True), Queue.DeclareOk).message_count
        for _ in range(count or 0):
            client.call(1, Basic.Get(queue=queue), Basic.GetOk)
            bodies.append(client.expect_content(1)[1])
        client.close()  # which requeues all of it
    return bodies


def judge(address: BrokerAddress, mover: Mover, count: int) -> None:
    """Assert that each transaction moved all of its messages or none, and each answered one all of them."""
    source = contents(address, SOURCE)
    first, second = (contents(address, queue) for queue in TARGETS)
    assert len(source) + len(first) == len({*source, *first}) == count
    assert sorted(first) == sorted(second)
    there = set(first)
    for moved in mover.attempted:
        assert moved <= there or not moved & there, "half of a transaction"
    for moved in mover.committed:
        assert moved <= there, "an answered transaction is gone"
