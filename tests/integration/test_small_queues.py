"""The memory of a queue with a consumer: with thousands of queues each object is a miss of the CPU's caches."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

from pamqp import commands

from broker.server import BrokerServer
from tests.in_process import running_broker
from tests.own_objects import own_bytes
from tests.raw_client import RawClient, publish_frames

QUEUES = 50
EACH_MAX_BYTES = 3600
"""The broker's objects take 3,416 now, with a consumer and an open slot, and 3,478 after other tests of a process."""
EACH_MAX_OBJECTS = 12
"""How many objects of the broker's own classes there are, without those that compiled code hides from the collector."""


def use(client: RawClient, prefix: str) -> None:
    """Declare queues, consume from each, and let a message pass through each."""
    for number in range(QUEUES):
        name = f"{prefix}-{number}"
        client.call(1, commands.Queue.Declare(queue=name, exclusive=True), commands.Queue.DeclareOk)
        client.call(1, commands.Basic.Consume(queue=name), commands.Basic.ConsumeOk)
        client.send(publish_frames(1, "", name, b"ping"))
        tag = client.expect(commands.Basic.Deliver, 1).delivery_tag
        assert tag
        client.expect_content(1)
        client.method(1, commands.Basic.Ack(delivery_tag=tag))


def run(broker: BrokerServer) -> tuple[dict[str, int], int]:
    """Return the bytes of each type and the number of the objects that a queue has."""
    with RawClient("127.0.0.1", broker.listener.port).with_channel() as client:
        use(client, "warm")
        gc.collect()
        gc.unfreeze()
        known = {id(one) for one in gc.get_objects()}
        use(client, "counted")
        gc.collect()
        gc.unfreeze()
        new = [one for one in gc.get_objects() if id(one) not in known]
        own = sum(type(one).__module__.startswith("broker.") for one in new)
        return dict(own_bytes(new, known)), own


async def test_a_queue_stays_small(tmp_path: Path) -> None:
    """The objects of a queue through which messages pass are no more than they were, and no larger."""
    async with running_broker(tmp_path) as broker:
        sizes, objects = await asyncio.to_thread(run, broker)
    each = {kind: size // QUEUES for kind, size in sizes.items() if size >= QUEUES * 16}
    assert sum(sizes.values()) / QUEUES <= EACH_MAX_BYTES, each
    assert objects // QUEUES <= EACH_MAX_OBJECTS, each  # a few more are not of one queue
