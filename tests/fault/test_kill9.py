"""kill -9 while publishers and consumers work: no confirmed message is lost, and none comes from nowhere.

A real process, real files, real sockets. The page cache outlives the process, so these tests do not cover a power
loss. They test the order of the broker's own operations, at moments that a seed picks.
"""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.fault.crowd import QUEUES, Consumer, Member, Publisher, declare, drain
from tests.fault.ledger import Ledger, counts

pytestmark = pytest.mark.fault

PUBLISHERS = 4
SMALL_STORE = {
    # Small segments and frequent checkpoints make few messages pass through rolls, seals, checkpoints and compaction.
    "SLOTMQ_STORE__SEGMENT_BYTES": str(1 << 20),
    "SLOTMQ_STORE__CHECKPOINT_INTERVAL_MS": "1000",
    "SLOTMQ_SLOTS__WINDOW_MESSAGES": "200",
    "SLOTMQ_MEMORY__RESIDENT_MAX_BYTES": str(4 << 20),
}


def run_lives(process: BrokerProcess, seed: int, kills: int) -> Ledger:
    """Let the crowd work and kill the broker this many times; drain the last life and return the ledger."""
    random = Random(seed)
    ledger = Ledger()
    publishers = [Publisher(f"p{number}", Random(random.random())) for number in range(PUBLISHERS)]
    process.start()
    declare(process.address)
    for life in range(1, kills + 1):
        ledger.life = life
        confirmed, moment = len(ledger.confirmed), random.randint(1, 1500)
        members = [Member(process.address, ledger, publisher) for publisher in publishers]
        # One queue at a time is left to grow, so that the run includes backlogs and paging.
        consumed = [queue for number, queue in enumerate(QUEUES) if (life + number) % 3]
        members += [Member(process.address, ledger, Consumer(queue, Random(random.random()))) for queue in consumed]
        for member in members:
            member.start()
        wait_until(lambda: len(ledger.confirmed) - confirmed >= moment or not process.alive, f"{moment} confirms")  # noqa: B023
        time.sleep(random.random() * 0.05)  # not a wait for an event: the moment of the kill, between two confirms
        assert process.alive, f"the broker died by itself, seed {seed}, life {life}:\n{process.stderr()[-4000:]}"
        assert not process.errors(), f"seed {seed}, life {life}: {process.errors()}"
        process.kill()
        for member in members:
            member.join(30)
            assert not member.is_alive(), "a client did not notice that the broker is gone"
            assert member.error is None, f"seed {seed}, life {life}: {member.error!r}"
        if random.random() < 0.3:
            process.spawn()  # killed again during recovery or just after
            time.sleep(random.random() * 0.6)
            process.kill()
        process.start()
    drain(process.address, ledger)
    return ledger


def judge(ledger: Ledger, seed: int) -> None:
    """Assert that the ledger shows no fault, and that the run did enough work."""
    verdict = ledger.verdict(tuple(QUEUES))
    assert not verdict.faults(), f"seed {seed}: {verdict.faults()} in {counts(ledger)}"
    assert ledger.confirmed and verdict.duplicates, f"seed {seed}: too tame, {counts(ledger)}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.torture)])
def test_kill9_loses_nothing_confirmed(broker_process: BrokerProcess, seed: int) -> None:
    """Over a few kills every confirmed message is consumed in order and intact, and repeated only as redelivered."""
    broker_process.environment |= SMALL_STORE
    ledger = run_lives(broker_process, seed, kills=4)
    judge(ledger, seed)
    # Drained and acked messages stay away after a clean stop.
    broker_process.restart(kill=False)
    again = Ledger(attempted=ledger.attempted, sizes=ledger.sizes)
    drain(broker_process.address, again)
    assert not again.deliveries


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 140))
def test_kill9_hundreds_of_times(broker_process: BrokerProcess, seed: int) -> None:
    """Confirmed messages survive hundreds of kills, with small and with default limits."""
    if seed % 2:
        broker_process.environment |= SMALL_STORE
    judge(run_lives(broker_process, seed, kills=10), seed)
