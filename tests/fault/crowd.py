"""Publishers with confirms and consumers with acks, each in its own thread, that run until the broker ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.fault.ledger import Ledger
from tests.raw_client import PeerGone, RawClient, publish_frames

EXCHANGE = "kill9"
QUEUES = {"everything": "#", "even": "*.even", "large": "large.#"}
"""Queue names and binding keys at one topic exchange: messages fan out to up to three queues of different depth."""
WINDOW = 200
"""The number of unconfirmed messages up to which a publisher continues."""
PERSISTENT = commands.Basic.Properties(delivery_mode=2, content_type="application/octet-stream")


def declare(address: BrokerAddress) -> None:
    """Declare the durable exchange, the durable queues and their bindings."""
    with RawClient(address.host, address.port).with_channel() as client:
        exchange = commands.Exchange.Declare(exchange=EXCHANGE, exchange_type="topic", durable=True)
        client.call(1, exchange, commands.Exchange.DeclareOk)
        for queue, pattern in QUEUES.items():
            client.call(1, commands.Queue.Declare(queue=queue, durable=True), commands.Queue.DeclareOk)
            bind = commands.Queue.Bind(queue=queue, exchange=EXCHANGE, routing_key=pattern)
            client.call(1, bind, commands.Queue.BindOk)
        client.close()


class Member(threading.Thread):
    """A client thread that works until its connection closes; any other exception is stored in `error`."""

    def __init__(self, address: BrokerAddress, ledger: Ledger, work: Callable[[Member, RawClient], None]) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.ledger = ledger
        self.work = work
        self.error: BaseException | None = None
        self.closed_with: int | None = None
        self.leaving = threading.Event()

    def run(self) -> None:
        """Connect and work."""
        try:
            with RawClient(self.address.host, self.address.port).with_channel() as client:
                self.work(self, client)
        except (PeerGone, ConnectionError):
            pass
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def closed_by(self, client: RawClient, value: object) -> bool:
        """Return whether the method closes the connection; answer it then."""
        if not isinstance(value, commands.Connection.Close):
            return False
        self.closed_with = value.reply_code
        client.method(0, commands.Connection.CloseOk())
        return True


class Publisher:
    """Publishes numbered messages with random sizes and keys, and limits the unconfirmed ones."""

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self.random = random
        self.number = 0

    def message(self, ledger: Ledger) -> tuple[str, bytes]:
        """Return the identity and the frames of the next message, after recording it as attempted."""
        number = self.number
        self.number += 1
        large = self.random.random() < 0.03
        size_bytes = self.random.choice((20_000, 150_000)) if large else self.random.choice((16, 100, 1000))
        parity = "even" if number % 2 == 0 else "odd"
        key = f"{'large' if large else 'small'}.{parity}"
        queues = ("everything", *(("even",) if parity == "even" else ()), *(("large",) if large else ()))
        identity = f"{self.name}:{number}"
        body = ledger.attempt(identity, size_bytes, queues)
        return identity, publish_frames(1, EXCHANGE, key, body, properties=PERSISTENT, piece_bytes=65_536)

    def __call__(self, member: Member, client: RawClient) -> None:
        """Publish until the connection closes."""
        client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        outstanding: dict[int, str] = {}
        tag = 0
        while True:
            while len(outstanding) < WINDOW and not member.leaving.is_set():
                frames = []
                for _ in range(self.random.randint(1, 40)):
                    tag += 1
                    outstanding[tag], octets = self.message(member.ledger)
                    frames.append(octets)
                client.send(*frames)
            if not outstanding:
                return
            value = client.next().value
            if member.closed_by(client, value):
                return
            assert isinstance(value, commands.Basic.Ack), value
            tags = (
                [known for known in outstanding if known <= value.delivery_tag]
                if value.multiple
                else [value.delivery_tag]
            )
            member.ledger.confirm([outstanding.pop(known) for known in tags])


class Consumer:
    """Consumes one queue with a prefetch, acks singly or in bulk, and occasionally requeues."""

    def __init__(self, queue: str, random: Random) -> None:
        self.queue = queue
        self.random = random

    def __call__(self, member: Member, client: RawClient) -> None:
        """Consume until the connection closes."""
        client.call(1, commands.Basic.Qos(prefetch_count=100), commands.Basic.QosOk)
        client.call(1, commands.Basic.Consume(queue=self.queue), commands.Basic.ConsumeOk)
        held: list[int] = []
        while True:
            value = client.next().value
            if member.closed_by(client, value):
                return
            assert isinstance(value, commands.Basic.Deliver), value
            _, body = client.expect_content(1)
            member.ledger.deliver(self.queue, body, redelivered=bool(value.redelivered))
            held.append(int(value.delivery_tag or 0))
            if len(held) >= self.random.randint(1, 90):
                self._settle(client, held)

    def _settle(self, client: RawClient, held: list[int]) -> None:
        """Ack the messages at once or singly in random order, or requeue all."""
        choice = self.random.random()
        if choice < 0.5:
            client.method(1, commands.Basic.Ack(delivery_tag=held[-1], multiple=True))
        elif choice < 0.9:
            self.random.shuffle(held)
            for tag in held:
                client.method(1, commands.Basic.Ack(delivery_tag=tag))
        else:
            client.method(1, commands.Basic.Nack(delivery_tag=held[-1], multiple=True, requeue=True))
        held.clear()


def drain(address: BrokerAddress, ledger: Ledger) -> None:
    """Empty every queue with a single consumer that acks every message."""
    for queue in QUEUES:
        with RawClient(address.host, address.port).with_channel() as client:
            declare = commands.Queue.Declare(queue=queue, passive=True)
            while ready := min(60_000, client.call(1, declare, commands.Queue.DeclareOk).message_count or 0):
                client.call(1, commands.Basic.Qos(prefetch_count=ready), commands.Basic.QosOk)
                consumed = client.call(1, commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
                for number in range(1, ready + 1):
                    deliver = client.expect(commands.Basic.Deliver, 1)
                    _, body = client.expect_content(1)
                    ledger.deliver(queue, body, redelivered=bool(deliver.redelivered), drained=True)
                    if number == ready:
                        client.method(1, commands.Basic.Ack(delivery_tag=deliver.delivery_tag or 0, multiple=True))
                client.call(1, commands.Basic.Cancel(consumer_tag=consumed.consumer_tag), commands.Basic.CancelOk)
            client.close()
