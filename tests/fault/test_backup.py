"""`slotmq backup`: the copy of a running broker has everything confirmed before, and an incomplete copy is refused."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import socket
import subprocess
import sys
import threading
from hashlib import sha256
from itertools import count
from pathlib import Path
from random import Random

import aio_pika
import pika
import pytest
from pamqp import commands

from broker.administration.backups import Backups
from broker.amqp.errors import BrokerError
from broker.cli.control_client import Unanswered, ask
from broker.net.control_address import socket_address
from broker.slot_files.slot_view import open_slot
from broker.store.backup import BLOCK_BYTES, STAGING, UNFINISHED, Backup
from broker.store.damage import NoDataFolder
from broker.store.data_folder import DataFolder
from broker.store.files import PIECES_AT_ONCE, File, Files
from broker.store.memory_files import MemoryFiles
from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S, wait_until
from tests.fault.broker_clients import Client
from tests.fault.broker_life import FOLDER, Life, new_disk, new_history
from tests.fault.faulty_files import FaultyFiles, PowerLost
from tests.in_process import client_of, running_broker
from tests.raw_client import RawClient, publish_frames
from tests.raw_talk import mortal_broker, talk

pytestmark = pytest.mark.fault

PERSISTENT = commands.Basic.Properties(delivery_mode=2)
LARGE = b"." * 20_000  # fifty of them fill a segment
SMALL_STORE = {
    "SLOTMQ_STORE__SEGMENT_BYTES": str(1 << 20),
    "SLOTMQ_STORE__CHECKPOINT_INTERVAL_MS": "1000",
    "SLOTMQ_SLOTS__WINDOW_MESSAGES": "20",
    "SLOTMQ_MEMORY__RESIDENT_MAX_BYTES": str(1 << 20),
}


class Traffic:
    """Publishes to a queue that only grows, and to one that is consumed at the same rate, until it is told to end.

    Shapes: ``confirmed`` counts the confirmed messages of the first queue, whose bodies begin with 1, 2, 3 ...
    """

    def __init__(self, process: BrokerProcess) -> None:
        self.confirmed = 0
        self.error: Exception | None = None
        self._process = process
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            with pika.BlockingConnection(pika.URLParameters(self._process.address.url)) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                for queue in ("kept", "passing"):
                    channel.queue_declare(queue, durable=True)
                properties = pika.BasicProperties(delivery_mode=2)
                while not self._ends.is_set():
                    number = self.confirmed + 1
                    channel.basic_publish("", "passing", b"%d %b" % (number, LARGE), properties)
                    channel.basic_publish("", "kept", b"%d %b" % (number, LARGE), properties)
                    self.confirmed = number
                    while (got := channel.basic_get("passing"))[0] is not None:
                        channel.basic_ack(got[0].delivery_tag)
        except pika.exceptions.AMQPError as error:
            self.error = error

    def end(self) -> None:
        """Stop publishing and return when the publisher has ended."""
        self._ends.set()
        self._thread.join()


def numbers(process: BrokerProcess) -> list[int]:
    """Return the numbers of the messages in the queue that only grows."""
    with pika.BlockingConnection(pika.URLParameters(process.address.url)) as connection:
        channel = connection.channel()
        left = channel.queue_declare("kept", durable=True, passive=True).method.message_count
        bodies = [channel.basic_get("kept", auto_ack=True)[2] for _ in range(left)]
    assert all(body.endswith(b" " + LARGE) for body in bodies)
    return [int(body.split()[0]) for body in bodies]


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the content of a folder."""
    return {path: sha256(path.read_bytes()).digest() for path in folder.rglob("*") if path.is_file()}


def backup(process: BrokerProcess, target: Path) -> subprocess.Popen[str]:
    """Start the backup command."""
    command = [sys.executable, "-m", "broker", "backup", str(target), "--data-dir", str(process.folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_broker_at_work(broker_process: BrokerProcess, tmp_path: Path) -> None:
    """Each of several backups has everything confirmed before it, starts cleanly, and is a separate broker."""
    broker_process.environment |= SMALL_STORE
    broker_process.start()
    traffic = Traffic(broker_process)
    targets, known, held = [], [], []
    try:
        for n in range(1, 5):
            wait_until(lambda: traffic.confirmed >= 100 * n, "more messages")  # noqa: B023
            known.append(traffic.confirmed)
            targets.append(tmp_path / "backups" / str(n))
            command = backup(broker_process, targets[-1])
            said, wrong = command.communicate(timeout=DEADLINE_S)
            assert (command.returncode, wrong) == (0, "")
            assert said.startswith(f"{targets[-1]}: ")
            held.append(contents(targets[-1]))
    finally:
        traffic.end()
    assert traffic.error is None
    broker_process.kill()
    assert [contents(target) for target in targets] == held  # whatever the broker did since then
    incarnations = {(broker_process.folder / "incarnation").read_text()}
    for target, confirmed in zip(targets, known, strict=True):
        assert not (target / "incarnation").exists()
        shutil.copytree(target, copy := tmp_path / f"restored-{target.name}")
        restored = BrokerProcess(copy)
        restored.environment |= SMALL_STORE
        try:
            restored.start()
            assert not [event for event in restored.log_events() if event["level"] != "info"]
            there = numbers(restored)
            assert there == list(range(1, len(there) + 1))
            assert confirmed <= len(there) <= traffic.confirmed + 1
            assert restored.terminate() == 0
        finally:
            restored.kill()
        incarnations.add((copy / "incarnation").read_text())
    assert len(incarnations) == 1 + len(targets)
    broker_process.start()
    assert numbers(broker_process)[: traffic.confirmed] == list(range(1, traffic.confirmed + 1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.torture) for seed in (2, 3))])
def test_a_kill_in_the_middle(broker_process: BrokerProcess, tmp_path: Path, seed: int) -> None:
    """An incomplete backup of a killed broker is refused by name; the broker itself has lost nothing."""
    broker_process.environment |= SMALL_STORE
    broker_process.start()
    traffic = Traffic(broker_process)
    target = tmp_path / "backup"
    try:
        wait_until(lambda: traffic.confirmed >= 150, "some messages")
        known = traffic.confirmed
        command = backup(broker_process, target)
        staging = broker_process.folder / STAGING
        sign = [target / "format", staging / "vhosts", target / "vhosts", target / "slots"][seed]
        wait_until(lambda: sign.exists() or command.poll() is not None, f"{sign} or the end")
        broker_process.kill()
    finally:
        traffic.end()
    command.communicate(timeout=DEADLINE_S)
    restored = BrokerProcess(target)
    restored.environment |= SMALL_STORE
    try:
        if (target / "format").read_bytes() == UNFINISHED:
            restored.spawn()
            assert restored.wait() == 2
            said = f"slotmq: {target}: not a data folder: an unfinished backup; remove it, and make another\n"
            assert restored.stderr() == said
        else:
            restored.start()
            assert len(numbers(restored)) >= known
    finally:
        restored.kill()
    broker_process.start()
    assert not (broker_process.folder / STAGING).exists()
    assert numbers(broker_process)[: traffic.confirmed] == list(range(1, traffic.confirmed + 1))


def test_who_asked_goes_away(broker_process: BrokerProcess, tmp_path: Path) -> None:
    """A command that is interrupted ends its backup, which leaves nothing in the data folder."""
    broker_process.start()
    staging = broker_process.folder / STAGING
    address, descriptor = socket_address(str(broker_process.folder))
    assert descriptor is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(address)
        request = {"verb": "backup", "target": str(tmp_path / "backup")}
        client.sendall(json.dumps(request).encode() + b"\n")
        assert b"progress" in client.recv(1000)

    def another() -> bool:
        try:
            return bool(ask(str(broker_process.folder), "backup", target=str(tmp_path / "another"))["files"])
        except Unanswered as refused:
            assert str(refused) == "a backup is already running"
            return False

    wait_until(another, "the end of the first backup")
    assert not staging.exists()
    assert broker_process.terminate() == 0
    assert not broker_process.errors()


def test_what_cannot_be_backed_up_to(broker_process: BrokerProcess, tmp_path: Path) -> None:
    """A non-empty folder, a file and a path in the data folder are refused in one line and left unchanged."""
    broker_process.start()
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious").write_text("x")
    folder = broker_process.folder
    for target, says in (
        (full, f"slotmq: {full}: not empty; a backup needs a folder of its own\n"),
        (full / "precious", f"slotmq: {full / 'precious'}: not a folder\n"),
        (folder / "in", f"slotmq: {folder / 'in'}: a backup cannot be inside the data folder or contain it\n"),
        (folder.parent, f"slotmq: {folder.parent}: a backup cannot be inside the data folder or contain it\n"),
        (Path("/proc/slotmq"), None),
    ):
        command = backup(broker_process, target)
        said, wrong = command.communicate(timeout=DEADLINE_S)
        assert (command.returncode, said, len(wrong.splitlines())) == (1, "", 1), wrong
        assert says in (wrong, None)
    assert list(full.iterdir()) == [full / "precious"]
    with pytest.raises(Unanswered, match="absolute"):
        ask(str(folder), "backup", target="relative")
    (tmp_path / "empty").mkdir()
    command = backup(broker_process, tmp_path / "empty")
    command.communicate(timeout=DEADLINE_S)
    assert command.returncode == 0
    assert broker_process.terminate() == 0
    assert not broker_process.errors() or {"backup.failed"} == {event["event"] for event in broker_process.errors()}


class OtherDisk(Files):
    """Real files without hard links, as between two disks."""

    def link(self, source: Path, target: Path) -> bool:
        """Do nothing."""
        return False


def message(body: bytes) -> aio_pika.Message:
    """Return a persistent message."""
    return aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)


@pytest.mark.parametrize("files", [Files(), OtherDisk()], ids=["links", "copies"])
async def test_everything_is_in_it(tmp_path: Path, files: Files) -> None:
    """A backup holds users, vhosts, slot files, cursors and unsealed tap messages beside queues; seals continue."""
    steps: set[str] = set()
    target = tmp_path / "backup"
    async with running_broker(tmp_path / "data", files, taps={"window_ms": 3_600_000}) as broker:
        await broker.administration.change(lambda draft: draft.add_vhost("x" * 250, {}))
        await broker.taps.add("/", "amq.topic", "#", name="all")
        async with client_of(broker) as channel:
            exchange = await channel.get_exchange("amq.topic")
            for body in (b"sealed", b"sealed too"):
                await exchange.publish(message(body), "k")
                await broker.taps.seal("/", "all")
            await broker.taps.cursors.set("reader", "/", "all", 0)
            await exchange.publish(message(b"waiting"), "k")
        closed = tmp_path / "data" / "vhosts" / "closed" / "log"  # like a damaged one that was not opened
        closed.mkdir(parents=True)
        (closed / "0000000001.log").write_bytes(b"damaged")
        backups = Backups(broker.data.folder, broker.administration, broker.taps)
        await backups.take(target, lambda step, _done, _total: steps.add(step))
        seals = broker.taps.view.seals
        assert not (tmp_path / "data" / STAGING).exists()
    assert steps == {"gathered vhosts", "copied bytes"}
    copied = target / "vhosts" / "closed" / "log" / "0000000001.log"
    assert (copied.read_bytes(), copied.stat().st_nlink) == (b"damaged", 1)
    async with running_broker(target, taps={"window_ms": 3_600_000}) as restored:
        assert sorted(restored.vhosts) == ["/", "x" * 250]
        assert restored.taps.view.seals == seals
        assert [one.seal for one in restored.taps.view.cursors] == [0]
        assert restored.taps.view.store == broker.taps.view.store
        await restored.taps.seal("/", "all")
        bodies = [
            [row.body for row in open_slot(restored.taps.slot_path(one.seal).read_bytes(), one.crc)]
            for one in restored.taps.view.seals
        ]
        assert bodies == [[b"sealed"], [b"sealed too"], [b"waiting"]]


@pytest.mark.parametrize("rest", [0, 1])
def test_what_is_longer_than_a_block_is_copied_whole(rest: int) -> None:
    """Files of several blocks, which cannot be linked, and a log of very many seals are the same in the backup."""
    files = MemoryFiles()
    data, target = Path("/data"), Path("/backup")
    files.make_folder(data)
    content = bytes(range(256)) * (3 * BLOCK_BYTES // 256) + bytes(rest)
    files.open(data / "format", create=True).write_at(0, b"format")
    files.open(data / "definitions", create=True).write_at(0, content)
    lines = [b"%d\n" % number for number in range(3 * PIECES_AT_ONCE + rest)]
    backup = Backup(files, data, target)
    backup.begin()
    backup.gather_settings()
    backup.gather_slots([], iter(lines))
    backup.copy(lambda _done, _total: None)
    assert files.read(target / "definitions") == content
    assert files.read(target / "slots" / "seals.log") == b"".join(lines)


class SlowDisk(OtherDisk):
    """Files that block a backup until the test releases them."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.reached, self.goes_on = threading.Event(), threading.Event()
        self.opened: list[Path] = []

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        if create and path.is_relative_to(self._target / "vhosts"):
            self.opened.append(path)
            self.reached.set()
            assert self.goes_on.wait(DEADLINE_S)
        return super().open(path, write=write, create=create)


async def test_a_stop_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup that is cancelled, as by a stop of the broker, ends; its target is incomplete, and another can begin.

    The error with which its work ended, and for which no one waits, is not a traceback in the log.
    """
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context["message"]))
    target = tmp_path / "backup"
    disk = SlowDisk(target)
    monkeypatch.setattr("broker.administration.backups.PROGRESS_REPEAT_S", 0.01)
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with running_broker(tmp_path / "data", disk) as broker:
        backups = Backups(broker.data.folder, broker.administration, broker.taps)
        taking = asyncio.create_task(backups.take(target, lambda step, _done, _total: heard.put_nowait(step)))
        await asyncio.to_thread(disk.reached.wait, DEADLINE_S)
        for _ in range(20):  # although nothing continues, the client gets the error
            await asyncio.wait_for(heard.get(), DEADLINE_S)
        with pytest.raises(ValueError, match="a backup is already running"):
            await backups.take(tmp_path / "second", lambda _step, _done, _total: None)
        taking.cancel()
        asyncio.get_running_loop().call_later(0.2, disk.goes_on.set)
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert disk.goes_on.is_set()  # it waited for its thread
        assert not (tmp_path / "data" / STAGING).exists()
        assert (target / "format").read_bytes() == UNFINISHED
        await backups.take(tmp_path / "second", lambda _step, _done, _total: None)
        assert (tmp_path / "second" / "format").read_bytes() == (tmp_path / "data" / "format").read_bytes()
    assert len(disk.opened) == 1
    assert (target / "format").read_bytes() == UNFINISHED
    gc.collect()
    assert complaints == []


KEPT = [b"%d" % number for number in range(40)]
TARGET = FOLDER.parent / "backup"


def fill(client: Client) -> None:
    """Publish some messages with confirms to a separate queue."""
    raw: RawClient = client.raw
    raw.open_channel(9)
    raw.call(9, commands.Confirm.Select(), commands.Confirm.SelectOk)
    raw.call(9, commands.Queue.Declare(queue="kept", durable=True), commands.Queue.DeclareOk)
    for body in KEPT:
        raw.send(publish_frames(9, "", "kept", body * 100, properties=PERSISTENT))
        raw.expect(commands.Basic.Ack, 9)


def drain(port: int) -> list[bytes]:
    """Drain that queue."""
    with RawClient("127.0.0.1", port).with_channel() as client:
        declared = client.call(1, commands.Queue.Declare(queue="kept", passive=True), commands.Queue.DeclareOk)
        client.call(1, commands.Basic.Consume(queue="kept", no_ack=True), commands.Basic.ConsumeOk)
        bodies = []
        for _ in range(declared.message_count or 0):
            client.expect(commands.Basic.Deliver, 1)
            bodies.append(client.expect_content(1)[1])
        return bodies


async def found(disk: FaultyFiles, folder: Path) -> list[bytes]:
    """Return the content of a broker on a folder."""
    async with mortal_broker(folder, {"server": {"control_socket": False}}, files=disk) as broker:
        return await talk(broker, drain, broker.listener.port)


async def die_in_backup(n: int) -> bool:
    """Kill the broker at the n-th file call of a backup; return whether there are this many calls."""
    disk = new_disk()
    life = Life(disk, new_history(), Random(n))
    assert await life.begin()
    await life.say(fill, "filler")
    backups = Backups(life.broker.data.folder, life.broker.administration, life.broker.taps)
    disk.lose_at = disk.calls + n
    try:
        await backups.take(TARGET, lambda _step, _done, _total: None)
        whole = not life.files.dead
    except (PowerLost, BrokerError, ValueError):
        whole = False
    await life.kill()
    for after in (disk.after_kill(), disk.after_loss(n), disk.after_loss(n, kept=0.0)):
        assert await found(after, FOLDER) == [body * 100 for body in KEPT]
        assert not after.exists(FOLDER / STAGING)
        if whole or (after.exists(TARGET / "format") and after.read(TARGET / "format") not in (UNFINISHED, b"")):
            assert await found(after, TARGET) == [body * 100 for body in KEPT]
        elif after.exists(TARGET / "format"):
            with pytest.raises(NoDataFolder, match="an unfinished backup"):
                DataFolder.open(after, TARGET)
        elif after.exists(TARGET):
            assert set(after.list(TARGET)) <= {"format.unfinished"}
    return not whole


async def test_each_file_call_of_a_backup_is_the_last() -> None:
    """Wherever power or process end, the broker has all confirmed messages, and the backup is complete or refused."""
    for n in count(1, 5):
        if not await die_in_backup(n):
            break
    assert n > 40
