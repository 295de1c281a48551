"""The broker dies while it seals tapped messages: each confirmed message is finally in slot files exactly once.

A reader follows and moves its cursor, so that files are removed while others are sealed. The files lose power, or one
call fails, at a place that a seed picks; then a real process on real files gets kill -9.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from broker.amqp.errors import BrokerError
from broker.cli.control_client import Unanswered, ask
from broker.slot_files.seal_log import decode_lines
from broker.slot_files.seal_view import SealView
from broker.slot_files.slot_view import open_slot
from broker.taps.cursors import TapRefused
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.fault.broker_life import Life, new_disk, new_history
from tests.fault.faulty_files import FaultyFiles, PowerLost
from tests.fault.tap_reader import EXCHANGE, QUEUE, TAP, TapLedger, TapReader, number_of, publish_batches
from tests.raw_client import PeerGone

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("quiet")]

SEEDS: Final = range(12)
LIVES: Final = 4
GONE: Final = (PeerGone, ConnectionError, PowerLost, BrokerError, TapRefused)


async def tapped_life(disk: FaultyFiles, random: Random) -> Life | None:
    """Return a broker with a tap on the remaining files, or None when it died at once."""
    life = Life(disk, new_history(), random)
    windows = {
        "window_messages": random.choice((5, 60)),
        "window_bytes": random.choice((4096, 1 << 20)),
        "window_ms": 30,
    }
    settings = life.broker.settings
    life.broker.shared.settings = settings.model_copy(update={"taps": settings.taps.model_copy(update=windows)})
    if not await life.begin():
        return None
    try:
        vhost = life.broker.vhosts["/"]
        if EXCHANGE not in vhost.exchanges:
            vhost.exchanges.declare(EXCHANGE, "topic", durable=True)
        vhost.queues.declare(QUEUE, durable=True)
        vhost.bindings.bind(QUEUE, EXCHANGE, "a.#")
        await life.broker.taps.add("/", EXCHANGE, "a.#", name=TAP, cursors=["reader"])
    except GONE:
        await life.kill()
        return None
    return life


async def follow(life: Life, reader: TapReader) -> None:
    """Read the new slot files, and release them."""
    taps = life.broker.taps
    reader.read(taps.view, taps.slot_path, life.files.read)
    await taps.cursors.set("reader", "/", TAP, reader.seal)
    taps._retention.soon()


async def work(life: Life, ledger: TapLedger, reader: TapReader, moments: int) -> None:
    """Publish, seal and read until the broker dies, for this many moments at most."""
    taps, random = life.broker.taps, life.random
    loop = asyncio.get_running_loop()

    def publish() -> None:
        try:
            publish_batches(life.broker.listener.port, ledger, Random(random.random()), lambda: life.failed)
        except GONE:
            assert life.failed, "the broker hung up"

    publishing = loop.run_in_executor(life._threads, publish)
    tasks: set[asyncio.Task[Any]] = set()
    for _ in range(moments):
        await asyncio.sleep(random.choice((0, 0.002, 0.01)))
        if life.failed:
            break
        life.moment()
        taps.tick()
        try:
            if random.random() < 0.2:
                tasks.add(loop.create_task(taps.seal()))
            if random.random() < 0.3:
                await asyncio.wait_for(follow(life, reader), 5)
        except (TimeoutError, *GONE):
            break
    life.files.die()
    await life.kill()
    life._close_sockets()
    await publishing
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def run(seed: int) -> tuple[TapLedger, TapReader]:
    """Start and kill a broker a few times on one disk; read everything in the end."""
    random = Random(seed)
    ledger, reader, disk = TapLedger(), TapReader(), new_disk()
    for number in range(LIVES):
        life = await tapped_life(disk, random)
        if life is not None:
            if random.random() < 0.6:
                disk.lose_at = disk.calls + random.randint(1, 400)
            elif random.random() < 0.6:
                disk.fail_at, disk.partial = disk.calls + random.randint(1, 400), True
            await work(life, ledger, reader, random.randint(5, 60))
        disk = disk.after_loss(seed * LIVES + number) if random.random() < 0.7 else disk.after_kill()
        disk.lose_at = random.randint(1, 120) if random.random() < 0.3 else 0
    disk.lose_at = 0
    last = await tapped_life(disk, random)
    while last is None:
        disk = disk.after_kill()
        last = await tapped_life(disk, random)
    await last.broker.taps.seal()
    await follow(last, reader)
    assert last.broker.vhosts["/"].queues[f"amq.tap.{TAP}"].ready == 0
    taken = await last.broker.taps.snapshots.take("/", QUEUE)
    paths = [last.broker.taps.snapshots.path(taken["id"], file["n"]) for file in taken["files"]]
    queued = {number_of(row) for path in paths for row in open_slot(last.files.read(path))}
    await last.stop()
    heard = {number for number in reader.numbers if number % 2 == 0}
    assert heard == queued, f"seed {seed}: a slot file has what the log lost, or lacks what it has"
    return ledger, reader


@pytest.mark.slow
async def test_each_confirmed_message_is_in_a_slot_file_once() -> None:
    """Each confirmed message survives once, with log, slot files, seals and cursors torn anywhere between two syncs."""
    confirmed = read = 0
    for seed in SEEDS:
        ledger, reader = await run(seed)
        assert ledger.judge(reader.numbers) == [], f"seed {seed}"
        assert reader.ids == sorted(set(reader.ids)), f"seed {seed}: an id came twice"
        confirmed, read = confirmed + len(ledger.confirmed), read + len(reader.numbers)
    assert min(confirmed, read) > 500, "the scenario is too tame"


@pytest.mark.torture
@pytest.mark.timeout(0)
async def test_each_confirmed_message_is_in_a_slot_file_once_over_a_thousand_deaths() -> None:
    """Each confirmed message is in a slot file once, over a thousand deaths."""
    for seed in range(100, 400):
        ledger, reader = await run(seed)
        assert ledger.judge(reader.numbers) == [], f"seed {seed}"
        assert reader.ids == sorted(set(reader.ids)), f"seed {seed}: an id came twice"


@pytest.mark.slow
def test_kill9_while_sealing(broker_process: BrokerProcess) -> None:
    """After kills of a real process the reader has each confirmed message once; files behind its cursor are gone."""
    broker_process.environment |= {
        "SLOTMQ_TAPS__WINDOW_MESSAGES": "50",
        "SLOTMQ_TAPS__WINDOW_MS": "100",
        "SLOTMQ_STORE__SEGMENT_BYTES": str(1 << 20),
        "SLOTMQ_STORE__CHECKPOINT_INTERVAL_MS": "1000",
    }
    random, ledger, reader = Random(5), TapLedger(), TapReader()
    slots = broker_process.folder / "slots"

    def view() -> SealView:
        found = SealView()
        for line in decode_lines((slots / "seals.log").read_bytes())[0]:
            found.fold(line)
        return found

    def is_cursor_set() -> bool:
        try:
            ask(broker_process.folder, "cursor_set", name="reader", vhost="/", tap=TAP, seal=reader.seal)
        except Unanswered as refused:  # the file may have a line that is not synced yet
            assert "was sealed yet" in str(refused)
            return False
        return True

    def follow_files() -> None:
        reader.read(view(), lambda seal: slots / f"{seal:020}.slot", Path.read_bytes)
        wait_until(is_cursor_set, "a cursor behind the last seal")

    for life in range(4):
        broker_process.start()
        if not life:
            publish_batches(broker_process.address.port, ledger, random, lambda: False, most=1)  # declares the exchange
            ask(broker_process.folder, "tap_add", exchange=EXCHANGE, pattern="#", name=TAP, cursors=["reader"])
            ledger.confirmed.clear()
        publish_batches(broker_process.address.port, ledger, random, lambda: False, most=random.randint(300, 1500))
        if life % 2:
            wait_until(lambda: view().last_seal > reader.seal, "a sealed slot")
            follow_files()
        time.sleep(random.random() * 0.1)  # not a wait for an event: the moment of the kill, while slots are sealed
        assert not broker_process.errors()
        broker_process.kill()
    broker_process.start()
    ask(broker_process.folder, "seal")
    follow_files()
    assert ledger.judge(reader.numbers) == []
    assert reader.ids == sorted(set(reader.ids))
    wait_until(lambda: not list(slots.glob("*.slot")), "the files that were passed are gone")
    assert not broker_process.errors()
    assert broker_process.terminate() == 0


def test_a_damaged_slot_file_is_a_gap_not_a_broken_start(broker_process: BrokerProcess) -> None:
    """A slot file that lost its end, or is missing, is reported; the others stay."""
    ledger = TapLedger()
    broker_process.start()
    publish_batches(broker_process.address.port, ledger, Random(1), lambda: False, most=1)
    ask(broker_process.folder, "tap_add", exchange=EXCHANGE, pattern="#", name=TAP)
    for _ in range(3):
        publish_batches(broker_process.address.port, ledger, Random(1), lambda: False, most=1)
        ask(broker_process.folder, "seal")
    broker_process.kill()
    files = sorted((broker_process.folder / "slots").glob("*.slot"))
    assert len(files) == 3
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-10])
    broker_process.start()
    (row,) = ask(broker_process.folder, "taps")
    assert (row["slots"], row["first_seal"]) == (1, 3)
    assert [event["reason"] for event in broker_process.log_events() if event["event"] == "slot_file.lost"] == [
        "missing",
        "damaged",
    ]
    assert broker_process.terminate() == 0
