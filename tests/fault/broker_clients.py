"""Clients that run random operations against a broker, in threads, until it dies; a History records the results.

They use raw sockets: a client library would hide which publishes were confirmed, and is ten times slower.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any, Final, TypeVar

from pamqp import commands

from tests.fault.broker_history import Copy, History, Removal, Sent, padding
from tests.raw_client import BODY, PeerGone, RawClient, publish_frames

Reply = TypeVar("Reply")

CHURN: Final = "churn"  # the queue that is purged and deleted repeatedly
RECEIPTS: Final = "receipts"  # the target of publishes whose confirm proves that earlier operations are on disk
QUEUES: Final = ("work-1", "work-2", "pile", CHURN, RECEIPTS)
TOPIC: Final = "flights"
FANOUT: Final = "all"
BINDINGS: Final = (
    ("work-1", TOPIC, "a.#"),
    ("work-2", TOPIC, "*.x"),
    ("work-2", FANOUT, ""),
    ("pile", TOPIC, "#"),
    ("pile", FANOUT, ""),
    (CHURN, TOPIC, "b.*"),
    (CHURN, FANOUT, ""),
)
# The target queues by exchange and key, written by hand so as not to rely on the matcher under test.
ADDRESSES: Final = {
    (TOPIC, "a"): ("work-1", "pile"),
    (TOPIC, "a.x"): ("work-1", "work-2", "pile"),
    (TOPIC, "a.y.z"): ("work-1", "pile"),
    (TOPIC, "b.x"): ("work-2", "pile", CHURN),
    (TOPIC, "b.y"): ("pile", CHURN),
    (TOPIC, "c"): ("pile",),
    (FANOUT, "any"): ("work-2", "pile", CHURN),
    ("", "work-1"): ("work-1",),
    ("", CHURN): (CHURN,),
    ("", RECEIPTS): (RECEIPTS,),
}


class Client:
    """A connection with one channel in confirm mode; it sorts incoming frames into confirms, deliveries and replies."""

    def __init__(self, port: int, name: str, history: History, random: Random) -> None:
        self.name = name
        self.history = history
        self.random = random
        self.raw = RawClient("127.0.0.1", port)
        self.held: list[tuple[int, str, int]] = []  # (delivery tag, queue, number), ascending
        self._unconfirmed: deque[tuple[int, Sent]] = deque()
        self._published = 0
        self._settled: list[Copy] = []  # since the last `receipt`
        self.consuming: set[str] = set()

    def open(self) -> Client:
        """Do the handshake and open the channel."""
        try:
            self.raw.open()
            self.open_channel()
        except BaseException:
            self.raw.socket.close()
            raise
        return self

    def open_channel(self) -> None:
        """Open the channel and turn confirms on."""
        self.call(commands.Channel.Open(), commands.Channel.OpenOk)
        self.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        self._published = 0

    def close_channel(self) -> None:
        """Close the channel, which requeues its unacked messages."""
        close = commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
        self.call(close, commands.Channel.CloseOk)
        self.held.clear()

    # -- one method at a time ----------------------------------------------------------------------------------------

    def call(self, method: Any, kind: type[Reply]) -> Reply:
        """Send a method and return its reply; record the deliveries and confirms that arrive before it."""
        self.raw.method(1, method)
        while True:
            received = self.pump()
            if isinstance(received, kind):
                return received
            assert received is None, f"{self.name}: expected {kind.__name__}, got {received!r}"

    def pump(self) -> Any:
        """Read one frame; return a reply, or None for other frames. Raises: PeerGone when the broker closes."""
        value = self.raw.next().value
        if isinstance(value, commands.Basic.Ack):
            while self._unconfirmed and self._unconfirmed[0][0] <= (value.delivery_tag or 0):
                self.history.confirm(self._unconfirmed.popleft()[1])
            return None
        if isinstance(value, commands.Basic.Deliver):
            self._delivered(value.consumer_tag or "", value.delivery_tag, redelivered=bool(value.redelivered))
            return None
        if isinstance(value, (commands.Channel.Close, commands.Connection.Close)):
            raise PeerGone(f"{value.reply_code} {value.reply_text}")
        return value

    def _delivered(self, queue: str, tag: int | None, *, redelivered: bool) -> None:
        number = int(self.content().split(b" ")[0])
        if self.history.deliver(queue, number, redelivered=redelivered) is not None:
            self.held.append((tag or 0, queue, number))

    def content(self) -> bytes:
        """Return the body that follows a deliver or get-ok."""
        size = self.raw.next().value.body_size
        body = b""
        while len(body) < size:
            received = self.raw.next()
            assert received.type == BODY
            body += received.value
        return body

    def publish(self, exchange: str, key: str, *, persistent: bool = True) -> None:
        """Send a message without waiting for its confirm."""
        sent = self.history.publish(self.name, ADDRESSES[exchange, key], persistent=persistent)
        self._published += 1
        self._unconfirmed.append((self._published, sent))
        properties = commands.Basic.Properties(delivery_mode=2 if persistent else 1)
        body = b"%d " % sent.number + padding(self.random)
        self.raw.send(publish_frames(1, exchange, key, body, properties=properties))

    def await_confirms(self, at_most: int = 0) -> None:
        """Wait until at most this many publishes are unconfirmed."""
        while len(self._unconfirmed) > at_most:
            received = self.pump()
            assert received is None, f"{self.name}: got {received!r}"

    def receipt(self, removal: Removal | None = None) -> None:
        """Wait for the confirm of a new publish: all earlier operations of the channel are on disk then."""
        settled, self._settled = self._settled, []
        self.publish("", RECEIPTS)
        self.await_confirms()
        for copy in settled:
            copy.settled_for_sure = True
        if removal is not None:
            removal.for_sure = True

    def consume(self, queue: str, prefetch: int) -> None:
        """Start a consumer; its tag is the queue's name."""
        self.call(commands.Basic.Qos(prefetch_count=prefetch), commands.Basic.QosOk)
        self.call(commands.Basic.Consume(queue=queue, consumer_tag=queue), commands.Basic.ConsumeOk)
        self.consuming.add(queue)

    def get(self, queue: str) -> None:
        """Fetch one message, if the queue has one."""
        self.raw.method(1, commands.Basic.Get(queue=queue))
        while (received := self.pump()) is None:
            pass
        if isinstance(received, commands.Basic.GetOk):
            self._delivered(queue, received.delivery_tag, redelivered=bool(received.redelivered))

    def settle(self, place: int, *, multiple: bool = False, reject: bool = False) -> None:
        """Ack a delivered message, or reject it without requeue, or settle all messages up to it."""
        places = range(place + 1) if multiple else range(place, place + 1)
        for held in places:
            _, queue, number = self.held[held]
            copy = self.history.copies[queue][number]
            copy.settled = True
            self._settled.append(copy)
        tag = self.held[place][0]
        method = commands.Basic.Nack(tag, multiple, False) if reject else commands.Basic.Ack(tag, multiple)
        del self.held[places.start : places.stop]
        self.raw.method(1, method)

    def requeue(self, place: int) -> None:
        """Requeue a delivered message."""
        self.raw.method(1, commands.Basic.Nack(self.held.pop(place)[0], False, True))

    def declare(self, queue: str) -> None:
        """Declare a queue with its bindings."""
        self.call(commands.Queue.Declare(queue=queue, durable=True), commands.Queue.DeclareOk)
        for name, exchange, key in BINDINGS:
            if name == queue:
                bind = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key)
                self.call(bind, commands.Queue.BindOk)

    def delete(self, queue: str) -> None:
        """Delete a queue."""
        self.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)

    def purge(self, queue: str) -> None:
        """Empty a queue."""
        self.call(commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk)

    def pump_arrived(self, timeout_s: float = 0.002) -> None:
        """Process frames until none arrives within the timeout."""
        while self.raw.readable(timeout_s):
            received = self.pump()
            assert received is None, f"{self.name}: got {received!r}"


# -- random operations -----------------------------------------------------------------------------------------------


def prepare(client: Client) -> None:
    """Declare the topology; later calls only restore the queue that an interrupted deletion may have removed."""
    history = client.history
    if history.topology_for_sure:
        for exchange, key in ADDRESSES:
            client.publish(exchange, key)  # through recovered bindings: the next restart looks for the copies
        if history.doubtful:
            recreate(client)
        client.receipt()
        return
    for exchange, kind in ((TOPIC, "topic"), (FANOUT, "fanout")):
        declare = commands.Exchange.Declare(exchange=exchange, exchange_type=kind, durable=True)
        client.call(declare, commands.Exchange.DeclareOk)
    for queue in QUEUES:
        client.declare(queue)
    client.receipt()
    history.topology_for_sure = True


def recreate(client: Client) -> Removal:
    """Delete the churn queue, and declare it again."""
    removal = client.history.begin_removal(CHURN, deletes=True)
    client.delete(CHURN)
    client.held = [held for held in client.held if held[1] != CHURN]
    client.declare(CHURN)
    client.history.end_removal(removal)
    return removal


def publish_some(client: Client) -> None:
    """Publish a burst, and wait until all or all but 20 are confirmed."""
    for _ in range(client.random.randint(1, 25)):
        exchange, key = client.random.choice(list(ADDRESSES))
        client.publish(exchange, key, persistent=client.random.random() < 0.9)
    client.await_confirms(client.random.choice((0, 0, 20)))


def consume_some(client: Client) -> None:
    """Process deliveries, settle some in random order, requeue some, and occasionally cancel."""
    random = client.random
    client.pump_arrived()
    for _ in range(random.randint(0, len(client.held))):
        place = random.randrange(len(client.held))
        kind = random.random()
        if kind < 0.55:
            client.settle(0)
        elif kind < 0.65:
            client.settle(place)
        elif kind < 0.75:
            client.settle(place, multiple=True)
        elif kind < 0.8:
            client.settle(place, reject=True)
        else:
            client.requeue(place)
        if not client.held:
            break
    if random.random() < 0.3:
        client.receipt()
    if random.random() < 0.05:
        queues = sorted(client.consuming)
        client.await_confirms()
        client.close_channel()
        client.open_channel()
        for queue in queues:
            client.consume(queue, random.randint(1, 30))


def churn_some(client: Client) -> None:
    """Get a message from the churn queue, purge the queue, or recreate it."""
    random = client.random
    kind = random.random()
    if kind < 0.6:
        client.get(CHURN)
        if client.held and random.random() < 0.7:
            place = random.randrange(len(client.held))
            client.settle(place) if random.random() < 0.5 else client.requeue(place)
        return
    if kind < 0.85:
        held = [number for _, _, number in client.held]
        removal = client.history.begin_removal(CHURN, deletes=False, held=held)
        client.purge(CHURN)
        client.history.end_removal(removal)
    else:
        removal = recreate(client)
    if random.random() < 0.6:
        client.receipt(removal)


def drain(client: Client) -> dict[str, list[tuple[int, bool]] | None]:
    """Return the content of every queue in order, with the redelivered flags; ack nothing."""
    found: dict[str, list[tuple[int, bool]] | None] = {}
    for queue in QUEUES:
        raw = client.raw
        raw.method(1, commands.Queue.Declare(queue=queue, passive=True))
        answer = raw.next().value
        if isinstance(answer, commands.Channel.Close):
            raw.method(1, commands.Channel.CloseOk())
            client.open_channel()
            found[queue] = None
            continue
        client.call(commands.Basic.Consume(queue=queue, consumer_tag=queue), commands.Basic.ConsumeOk)
        content = found[queue] = []
        for _ in range(answer.message_count):
            deliver = raw.next().value
            assert isinstance(deliver, commands.Basic.Deliver), deliver
            content.append((int(client.content().split(b" ")[0]), bool(deliver.redelivered)))
        client.call(commands.Basic.Cancel(consumer_tag=queue), commands.Basic.CancelOk)
    return found
