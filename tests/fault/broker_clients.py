"""Clients that work on a broker at random, in threads, until it dies; they tell a history what they did and saw.

Raw sockets: a client library would hide what was confirmed, and is ten times slower.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any, Final, TypeVar

from pamqp import commands

from tests.fault.broker_history import Copy, History, Removal, Sent, padding
from tests.raw_client import BODY, PeerGone, RawClient, publish_frames

Reply = TypeVar("Reply")

CHURN: Final = "churn"  # the queue that is purged and deleted all the time
RECEIPTS: Final = "receipts"  # where clients publish to have what they did before on disk
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
# Where a message goes, by exchange and key: written down by hand, so that no matcher of ours judges itself.
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
    """One connection with one channel that confirms: sorts what comes in into confirms, deliveries and replies."""

    def __init__(self, port: int, name: str, history: History, random: Random) -> None:
        self.name = name
        self.history = history
        self.random = random
        self.raw = RawClient("127.0.0.1", port)
        self.held: list[tuple[int, str, int]] = []  # (delivery tag, queue, number), ascending
        self._unconfirmed: deque[tuple[int, Sent]] = deque()
        self._published = 0
        self._settled: list[Copy] = []  # since the last receipt
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
        """Close the channel: what is unacked goes back to its queue."""
        close = commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
        self.call(close, commands.Channel.CloseOk)
        self.held.clear()

    # -- one method after the other -----------------------------------------------------------------------------------

    def call(self, method: Any, kind: type[Reply]) -> Reply:
        """Send a method and return its reply; deliveries and confirms that come before it are noted."""
        self.raw.method(1, method)
        while True:
            received = self.pump()
            if isinstance(received, kind):
                return received
            assert received is None, f"{self.name}: expected {kind.__name__}, got {received!r}"

    def pump(self) -> Any:
        """Take one frame: returns a reply, None when it was noted. Raises: PeerGone when the broker hung up."""
        value = self.raw.next().value
        if isinstance(value, commands.Basic.Ack):
            while self._unconfirmed and self._unconfirmed[0][0] <= (value.delivery_tag or 0):
                self.history.confirm(self._unconfirmed.popleft()[1])
            return None
        if isinstance(value, commands.Basic.Deliver):
            self._take(value.consumer_tag or "", value.delivery_tag, redelivered=bool(value.redelivered))
            return None
        if isinstance(value, (commands.Channel.Close, commands.Connection.Close)):
            raise PeerGone(f"{value.reply_code} {value.reply_text}")
        return value

    def _take(self, queue: str, tag: int | None, *, redelivered: bool) -> None:
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
        """Send a message and wait for nothing."""
        sent = self.history.publish(self.name, ADDRESSES[exchange, key], persistent=persistent)
        self._published += 1
        self._unconfirmed.append((self._published, sent))
        properties = commands.Basic.Properties(delivery_mode=2 if persistent else 1)
        body = b"%d " % sent.number + padding(self.random)
        self.raw.send(publish_frames(1, exchange, key, body, properties=properties))

    def await_confirms(self, at_most: int = 0) -> None:
        """Return when no more than so many publishes wait for their confirm."""
        while len(self._unconfirmed) > at_most:
            received = self.pump()
            assert received is None, f"{self.name}: got {received!r}"

    def receipt(self, removal: Removal | None = None) -> None:
        """Return when all that was done on this channel is on disk: a confirm came behind it."""
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
        """Fetch one message, if there is one."""
        self.raw.method(1, commands.Basic.Get(queue=queue))
        while (received := self.pump()) is None:
            pass
        if isinstance(received, commands.Basic.GetOk):
            self._take(queue, received.delivery_tag, redelivered=bool(received.redelivered))

    def settle(self, place: int, *, multiple: bool = False, reject: bool = False) -> None:
        """Ack, or reject for good, a message that is held, or all up to it."""
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
        """Give a message that is held back to its queue."""
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

    def hear(self, timeout_s: float = 0.002) -> None:
        """Take what has come, and waits a moment for more."""
        while self.raw.readable(timeout_s):
            received = self.pump()
            assert received is None, f"{self.name}: got {received!r}"


# -- what they do over and over ---------------------------------------------------------------------------------------


def prepare(client: Client) -> None:
    """Make the topology; later on only the queue that may be missing since a deletion was cut short."""
    history = client.history
    if history.topology_for_sure:
        for exchange, key in ADDRESSES:
            client.publish(exchange, key)  # to bindings that recovery brought back: the next restart looks for these
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
    """Delete the queue that is deleted all the time, and makes it anew."""
    removal = client.history.begin_removal(CHURN, deletes=True)
    client.delete(CHURN)
    client.held = [held for held in client.held if held[1] != CHURN]
    client.declare(CHURN)
    client.history.end_removal(removal)
    return removal


def publish_some(client: Client) -> None:
    """Publish a burst, and wait for some or all confirms."""
    for _ in range(client.random.randint(1, 25)):
        exchange, key = client.random.choice(list(ADDRESSES))
        client.publish(exchange, key, persistent=client.random.random() < 0.9)
    client.await_confirms(client.random.choice((0, 0, 20)))


def consume_some(client: Client) -> None:
    """Hear deliveries, settles some of them in some order, gives some back, and now and then leave."""
    random = client.random
    client.hear()
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
    """Fetch from a queue, empties it, deletes and make it again."""
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
    """Return what every queue holds, and whether it was marked redelivered, in order; nothing is acked."""
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
        there = found[queue] = []
        for _ in range(answer.message_count):
            deliver = raw.next().value
            assert isinstance(deliver, commands.Basic.Deliver), deliver
            there.append((int(client.content().split(b" ")[0]), bool(deliver.redelivered)))
        client.call(commands.Basic.Cancel(consumer_tag=queue), commands.Basic.CancelOk)
    return found
