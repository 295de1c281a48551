"""The street of ARCHITECTURE.md, walked by one message."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import aio_pika

from broker.server import BrokerServer
from broker.settings import Settings
from tests.deadline import wait_until_async

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| (\d+) \| `(broker/[\w/]+\.py)` \| `([\w.]+)` \|")


def street() -> list[tuple[str, str]]:
    """Return (file, function) of each row of the table."""
    return [(file, name) for _number, file, name in ROW.findall((ROOT / "ARCHITECTURE.md").read_text())]


async def test_one_message_walks_the_street(tmp_path: Path) -> None:
    """Publishing, delivering and acking one persistent message calls the documented functions in the documented
    order.
    """
    steps = street()
    assert len(steps) > 12
    walked: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            step = (code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname)
            if step in steps and step not in walked:
                walked.append(step)

    broker = BrokerServer(
        Settings(
            server={"port": 0, "data_dir": tmp_path / "data"},
            slots={"window_messages": 1},  # so that one message fills, and frees, a slot
        )
    )
    await broker.start()
    try:
        async with await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{broker.listener.port}/") as client:
            channel = await client.channel()
            exchange = await channel.declare_exchange("street", aio_pika.ExchangeType.TOPIC, durable=True)
            queue = await channel.declare_queue("house", durable=True)
            await queue.bind(exchange, "one.#")
            async with queue.iterator() as messages:

                async def at_rest() -> bool:
                    return broker.at_rest  # the sync of the bind is behind it, which is none of this message's

                await wait_until_async(at_rest, "the end of what was declared")
                sys.setprofile(note)
                message = aio_pika.Message(b"hello", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await exchange.publish(message, "one.two")
                async for delivered in messages:
                    assert delivered.body == b"hello"
                    await delivered.ack()
                    break
                await channel.get_exchange("street")  # a round trip behind the ack
                sys.setprofile(None)
        manager = broker.engines["/"].vhost.queues["house"].stream.manager
        assert (manager.ready, manager.unacked, len(manager.slots)) == (0, 0, 1)
    finally:
        sys.setprofile(None)
        await broker.stop()
    assert [" ".join(step) for step in walked] == [" ".join(step) for step in steps]
