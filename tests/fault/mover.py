"""A client that moves messages in transactions, and a check of the result.

Each transaction moves a few messages from one queue to two others. At any time a message is either in the first queue
or in both others, unless a transaction was applied only in part.
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
        """Move messages until the broker dies or the queue is empty."""
        try:
            with RawClient(self.address.host, self.address.port).with_channel() as client:
                client.call(1, Tx.Select(), Tx.SelectOk)
                while self.move(client):
                    pass
        except (PeerGone, ConnectionError):
            pass
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def move(self, client: RawClient) -> bool:
        """Move or roll back a few messages; return False if the queue is empty."""
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
    """Declare the queues, and publish this many numbered messages to the source."""
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
    """Return the bodies in a queue, without removing them."""
    with RawClient(address.host, address.port).with_channel() as client:
        bodies = []
        count = client.call(1, Queue.Declare(queue=queue, passive=True), Queue.DeclareOk).message_count
        for _ in range(count or 0):
            client.call(1, Basic.Get(queue=queue), Basic.GetOk)
            bodies.append(client.expect_content(1)[1])
        client.close()  # which requeues the messages
    return bodies


def judge(address: BrokerAddress, mover: Mover, count: int) -> None:
    """Assert that each transaction moved all of its messages or none, and all of them if it was answered."""
    source = contents(address, SOURCE)
    first, second = (contents(address, queue) for queue in TARGETS)
    assert len(source) + len(first) == len({*source, *first}) == count
    assert sorted(first) == sorted(second)
    arrived = set(first)
    for moved in mover.attempted:
        assert moved <= arrived or not moved & arrived, "a transaction was applied in part"
    for moved in mover.committed:
        assert moved <= arrived, "an answered transaction is lost"
