"""A clean stop and a start on the same files: messages keep their redelivered flags."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final, cast

import pytest
from pamqp import commands

from broker.core.queue.queue import Queue
from broker.delivery.committer import Committer
from broker.slots.slot import Slot
from broker.store.queue_entry import ENTRY_BYTES
from tests.deadline import wait_until_async
from tests.fault.broker_clients import RECEIPTS, TOPIC, Client, drain, prepare
from tests.fault.broker_life import Life, new_disk, new_history
from tests.fault.faulty_files import FaultyFiles, TornContent
from tests.in_process import queue_of
from tests.raw_client import PeerGone

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("quiet")]

MESSAGES: Final = 12


def publish(client: Client) -> None:
    """Publish to two queues, with a transient message after each."""
    for _ in range(MESSAGES):
        client.publish(TOPIC, "a.y.z")
        client.publish(TOPIC, "a.y.z", persistent=False)
    client.await_confirms()


def use(client: Client) -> None:
    """Ack the first two persistent messages, requeue the third, and keep three more unacked until the end."""
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
    """Keep two messages unacked while the broker says good-bye."""
    for _ in range(2):
        client.get("pile")
    with pytest.raises(PeerGone, match="320"):
        client.pump()


async def two_unacked(queue: Queue) -> bool:
    """Return whether a consumer holds two messages of a queue."""
    return queue.unacked == 2


def persistent(life: Life, found: dict[str, list[tuple[int, bool]] | None], queue: str) -> list[bool]:
    """Return the redelivered flags of a queue, in order; all its messages must be persistent."""
    deliveries = found[queue]
    assert deliveries is not None
    numbers = [number for number, _ in deliveries]
    assert numbers == sorted(numbers)
    assert all(life.history.sent[number].persistent for number in numbers)
    return [redelivered for _, redelivered in deliveries]


@pytest.mark.parametrize("loss", [False, True], ids=["stopped", "then the power was cut"])
@pytest.mark.parametrize("checkpoints", [0, 2])
async def test_a_clean_restart_keeps_redelivery_marks(checkpoints: int, loss: bool) -> None:
    """Untouched messages stay fresh; requeued or unacked ones are flagged; acked or transient ones are gone."""
    disk = new_disk()
    life = Life(disk, new_history(), Random(checkpoints))
    assert await life.begin()
    for name, work in {"prepare": prepare, "publisher": publish, "consumer": use}.items():
        await life.say(work, name)
        for _ in range(checkpoints):
            await life.checkpoint()
    lingering = asyncio.ensure_future(life.say(linger, "lingerer", watched=False))
    pile = queue_of(life.broker, "pile")
    await wait_until_async(lambda: two_unacked(pile), "two unacked messages")
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


# -- a slot that holds a transient message in front of a confirmed one -------------------------------------------------


def publish_pair(client: Client) -> None:
    """Publish a transient message and then a persistent one into one slot."""
    client.publish("", "work-1", persistent=False)
    client.publish("", "work-1")
    client.await_confirms()


def fill_segments(client: Client) -> None:
    """Make the log roll a few times, and leave nothing in those segments."""
    for _ in range(100):
        client.publish("", RECEIPTS)
    client.await_confirms()
    removal = client.history.begin_removal(RECEIPTS, deletes=False)
    client.purge(RECEIPTS)
    client.history.end_removal(removal)
    client.receipt(removal)


async def pair_in_a_slot() -> tuple[Life, Queue, Slot]:
    """Return a broker with such a slot, to which a checkpoint on disk refers."""
    life = Life(new_disk(), new_history(), Random(2))
    assert await life.begin()
    await life.say(prepare, "prepare")
    await life.say(publish_pair, "publisher")
    await life.checkpoint()
    queue = queue_of(life.broker, "work-1")
    (slot,) = [slot for slot in queue.level.manager.slots.values() if slot.length]
    assert slot.length == 2
    return life, queue, slot


async def check_restart(life: Life, disk: FaultyFiles) -> None:
    """Assert that a broker on these files has everything that was confirmed."""
    after = Life(disk, life.history, Random(3))
    assert await after.begin()
    await after.find()
    await after.kill()
    assert not life.history.problems


async def test_compaction_moves_what_lies_behind_a_transient_message() -> None:
    """A segment is removed only after every confirmed message was moved, whatever precedes it in its slot."""
    life, _, _ = await pair_in_a_slot()
    await life.say(fill_segments, "filler")
    (engine,) = life.broker.engines.values()
    for _ in range(4):
        await life.checkpoint()
        await life.say(Client.receipt, "mover")  # the next checkpoint is due only after the log has grown
    assert engine.compactor.relocated
    await life.kill()
    await check_restart(life, life.files.disk.after_kill())


async def test_an_ack_that_is_not_on_disk_leaves_the_message_readable() -> None:
    """Paging out a slot removes no entry from the checkpoint: the ack of its message may still be lost."""
    life, queue, slot = await pair_in_a_slot()

    def ack(client: Client) -> None:
        client.get("work-1")
        client.get("work-1")
        client.settle(1)
        client.pump_arrived(60.0)

    (engine,) = life.broker.engines.values()
    cast("Committer", engine.committer)._lazy_s = 3600.0  # no client waits for the ack's record, so it stays in memory
    acking = asyncio.ensure_future(life.say(ack, "consumer"))
    await wait_until_async(lambda: slot.acks.count == 1, "the ack")
    engine.pager.log_entries(queue.level, slot)
    await life.kill()
    await acking
    await check_restart(life, life.files.disk.after_kill())


async def test_an_entry_on_disk_is_not_written_again() -> None:
    """A write that a power loss tears does not touch an entry to which the checkpoint refers."""
    life, queue, slot = await pair_in_a_slot()
    (engine,) = life.broker.engines.values()
    engine.pager.log_entries(queue.level, slot)
    await life.kill()
    disk = life.files.disk
    for path, content in disk.contents.items():
        assert isinstance(content, TornContent)
        if path.suffix == ".queue":
            content.unsynced = [(offset, b"\x5a" * len(block or b"")) for offset, block in content.unsynced]
            content.sync()
    await check_restart(life, disk.after_loss(0))


@pytest.mark.parametrize("spilled", [False, True], ids=["in memory", "in the spill"])
async def test_a_queue_log_without_its_header_misses_no_transient_message(spilled: bool) -> None:
    """A checkpoint counts transient messages as settled: a start that rebuilds the entries does not look for them."""
    life, queue, slot = await pair_in_a_slot()
    if spilled:
        (engine,) = life.broker.engines.values()
        engine.pager.log_entries(queue.level, slot)
        before = engine.checkpointer.count
        await life.say(Client.receipt, "grower")  # a checkpoint is due only after the log has grown
        await life.checkpoint()
        assert engine.checkpointer.count > before
    await life.kill()
    disk = life.files.disk.after_loss(0)
    for path, content in disk.contents.items():
        if path.suffix == ".queue":
            content.block[:ENTRY_BYTES] = bytes(ENTRY_BYTES)
    await check_restart(life, disk)
