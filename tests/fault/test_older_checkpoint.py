"""The newest checkpoint is damaged: a start from the one before finds the same state, and loses nothing."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import Any, Final

import aio_pika
import pytest
from structlog.testing import capture_logs

from broker.server import BrokerServer
from broker.store.damage import StoreFailed
from broker.store.segment import OFFSET_BITS
from tests.fault.broker_life import FOLDER as BROKER_FOLDER
from tests.fault.broker_life import Life, new_disk, new_history
from tests.fault.checkpoint_damage import flip_newest, flip_newest_of
from tests.fault.faulty_files import FaultyFiles, PowerLost
from tests.fault.store_model import FOLDER, StoreModel
from tests.fault.store_state import delivery_counts, unsettled
from tests.in_process import client_of, queue_of, running_broker
from tests.stored_record import read_slot

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("quiet")]

SEEDS: Final = range(80)
TORTURE_SEEDS: Final = range(20_000, 60_000)
BROKER_SEEDS: Final = range(3)
LIVES: Final = 4
PERSISTENT: Final = aio_pika.DeliveryMode.PERSISTENT


# -- a store under random work ----------------------------------------------------------------------------------------


def state_of(model: StoreModel) -> dict[str, Any]:
    """Return what a model's store has recovered, message by message.

    Queues that no change declares are left out, as the layer above drops them.
    """
    recovered = model.recovered
    numbers = {change["number"] for change in recovered.topology if change["change"] == "queue_declared"}
    numbers -= {change["number"] for change in recovered.topology if change["change"] == "queue_deleted"}
    queues: dict[int, dict[int, tuple[bytes, int]]] = {}
    for number in numbers & recovered.queues.keys():
        found = queues[number] = {}
        for slot in recovered.queues[number].slots:
            stored = read_slot(model.store, number, slot.first, slot.end, unsettled(slot))
            counts = delivery_counts(slot)
            for index, message in enumerate(stored):
                if message is not None:
                    assert message.position >> OFFSET_BITS in slot.segments
                    found[slot.first + index] = (message.body, counts.get(index, 0))
    return {
        "topology": recovered.topology,
        "next_queue_number": recovered.next_queue_number,
        "queues": {number: messages for number, messages in queues.items() if messages},
        "clean": recovered.clean,
    }


def live_with_damage(seed: int) -> dict[str, int]:
    """Run a store through several lives; at each start the newest checkpoint may be damaged.

    The store that starts from the older one is compared with a copy that starts from the newest, and lives on.
    """
    model = StoreModel(FaultyFiles(folder=FOLDER.parent), seed)
    random = model.random
    did = {"compared": 0, "relocated": 0, "checkpoints": 0}
    model.open()
    for life in range(LIVES):
        files: Any = model.files
        if random.random() < 0.6:
            files.lose_at = files.calls + random.randint(50, 400)
        try:
            model.work(random.randint(20, 120))
            if random.random() < 0.3:
                model.stop()
        except PowerLost:
            pass
        except StoreFailed:
            assert files.failed
        intact = files.after_loss(seed * LIVES + life) if random.random() < 0.5 else files.after_kill()
        damaged = intact.after_kill()
        intact.lose_at = damaged.lose_at = 0
        is_damaged = random.random() < 0.8 and flip_newest(damaged, FOLDER)
        model.files = intact
        model.open()
        model.verify()
        expected = state_of(model)
        if is_damaged:
            model.files = damaged
            model.open()
            model.verify()
            assert "store.checkpoint_skipped" in [one.event for one in model.recovered.findings]
            assert state_of(model) == {**expected, "clean": False}, f"seed {seed}, life {life}"
            did["compared"] += 1
        did["relocated"], did["checkpoints"] = model.relocated, model.checkpoints
        model.adopt()
    return did


@pytest.mark.slow
@pytest.mark.parametrize("forty", range(len(SEEDS) // 40))
def test_the_older_checkpoint_gives_the_same_state(forty: int) -> None:
    """Whatever was published, settled, moved, deleted and lost since the older one, both checkpoints lead to it."""
    did: dict[str, int] = {}
    seeds = SEEDS[forty * 40 : forty * 40 + 40]
    for seed in seeds:
        for what, count in live_with_damage(seed).items():
            did[what] = did.get(what, 0) + count
    assert did["compared"] > 2 * len(seeds) < did["checkpoints"]
    assert did["relocated"] > len(seeds)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_the_older_checkpoint_gives_the_same_state_many_times() -> None:
    """The same for tens of thousands of stores."""
    for seed in TORTURE_SEEDS:
        live_with_damage(seed)


# -- a broker under random work ---------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_broker_loses_nothing_with_its_newest_checkpoint() -> None:
    """After deaths that each damage a checkpoint, what was confirmed is there, and what was settled is not."""
    damaged = 0
    for seed in BROKER_SEEDS:
        random = Random(seed)
        history, disk = new_history(), new_disk()
        life = Life(disk, history, random)
        assert await life.begin()
        for number in range(3):
            await life.work(random.randint(10, 40))
            disk = disk.after_loss(seed * 3 + number) if random.random() < 0.5 else disk.after_kill()
            damaged += flip_newest(disk, BROKER_FOLDER / "vhosts" / "%2F")
            life = Life(disk, history, random)
            assert await life.begin()
            await life.find()
            assert not history.problems, f"seed {seed}: {history.problems[:5]}"
        await life.kill()
    assert damaged > len(BROKER_SEEDS)


# -- a real folder ----------------------------------------------------------------------------------------------------

SMALL: Final = {"segment_bytes": 1 << 20, "checkpoint_interval_ms": 3_600_000, "compact_below_ratio": 0.5}
SLOTS: Final = {"window_messages": 50}


async def publish(channel: Any, exchange: str, key: str, numbers: range) -> None:
    """Publish numbered messages of a kilobyte and wait for their confirms."""
    target = channel.default_exchange if not exchange else await channel.get_exchange(exchange)
    await asyncio.gather(
        *(target.publish(aio_pika.Message(b"%01000d" % n, delivery_mode=PERSISTENT), key) for n in numbers)
    )


async def ack(channel: Any, queue: str, count: int) -> None:
    """Get and ack messages."""
    source = await channel.get_queue(queue)
    for _ in range(count):
        await (await source.get()).ack()


async def before(channel: Any) -> None:
    """Fill queues: one that stays and is moved, two that share messages, one that will be deleted."""
    await channel.declare_exchange("news", "topic", durable=True)
    for name, key in (("left", "n.#"), ("right", "n.#"), ("gone", "n.gone"), ("again", "n.again")):
        queue = await channel.declare_queue(name, durable=True)
        await queue.bind("news", key)
    await channel.declare_queue("kept", durable=True)
    await channel.declare_queue("bulk", durable=True)
    for start in range(0, 3000, 500):
        await publish(channel, "", "kept", range(start, start + 2))
        await publish(channel, "", "bulk", range(start, start + 500))
    await publish(channel, "news", "n.gone", range(100, 120))
    await publish(channel, "news", "n.again", range(200, 220))


async def between(channel: Any) -> None:
    """Ack, requeue, purge, delete, and declare again with other bindings."""
    await ack(channel, "left", 15)
    await ack(channel, "bulk", 20)
    await (await channel.get_queue("bulk")).purge()
    await publish(channel, "", "bulk", range(10))
    message = await (await channel.get_queue("right")).get()
    await message.nack(requeue=True)
    await channel.queue_delete("gone")
    await channel.queue_delete("again")
    queue = await channel.declare_queue("again", durable=True, arguments={"x-max-length": 7})
    await queue.bind("news", "other.#")
    await (await channel.get_queue("left")).unbind("news", "n.#")
    await publish(channel, "news", "other.x", range(300, 310))
    await publish(channel, "news", "n.late", range(400, 405))
    late = await channel.declare_queue("late", durable=True)
    await publish(channel, "", "late", range(500, 530))
    await late.purge()
    await publish(channel, "", "late", range(530, 540))


async def roll(channel: Any) -> None:
    """Let the log continue to another segment, and keep nothing of what fills this one."""
    filler = await channel.declare_queue("filler", durable=True)
    await publish(channel, "", "filler", range(1100))
    await filler.purge()


async def after(channel: Any) -> None:
    """Continue after the newest checkpoint."""
    await ack(channel, "late", 4)
    await channel.declare_queue("last", durable=True)
    await publish(channel, "", "last", range(600, 603))


async def content_of(broker: BrokerServer) -> dict[str, Any]:
    """Return all queues with their arguments, bindings and messages, after all that no one needs was removed."""
    for _ in range(2):
        await broker.engines["/"].checkpointer.take()
    vhost = broker.engines["/"].vhost
    found: dict[str, Any] = {
        "bindings": sorted(
            (exchange.name, binding.destination.name, binding.key)
            for exchange in vhost.exchanges.values()
            for binding in exchange.bindings
        )
    }
    async with client_of(broker) as channel:
        for name, queue in sorted(vhost.queues.items()):
            source = await channel.get_queue(name)
            got = [await source.get() for _ in range(queue.ready)]
            found[name] = [
                queue.declaration.arguments,
                [(int(one.body), one.redelivered, one.headers.get("x-delivery-count")) for one in got],
            ]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["kill", "clean stop"])
async def test_a_real_folder_with_its_newest_checkpoint_damaged(tmp_path: Path, stop: str) -> None:
    """After compaction, settlements, deletions and declarations between the two, a start finds what it would have."""
    live, intact, damaged = tmp_path / "live", tmp_path / "intact", tmp_path / "damaged"
    async with running_broker(live, store=SMALL, slots=SLOTS) as broker:
        engine = broker.engines["/"]
        async with client_of(broker) as channel:
            await before(channel)
            broker._timers.close()  # from here on only the test takes checkpoints
            await engine.checkpointer.take()
            await between(channel)
            await roll(channel)
            await engine.compactor.run()
            await engine.compactor.run()
            assert engine.compactor.relocated == 1
            await roll(channel)  # now the copies are alone in a segment
            await engine.checkpointer.take()
            await after(channel)
        assert queue_of(broker, "kept").ready == 12
        if stop == "kill":
            shutil.copytree(live, intact, ignore=shutil.ignore_patterns("control.sock"))
    if stop != "kill":
        shutil.copytree(live, intact)
    shutil.copytree(intact, damaged)
    newest = flip_newest_of(damaged / "vhosts" / "%2F")
    async with running_broker(intact, store=SMALL, slots=SLOTS) as broker:
        expected = await content_of(broker)
    with capture_logs() as events:
        async with running_broker(damaged, store=SMALL, slots=SLOTS) as broker:
            found = await content_of(broker)
    if stop != "kill":  # that no message was delivered before is known from the newest checkpoint alone
        for name in expected.keys() - {"bindings"}:
            for content in (expected, found):
                content[name][1] = [(number, count) for number, _, count in content[name][1]]
    assert found == expected
    assert [event["path"] for event in events if event["event"] == "store.checkpoint_skipped"] == [str(newest)]
    assert [event["event"] for event in events if event["log_level"] in ("warning", "error")] == [
        "store.checkpoint_skipped"
    ]
    assert not newest.exists() or newest.read_bytes()  # the checkpoint of this start took its place
