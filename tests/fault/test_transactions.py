"""Transactions and the end of the broker: each is applied as a whole or not at all, and survives once answered."""

from __future__ import annotations

import asyncio
import threading
import time
from random import Random

import pytest
from pamqp import commands

from broker.core import deadlines
from broker.core.session import tx
from tests.broker_process import BrokerAddress, BrokerProcess
from tests.deadline import wait_until, wait_until_async
from tests.fault.broker_life import Life, new_disk, new_history
from tests.fault.mover import PERSISTENT, Mover, contents, fill, judge
from tests.fault.test_kill9 import SMALL_STORE
from tests.raw_client import PeerGone, RawClient, publish_frames

pytestmark = pytest.mark.fault

LIVES = 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.torture)])
def test_transactions_survive_kill_9(broker_process: BrokerProcess, seed: int) -> None:
    """A kill in the middle of transactions leaves none of them applied in part."""
    random = Random(seed)
    broker_process.environment |= SMALL_STORE
    broker_process.start()
    fill(broker_process.address, 3000)
    for _life in range(LIVES):
        mover = Mover(broker_process.address, random)
        mover.start()
        enough = random.randint(1, 60)
        wait_until(lambda: len(mover.committed) >= enough or not mover.is_alive(), f"{enough} commits")  # noqa: B023
        time.sleep(random.random() * 0.02)  # not a wait for an event: the moment of the kill, between two commits
        assert broker_process.alive
        broker_process.kill()
        mover.join(30)
        assert mover.error is None, repr(mover.error)
        broker_process.start()
        judge(broker_process.address, mover, 3000)
    assert not broker_process.errors()


async def watch(mover: Mover, life: Life) -> None:
    """Return when the work or the life has ended."""
    await wait_until_async(lambda: life.failed or not mover.is_alive(), "the end of the work, or of the broker")


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("seed", range(6))
async def test_transactions_survive_a_power_loss(seed: int) -> None:
    """A disk that kept the synced bytes, and any part of the rest, holds no transaction in part."""
    random = Random(seed)
    disk = new_disk()
    moved = 0
    mover: Mover | None = None
    for number in range(LIVES):
        life = Life(disk, new_history(), random)
        assert await life.begin()
        address = BrokerAddress("127.0.0.1", life.broker.listener.port)
        if mover is None:
            await asyncio.to_thread(fill, address, 400)
        else:
            await asyncio.to_thread(judge, address, mover, 400)
        mover = Mover(address, random)
        disk.lose_at = disk.calls + random.randint(1, 200)
        mover.start()
        await watch(mover, life)
        await life.kill()
        await asyncio.to_thread(mover.join, 30)
        assert mover.error is None, repr(mover.error)
        moved += len(mover.committed)
        disk = disk.after_loss(seed * LIVES + number)
    assert moved, "too tame"


class Witness(threading.Thread):
    """Publishes numbered messages until the broker ends, and counts the confirmed ones."""

    def __init__(self, address: BrokerAddress, confirmed: int) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.confirmed = confirmed

    def run(self) -> None:
        try:
            with RawClient(self.address.host, self.address.port).with_channel() as client:
                client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
                while True:
                    client.send(publish_frames(1, "", "witness", b"%d" % self.confirmed, properties=PERSISTENT))
                    client.expect(commands.Basic.Ack, 1)
                    self.confirmed += 1
        except (PeerGone, ConnectionError):
            pass


def witnessed(address: BrokerAddress) -> list[bytes]:
    """Declare the queue of the witness, and return its contents."""
    with RawClient(address.host, address.port).with_channel() as client:
        client.declare_queue(1, "witness", durable=True)
    return contents(address, "witness")


@pytest.mark.slow
@pytest.mark.interpreted("the share of a turn is replaced")
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("seed", [*range(4), *[pytest.param(seed, marks=pytest.mark.torture) for seed in range(4, 60)]])
async def test_commits_over_several_turns_survive_a_power_loss(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of which each turn does a step, amid checkpoints and paging, is whole or absent after a power loss, and
    so are the records that others append meanwhile, once confirmed.
    """
    monkeypatch.setattr(deadlines, "TURN_SHARE", 1)
    monkeypatch.setattr(tx, "STEP_UNITS", 1)
    random = Random(seed)
    disk = new_disk()
    mover: Mover | None = None
    moved = confirmed = 0
    for number in range(LIVES):
        life = Life(disk, new_history(), random)
        assert await life.begin()
        address = BrokerAddress("127.0.0.1", life.broker.listener.port)
        if mover is None:
            await asyncio.to_thread(fill, address, 400)
        else:
            await asyncio.to_thread(judge, address, mover, 400)
        found = {int(body) for body in await asyncio.to_thread(witnessed, address)}
        assert found >= set(range(confirmed)), "a confirmed message is lost"
        mover, witness = Mover(address, random), Witness(address, confirmed)
        disk.lose_at = disk.calls + random.randint(1, 200)
        mover.start()
        witness.start()
        await watch(mover, life)
        await life.kill()
        for thread in (mover, witness):
            await asyncio.to_thread(thread.join, 30)
        assert mover.error is None, repr(mover.error)
        moved += len(mover.committed)
        confirmed = witness.confirmed
        disk = disk.after_loss(seed * LIVES + number)
    assert moved, "too tame"
    assert confirmed, "too tame"
