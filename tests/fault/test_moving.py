"""kill -9 and power losses in the middle of a move: each message is in the source or in the target, once."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from broker.cli.control_client import Unanswered, ask
from broker.core.moving import move as move_module
from broker.core.moving.move import Move, MoveTally
from broker.core.moving.placement import to_exchange
from broker.operations import moving as operations
from broker.operations.moving import carry_out
from broker.store.damage import StoreFailed
from tests.broker_process import BrokerAddress, BrokerProcess
from tests.deadline import wait_until, wait_until_async
from tests.fault.broker_life import Life, new_disk, new_history
from tests.fault.faulty_files import PowerLost
from tests.fault.mover import SOURCE, TARGETS, contents, fill
from tests.fault.test_kill9 import SMALL_STORE

pytestmark = pytest.mark.fault

MESSAGES = 3000
LIVES = 3
POWER_LOSSES = 5
FEW = 700  # on a disk in memory


class Order(threading.Thread):
    """An operator who repeats a move until the broker ends or the queue is empty."""

    def __init__(self, folder: Any, to: str) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.to = to
        self.moved = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Request one move."""
        try:
            self.moved = ask(self.folder, "move", queue=SOURCE, to=self.to, on_progress=self.hear)["moved"]
        except Unanswered:
            pass  # the broker died meanwhile
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.error = error

    def hear(self, so_far: Any) -> None:
        """Record the reported number of moved messages."""
        self.moved = so_far["moved"]


def judge(address: BrokerAddress, count: int, at_least: int) -> int:
    """Assert that each message is in the source or in both targets, in order; return how many have moved."""
    source = numbers(contents(address, SOURCE))
    first, second = (numbers(contents(address, queue)) for queue in TARGETS)
    assert first == second == list(range(len(first)))
    assert source == list(range(len(first), count))
    assert len(first) >= at_least, "what was said to be moved was not"
    return len(first)


def numbers(bodies: list[bytes]) -> list[int]:
    """Return the numbers of these messages."""
    return [int(body.rstrip(b"\0")) for body in bodies]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.torture)])
def test_a_move_survives_kill_9(broker_process: BrokerProcess, seed: int) -> None:
    """After a kill in the middle of a move, each message is in its old queue or in its new ones."""
    random = Random(seed)
    broker_process.environment |= SMALL_STORE
    broker_process.start()
    fill(broker_process.address, MESSAGES)
    moved = 0
    for _life in range(LIVES):
        order = Order(broker_process.folder, "amq.fanout")
        enough = random.randrange(MESSAGES // LIVES)
        order.start()
        wait_until(lambda: order.moved >= enough or not order.is_alive(), f"{enough} moved")  # noqa: B023
        time.sleep(random.random() * 0.02)  # not a wait for an event: the moment of the kill, between two batches
        assert not broker_process.errors()
        broker_process.kill()
        order.join(30)
        assert order.error is None, repr(order.error)
        if random.random() < 0.3:
            broker_process.spawn()  # killed again during recovery
            time.sleep(random.random() * 0.6)
            broker_process.kill()
        broker_process.start()
        moved = judge(broker_process.address, MESSAGES, moved + order.moved)
    assert moved, "too tame"
    left = ask(broker_process.folder, "move", queue=SOURCE, to="amq.fanout")
    assert left["moved"] == MESSAGES - moved
    broker_process.restart(kill=False)
    assert judge(broker_process.address, MESSAGES, MESSAGES) == MESSAGES


async def move_until_the_end(life: Life) -> int:
    """Move messages until power is lost; return how many were reported as moved."""
    (engine,) = life.broker.engines.values()
    vhost, said = engine.vhost, [0]

    def step(tally: MoveTally) -> str:
        said.append(tally.moved)
        return ""

    find_placement = to_exchange(vhost, vhost.exchanges["amq.fanout"], None)
    move = Move(vhost, vhost.queues[SOURCE], find_placement, wanted=lambda _message: True)
    work = asyncio.ensure_future(carry_out(engine, move, step))
    await wait_until_async(lambda: life.failed or work.done(), "the end of the move, or of the broker")
    work.cancel()
    with suppress(PowerLost, StoreFailed, asyncio.CancelledError):
        await work
    return said[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("seed", range(6))
async def test_a_move_survives_a_power_loss(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that kept the synced bytes, and any part of the rest, has each message exactly once."""
    monkeypatch.setattr(operations, "STEP_MESSAGES", 40)
    monkeypatch.setattr(move_module, "BATCH_COPIES", 10)
    random = Random(seed)
    disk = new_disk()
    moved = cut_short = 0
    for number in range(POWER_LOSSES):
        life = Life(disk, new_history(), random)
        assert await life.begin()
        address = BrokerAddress("127.0.0.1", life.broker.listener.port)
        if number:
            moved = await asyncio.to_thread(judge, address, FEW, moved)
        else:
            await asyncio.to_thread(fill, address, FEW)
        disk.lose_at = disk.calls + random.randint(1, 60)
        moved += await move_until_the_end(life)
        cut_short += moved < FEW
        await life.kill()
        disk = disk.after_loss(seed * POWER_LOSSES + number)
    assert cut_short, "too tame"
