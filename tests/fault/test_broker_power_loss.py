"""The whole broker loses power while clients use it: confirmed work survives, and nothing unrequested happened.

Real sockets, real threads, files in memory that keep what was synced and any part of the rest. A seed decides what
the clients do and when power is lost. It does not decide how the threads interleave, so a seed does not reproduce a
run exactly.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Final

import pytest

from broker.store.damage import StoreFailed
from tests.broker_process import PACKAGE, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until, wait_until_async
from tests.fault.broker_clients import CHURN, FANOUT, TOPIC, Client, prepare, recreate
from tests.fault.broker_history import NEVER, History
from tests.fault.broker_life import Life, new_disk, new_history
from tests.fault.faulty_files import FaultyFiles
from tests.raw_client import PeerGone, RawClient

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("quiet")]

SEEDS: Final = range(10)
TORTURE_SEEDS: Final = range(1_000, 3_000)
LIVES: Final = 3
MOMENTS_MAX: Final = 40
CALLS_PER_CRASH: Final = 9  # the short scenario dies at every ninth file call, in torture runs at each call
REREAD: Final = ("open queues/", "read queues/", "open log/", "read log/")  # calls that are retried
SHOWN: Final = 5


def check(history: History, seed: int) -> None:
    """Assert that the history has no faults."""
    shown = "\n".join(history.problems[:SHOWN])
    assert not history.problems, f"seed {seed}: {len(history.problems)} problems:\n{shown}"


def accident(disk: FaultyFiles, seed: int, random: Random) -> FaultyFiles:
    """Return the disk after a power loss, or after a kill that leaves the page cache."""
    return disk.after_loss(seed) if random.random() < 0.8 else disk.after_kill()


async def recover(disk: FaultyFiles, history: History, random: Random, seed: int, *, sync: bool = True) -> Life:
    """Start a broker on the remaining files, however often power is lost meanwhile, and check its content."""
    while True:
        disk.lose_at = random.randint(1, 80) if random.random() < 0.3 else 0
        life = Life(disk, history, random, sync=sync)
        if not await life.begin():
            disk = accident(disk, random.randrange(1 << 30), random)
            continue
        disk.lose_at = 0
        await life.find()
        return life


async def live_and_die(seed: int, *, sync: bool = True) -> tuple[History, dict[str, int]]:
    """Start and kill a broker several times on one disk; return the history and the other work done."""
    random = Random(seed)
    history, disk = new_history(), new_disk()
    done: dict[str, int] = {}
    life = Life(disk, history, random, sync=sync)
    assert await life.begin()
    for number in range(LIVES):
        if random.random() < 0.6:
            disk.lose_at = disk.calls + random.randint(1, 1000)
        elif random.random() < 0.5:
            disk.fail_at, disk.partial = disk.calls + random.randint(1, 1000), True
        await life.work(random.randint(1, MOMENTS_MAX))
        done = {name: done.get(name, 0) + count for name, count in life.count.items()}
        disk = accident(disk, seed * LIVES + number, random)
        life = await recover(disk, history, random, seed, sync=sync)
        disk = life.files.disk
        if history.problems:
            break
    await life.kill()
    return history, done


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(len(SEEDS) // 10))
async def test_confirmed_is_there_after_any_death(tens: int) -> None:
    """Confirmed messages survive, no message comes back or from nowhere, and order and redelivered flags are right."""
    did: dict[str, int] = {}
    for seed in SEEDS[tens * 10 : tens * 10 + 10]:
        history, done = await live_and_die(seed)
        check(history, seed)
        did = {name: did.get(name, 0) + count for name, count in done.items()}
    assert all(did.values()), f"the scenario is too tame: {did}"


@pytest.mark.parametrize("sync", [True, False])
async def test_confirmed_is_lost_without_sync_alone(sync: bool) -> None:
    """With --no-sync and a disk that wrote nothing by itself, the checks of these tests find the lost messages."""
    history, disk = new_history(), new_disk()
    life = Life(disk, history, Random(1), sync=sync)
    assert await life.begin()
    await life.say(prepare, "prepare")
    await life.say(publish_rounds, "publisher")
    await life.kill()
    life = await recover(disk.after_loss(1, kept=0), history, Random(1), 1, sync=sync)
    await life.kill()
    assert any(problem.startswith("lost: ") for problem in history.problems) is not sync


@pytest.mark.torture
@pytest.mark.timeout(0)
async def test_confirmed_is_there_after_thousands_of_deaths() -> None:
    """Confirmed messages survive thousands of deaths of the broker."""
    for seed in TORTURE_SEEDS:
        history, _ = await live_and_die(seed)
        check(history, seed)


# -- every file call of a short scenario ------------------------------------------------------------------------------


def settle_some(client: Client) -> None:
    """Ack, requeue and keep some messages of a queue."""
    client.consume("work-1", 8)
    while len(client.held) < 4:
        client.pump()
    client.settle(0, multiple=False)
    client.requeue(1)
    client.settle(1, reject=True)
    client.receipt()


def purge_some(client: Client) -> None:
    """Purge a queue while one of its messages is unacked."""
    client.get(CHURN)
    held = [number for _, _, number in client.held]
    removal = client.history.begin_removal(CHURN, deletes=False, held=held)
    client.purge(CHURN)
    client.history.end_removal(removal)
    client.receipt(removal)


def publish_rounds(client: Client) -> None:
    """Fill a few segments, in the same order each time."""
    for key in ("a.x", "b.x", "b.y", "c", "a.y.z") * 3:
        client.publish(TOPIC, key)
        client.publish(FANOUT, "any", persistent=False)
    client.await_confirms()


def delete_some(client: Client) -> None:
    """Delete a queue, declare it again and fill it."""
    client.receipt(recreate(client))
    publish_rounds(client)


async def errands(life: Life) -> None:
    """Run every operation that makes file calls, one after the other."""
    for name, work in {
        "prepare": prepare,
        "publish": publish_rounds,
        "settle": settle_some,
        "purge": purge_some,
        "delete": delete_some,
        "settle again": settle_some,
    }.items():
        if life.failed:
            break
        await life.say(work, name)
        await life.checkpoint()


async def die_at(n: int, *, fails: bool) -> bool:
    """Fail or die at the n-th file call of the short scenario; return whether there are this many calls."""
    history, disk = new_history(), new_disk()
    if fails:
        disk.fail_at, disk.partial = n, n % 2 == 0
    else:
        disk.lose_at = n
    life = Life(disk, history, Random(7))
    if await life.begin():
        await errands(life)
        # A broker works without its reserve, and a read that fails once and then succeeds reports no damage.
        spared = not life.failed and (disk.failed.endswith("/reserve") or disk.failed.startswith(REREAD))
        reached = life.failed or spared
        if fails and disk.failed and not spared:
            try:
                failure = await asyncio.wait_for(life.broker.wait_failed(), DEADLINE_S)
            except TimeoutError:
                raise AssertionError(f"call {n} ({disk.failed}) failed, and the broker goes on") from None
            assert isinstance(failure, StoreFailed), f"call {n} ({disk.failed}) failed, the broker with {failure!r}"
        await life.kill()
        if not reached:
            return False
    life = await recover(accident(disk, n, Random(n)), history, Random(n), n)
    check(history, n)
    await life.kill()
    return True


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True], ids=["crash", "failure"])
async def test_a_file_call_is_the_last(fails: bool) -> None:
    """Wherever the broker dies, in a file call or because the call fails, a restart has everything it confirmed."""
    n = 1
    while await die_at(n, fails=fails):
        n += CALLS_PER_CRASH
    assert n > 150, f"the scenario made only {n} calls"


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("fails", [False, True], ids=["crash", "failure"])
async def test_each_file_call_is_the_last(fails: bool) -> None:
    """The broker keeps what it confirmed when it dies at any single file call."""
    n = 1
    while await die_at(n, fails=fails):
        n += 1


# -- a sync that fails ------------------------------------------------------------------------------------------------


class SyncFails(FaultyFiles):
    """Files on which one sync of the log fails once the test arms it."""

    armed = False

    def called(self, verb: str, path: Path) -> None:
        if self.armed and verb == "sync" and path.parent.name == "log":
            self.armed = False
            self.fail_at = self.calls + 1
        super().called(verb, path)


@pytest.mark.parametrize("loss", [False, True], ids=["process restarted", "power lost"])
async def test_a_failed_sync_ends_the_broker(loss: bool) -> None:
    """One EIO from fsync ends the broker with StoreFailed; it confirms nothing more, and loses nothing confirmed."""
    history = new_history()
    disk = new_disk(SyncFails)
    assert isinstance(disk, SyncFails)
    life = Life(disk, history, Random(1))
    assert await life.begin()
    await life.say(prepare, "prepare")
    await life.say(publish_rounds, "publisher")

    def go_on(client: Client) -> None:
        client.publish(TOPIC, "a.x")
        wait_until(lambda: disk.failed, "the sync that fails")
        publish_rounds(client)

    def watch(client: Client) -> None:
        wait_until(lambda: disk.failed, "the sync that fails")
        publish_rounds(client)

    disk.armed = True
    before = max(history.sent)
    talks = [asyncio.ensure_future(life.say(work, work.__name__, watched=False)) for work in (go_on, watch)]
    failure = await asyncio.wait_for(life.broker.wait_failed(), DEADLINE_S)
    assert isinstance(failure, StoreFailed)
    assert failure.reason == "Input/output error"
    await wait_until_async(lambda: max(history.sent) >= before + 2, "publishing to the broker that failed")
    await life.kill()
    await asyncio.gather(*talks)
    late = [sent for sent in history.sent.values() if sent.number > before]
    assert all(sent.confirmed_at == NEVER for sent in late), "confirmed after the sync failed"

    life = await recover(disk.after_loss(1) if loss else disk.after_kill(), history, Random(2), 1)
    check(history, 1)
    await life.kill()


INJECTION: Final = """
import errno, os

sync = os.fdatasync


def fail(descriptor):
    if os.path.exists({flag!r}):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(descriptor)


os.fdatasync = fail
"""


def test_serve_exits_when_a_sync_fails(tmp_path: Path) -> None:
    """`slotmq serve` on a disk that reports EIO says so in one line, exits with 1, and confirms nothing more."""
    flag = tmp_path / "disk-is-broken"
    folder = tmp_path / "injected"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(INJECTION.format(flag=str(flag)), encoding="utf-8")
    process = BrokerProcess(tmp_path / "folder", environment={"PYTHONPATH": f"{folder}:{PACKAGE}"})
    history = new_history()
    try:
        process.start()
        client = Client(process.address.port, "publisher", history, Random(1)).open()
        with client.raw:
            prepare(client)
            flag.touch()
            client.publish("", CHURN)
            with pytest.raises(PeerGone):
                client.await_confirms()
        assert process.wait() == 1
        assert "the store failed, stopping: " in process.stderr()
        assert "Input/output error" in process.stderr()

        flag.unlink()
        process.start()
        with RawClient(process.address.host, process.address.port) as raw:
            raw.open()
    finally:
        process.kill()
