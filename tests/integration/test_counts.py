"""Every operation at once, at random, over real sockets: the broker's counts match its content, and it stays alive.

A seed decides what each client does, not how their threads interleave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from broker.core.policy.policy import Policy
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.server import BrokerServer
from broker.slots.slot import Slot
from tests.deadline import wait_until_async
from tests.raw_client import HEADER, RawClient, publish_frames
from tests.raw_talk import mortal_broker, talk

Basic, Channel, Exchange, Tx = commands.Basic, commands.Channel, commands.Exchange, commands.Tx

CLIENTS: Final = 20
STEPS: Final = 150
INTO: Final = {"x-dead-letter-exchange": "dead"}
QUEUES: Final[dict[str, tuple[bool, dict[str, Any]]]] = {
    "plain": (True, {}),
    "fleeting": (False, INTO),
    "levels": (True, {"x-max-priority": 3, "x-max-length": 40} | INTO),
    "short": (True, {"x-max-length": 15} | INTO),
    "small": (True, {"x-max-length-bytes": 2000} | INTO),
    "strict": (True, {"x-max-length": 10, "x-overflow": "reject-publish"}),
    "moving": (True, {"x-max-length": 10, "x-overflow": "reject-publish-dlx"} | INTO),
    "brief": (True, {"x-message-ttl": 20} | INTO),
    "limited": (True, {"x-queue-type": "quorum", "x-delivery-limit": 2} | INTO),
    "single": (True, {"x-single-active-consumer": True}),
    "round": (True, {"x-max-length": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "short"}),
    "grave": (True, {"x-max-length": 60, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "round"}),
}
DEAD_LETTERED: Final = {"grave", "round", "short"}  # the target of the other queues' dead letters
POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {"max-length": 5},
    {"max-length-bytes": 500, "dead-letter-exchange": "dead"},
    {"message-ttl": 5},
    {"max-length": 7, "overflow": "reject-publish", "message-ttl": 1000},
    {"dead-letter-exchange": "", "dead-letter-routing-key": "levels"},
)


class Guest:
    """A connection that uses all operations at random."""

    def __init__(self, port: int, random: Random, tx: bool) -> None:
        self.port = port
        self.random = random
        self.tx = tx
        self.tags: list[int] = []
        self.consumers: list[str] = []
        self.arrive()

    def arrive(self) -> None:
        """Connect."""
        self.raw = RawClient("127.0.0.1", self.port)
        self.raw.open()
        self.enter()

    def enter(self) -> None:
        """Open a channel with confirms, or one with transactions."""
        self.tags.clear()
        self.consumers.clear()
        self.raw.method(1, Channel.Open())
        self.raw.method(1, Tx.Select() if self.tx else commands.Confirm.Select())

    def hear(self, timeout_s: float = 0.0) -> None:
        """Process the frames that have arrived. A failed channel is reopened; a connection must not fail."""
        while self.raw.readable(timeout_s):
            received = self.raw.next()
            value = received.value
            if isinstance(value, Basic.Deliver | Basic.GetOk):
                self.tags.append(value.delivery_tag or 0)
            elif isinstance(value, Channel.Close):
                assert value.reply_code in (403, 404, 405, 406), value.reply_text
                self.raw.method(1, Channel.CloseOk())
                self.enter()
            assert not isinstance(value, commands.Connection.Close), f"{value.reply_code} {value.reply_text}"
            assert received.type <= HEADER + 1

    def step(self) -> None:
        """Do one random operation."""
        random = self.random
        queue = random.choice(list(QUEUES))
        act = random.choices(
            (self.publish, self.consume, self.cancel, self.get, self.settle, self.tidy, self.leave),
            (40, 6, 3, 10, 30, 2, 1),
        )[0]
        act(queue)
        self.hear(random.choice((0, 0, 0.002)))

    def publish(self, queue: str) -> None:
        random = self.random
        for _ in range(random.randint(1, 12)):
            headers: dict[str, Any] = {}
            if random.random() < 0.1:
                headers["x-delay"] = random.randint(1, 50)
            if random.random() < 0.1:
                headers["CC"] = [random.choice(list(QUEUES))]
            properties = Basic.Properties(
                delivery_mode=random.choice((1, 2)),
                priority=random.choice((None, 0, 1, 9)),
                expiration=random.choice((None, None, None, "0", "3", "100")),
                headers=headers,
            )
            exchange = random.choice(("", "", "late", "dead", "amq.fanout"))
            body = bytes(random.choice((0, 10, 300)))
            mandatory = random.random() < 0.1
            self.raw.send(publish_frames(1, exchange, queue, body, properties=properties, mandatory=mandatory))
        if self.tx:
            self.raw.method(1, Tx.Rollback() if random.random() < 0.2 else Tx.Commit())

    def consume(self, queue: str) -> None:
        tag = f"c{self.random.getrandbits(40)}"
        self.consumers.append(tag)
        prefetch = self.random.choice((0, 1, 5))
        self.raw.method(1, Basic.Qos(prefetch_count=prefetch, global_=self.random.random() < 0.2))
        arguments: Any = {"x-priority": self.random.randint(-1, 1)}
        no_ack = self.random.random() < 0.3
        self.raw.method(1, Basic.Consume(queue=queue, consumer_tag=tag, no_ack=no_ack, arguments=arguments))

    def cancel(self, _queue: str) -> None:
        if self.consumers:
            self.raw.method(1, Basic.Cancel(consumer_tag=self.consumers.pop()))

    def get(self, queue: str) -> None:
        self.raw.method(1, Basic.Get(queue=queue, no_ack=self.random.random() < 0.2))

    def settle(self, _queue: str) -> None:
        random = self.random
        if not self.tags:
            return
        tag, multiple = random.choice(self.tags), random.random() < 0.4
        self.tags = [other for other in self.tags if other > tag or (other < tag and not multiple)]
        kind = random.random()
        if kind < 0.4:
            self.raw.method(1, Basic.Ack(tag, multiple))
        elif kind < 0.95:
            self.raw.method(1, Basic.Nack(tag, multiple, random.random() < 0.5))
        else:
            self.raw.method(1, Basic.Recover(requeue=True))
            self.tags.clear()
        if self.tx:
            self.raw.method(1, Tx.Commit())

    def tidy(self, queue: str) -> None:
        if self.random.random() < 0.5:
            self.raw.method(1, commands.Queue.Purge(queue=queue))
        else:
            self.raw.method(1, commands.Queue.Delete(queue=queue))
        declare(self.raw, queue)

    def leave(self, _queue: str) -> None:
        self.raw.socket.close()
        self.arrive()


def declare(raw: RawClient, queue: str) -> None:
    """Declare a queue with its bindings, without waiting."""
    durable, arguments = QUEUES[queue]
    raw.method(1, commands.Queue.Declare(queue=queue, durable=durable, arguments=arguments))
    bindings = {
        "grave": ("dead", "#"),
        "plain": ("late", "#"),
        "levels": ("amq.fanout", ""),
        "short": ("amq.fanout", ""),
    }
    if queue in bindings:
        exchange, key = bindings[queue]
        raw.method(1, commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key))


def prepare(port: int) -> None:
    """Declare the topology."""
    with RawClient("127.0.0.1", port) as raw:
        raw.open()
        raw.open_channel()
        declare_ok = Exchange.DeclareOk
        raw.call(1, Exchange.Declare(exchange="dead", exchange_type="topic", durable=True), declare_ok)
        kind: Any = {"x-delayed-type": "topic"}
        late = Exchange.Declare(exchange="late", exchange_type="x-delayed-message", durable=True, arguments=kind)
        raw.call(1, late, declare_ok)
        for queue in QUEUES:
            declare(raw, queue)
        for _ in QUEUES:
            raw.skip_to(commands.Queue.DeclareOk, 1)


def visit(port: int, seed: int) -> None:
    """Run a client from beginning to end; some disconnect without connection.close."""
    random = Random(seed)
    guest = Guest(port, random, seed % 4 == 0)
    for _ in range(STEPS):
        guest.step()
    guest.raw.socket.close()


def page_out_some(broker: BrokerServer, random: Random) -> None:
    """Move slots here and there to disk, as the pager does when memory is short."""
    pager = broker.engines["/"].pager
    for queue in broker.engines["/"].vhost.queues.values():
        for stream in queue.levels:
            if random.random() < 0.2:
                stream.manager.seal()
            for slot in list(stream.manager.slots.values())[:-1]:
                may_go = slot.contents is not None and slot.unsettled and not pager._in_service(slot)
                if may_go and random.random() < 0.3 and pager.log_entries(stream, slot):
                    slot.contents = None


async def settle(broker: BrokerServer) -> None:
    """Return when no operation is in progress, and every slot is in memory."""
    engine = broker.engines["/"]

    async def alone() -> bool:
        return not broker.listener.transports and engine.at_rest

    await wait_until_async(alone, "the end of every connection")
    for queue in engine.vhost.queues.values():
        for stream in queue.levels:
            for slot in stream.manager.slots.values():
                if slot.contents is None:
                    engine.reader.read(stream, slot, lambda: None)
    await wait_until_async(alone, "the messages on disk")


async def meddle(broker: BrokerServer, random: Random, done: asyncio.Event) -> None:
    """Set and clear policies and page out slots, until the clients have finished."""
    policies = broker.engines["/"].vhost.policies
    while not done.is_set():
        await asyncio.sleep(0.01)
        page_out_some(broker, random)
        if random.random() < 0.3:
            pattern = f"^{random.choice(list(QUEUES))}$"
            policies.set(Policy("p", pattern, "queues", random.choice(POLICIES), 0))
        elif random.random() < 0.2:
            policies.clear("p")
    policies.clear("p")


def miscounted(vhost: Vhost) -> Iterator[str]:
    """Yield each count that differs from the content."""
    for queue in vhost.queues.values():
        for stream in queue.levels:
            manager = stream.manager
            slots = list(manager.slots.values())
            counts = {
                "ready": (manager.ready, sum(slot.ready for slot in slots)),
                "ready ones": (manager.ready, sum(len(slot.ready_indexes()) for slot in slots)),
                "unacked": (manager.unacked, sum(len(slot.unacked()) for slot in slots)),
                "unsettled": (manager.ready + manager.unacked, sum(slot.unsettled for slot in slots)),
                "bytes": (manager.ready_bytes, sum(ready_bytes(queue, slot) for slot in slots)),
                "in order": (all(before.end <= after.first for before, after in pairwise(slots)), True),
            }
            yield from (f"{stream}: {name} {counted}" for name, counted in counts.items() if counted[0] != counted[1])


def ready_bytes(queue: Queue, slot: Slot) -> int:
    """Return the bytes of the ready messages of a slot, where they are counted."""
    if queue.rules.max_bytes is None:
        return 0
    assert slot.contents is not None, "everything was read back"
    return sum(len(slot.contents[index].body) for index in slot.ready_indexes())


def mortal(vhost: Vhost) -> int:
    """Count messages that dead-letter at expiry; some have expired, after transient ones that a restart drops."""
    return sum(
        queue.expires_ms(slot.contents[index]) is not None
        for queue in vhost.queues.values()
        if queue.durable and queue.rules.dead_letter_exchange is not None
        for stream in queue.levels
        for slot in stream.manager.slots.values()
        if slot.contents is not None
        for index in slot.ready_indexes()
    )


async def stress(folder: Path, seed: int) -> None:
    """Run all operations at once, and check the counts at the end."""
    random = Random(seed)
    async with mortal_broker(folder, {"slots": {"window_messages": 7}}) as broker:
        port, vhost = broker.listener.port, broker.engines["/"].vhost
        await talk(broker, prepare, port)
        done = asyncio.Event()
        meddling = asyncio.create_task(meddle(broker, random, done))
        await asyncio.gather(*(talk(broker, visit, port, seed * CLIENTS + number) for number in range(CLIENTS)))
        done.set()
        await meddling
        await settle(broker)
        assert list(miscounted(vhost)) == []
        assert {queue.name: queue.unacked for queue in vhost.queues.values() if queue.unacked} == {}
        limits = {queue.name: (queue.ready, queue.rules) for queue in vhost.queues.values()}
        for name, (ready, rules) in limits.items():
            over = rules.overflow == "drop-head" and rules.exceeded(ready, vhost.queues[name].waiting_bytes)
            assert not over, f"{name} has {ready}, {rules}"
        left = {name: ready for name, (ready, _) in limits.items() if vhost.queues[name].durable}
        persistent = {name: count for name, count in left.items() if name not in ("brief", "amq.delayed.late")}
        for name in DEAD_LETTERED & persistent.keys():
            persistent[name] += mortal(vhost)
    async with mortal_broker(folder) as broker:
        await settle(broker)
        vhost = broker.engines["/"].vhost
        for name, count in persistent.items():
            assert vhost.queues[name].ready <= count, f"{name} had {count}"
        assert list(miscounted(vhost)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_counts_hold_under_everything(tmp_path: Path, seed: int) -> None:
    """Ready, unacked and byte counts of every queue match its messages, limits hold, and no message is stuck."""
    with capture_logs():
        await stress(tmp_path, seed)


@pytest.mark.torture
@pytest.mark.timeout(0)
async def test_counts_hold_for_long(tmp_path: Path) -> None:
    """The counts hold over many seeds."""
    for seed in range(100, 200):
        with capture_logs():
            await stress(tmp_path / str(seed), seed)
