"""A stop in good order and a start on the same files: messages stay as fresh, or as used, as they were."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Final

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from tests.fault.broker_clients import TOPIC, Client, drain, prepare
from tests.fault.broker_life import LOOK_S, Life, new_disk, new_history
from tests.in_process import queue_of
from tests.raw_client import PeerGone

pytestmark = pytest.mark.fault

MESSAGES: Final = 12


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Keeps the log of the brokers to itself."""
    with capture_logs():
        yield


def publish(client: Client) -> None:
    """Publishes to two queues, with a transient message behind each."""
    for _ in range(MESSAGES):
        client.publish(TOPIC, "a.y.z")
        client.publish(TOPIC, "a.y.z", persistent=False)
    client.await_confirms()


def use(client: Client) -> None:
    """Acks the first two persistent messages, requeues the third, and has three more unacked until the end."""
    client.consume("work-1", 12)
    while len(client.held) < 12:
        client.pump()
    client.call(commands.Basic.Cancel(consumer_tag="work-1"), commands.Basic.CancelOk)
    for place in (0, 1):  # the transient one between them moves up
        client.settle(place)
    client.requeue(2)
    client.receipt()
    client.close_channel()


def linger(client: Client) -> None:
    """Has two messages unacked when the broker says good-bye."""
    for _ in range(2):
        client.get("pile")
    with pytest.raises(PeerGone, match="320"):
        client.pump()


def persistent(life: Life, found: dict[str, list[tuple[int, bool]] | None], queue: str) -> list[bool]:
    """Returns the redelivery marks of a queue, all of whose messages must be persistent ones, in order."""
    deliveries = found[queue]
    assert deliveries is not None
    numbers = [number for number, _ in deliveries]
    assert numbers == sorted(numbers)
    assert all(life.history.sent[number].persistent for number in numbers)
    return [redelivered for _, redelivered in deliveries]


@pytest.mark.parametrize("loss", [False, True], ids=["stopped", "then the power was cut"])
@pytest.mark.parametrize("checkpoints", [0, 2])
async def test_a_clean_restart_keeps_redelivery_marks(checkpoints: int, loss: bool) -> None:
    """Untouched messages stay fresh; what was requeued or unacked is marked; what was acked or transient is gone."""
    disk = new_disk()
    life = Life(disk, new_history(), Random(checkpoints))
    assert await life.begin()
    for name, work in {"prepare": prepare, "publisher": publish, "consumer": use}.items():
        await life.say(work, name)
        for _ in range(checkpoints):
            await life.checkpoint()
    lingering = asyncio.ensure_future(life.say(linger, "lingerer", watched=False))
    pile = queue_of(life.broker, "pile")
    while pile.unacked < 2:
        await asyncio.sleep(LOOK_S)
    await life.stop()
    await lingering
    assert not life.history.problems

    marks: list[tuple[list[bool], list[bool]]] = []
    for seed in range(2):
        disk = disk.after_loss(seed) if loss else disk.after_kill()
        life = Life(disk, life.history, Random(seed))
        assert await life.begin()
        found = await life.say(drain, "drain", tolerant=False)
        assert found is not None
        marks.append((persistent(life, found, "work-1"), persistent(life, found, "pile")))
        await life.stop()
    untouched = MESSAGES - 6
    assert marks[0] == ([True] * 4 + [False] * untouched, [True] + [False] * (MESSAGES - 1))
    assert marks[1] == ([True] * (MESSAGES - 2), [True] * MESSAGES), "the first look at them is remembered"
