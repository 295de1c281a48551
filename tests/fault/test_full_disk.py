"""A broker on a full disk can be started again and drained, because it holds a reserve for that."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pamqp import commands

from broker.core.definitions.reading import NotStored
from broker.store.data_folder import DataFolder
from broker.taps.cursors import TapRefused
from tests.broker_process import BrokerAddress, BrokerProcess
from tests.fault.small_disk import NO_SPACE, SmallDisk
from tests.raw_client import RawClient, publish_frames
from tests.raw_talk import Sections, mortal_broker, talk

pytestmark = pytest.mark.fault

MIB = 1 << 20
DISK_BYTES = 64 * MIB
RESERVE_BYTES = 4 * MIB
FREE_MIN_BYTES = 6 * MIB
BODY = bytes(100_000)
MESSAGES = 200
STORE = {
    "reserve_bytes": RESERVE_BYTES,
    "disk_free_min_bytes": FREE_MIN_BYTES,
    "segment_bytes": MIB,
    "checkpoint_interval_ms": 1000,
}
PERSISTENT = pika.BasicProperties(delivery_mode=2)
PERSISTENT_RAW = commands.Basic.Properties(delivery_mode=2)


def body(number: int) -> bytes:
    """Return the body of one message."""
    return b"%d " % number + BODY


def fill_queue(address: BrokerAddress) -> None:
    """Publish the messages and return when all of them are confirmed."""
    with pika.BlockingConnection(pika.URLParameters(address.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("full", durable=True)
        channel.confirm_delivery()
        for number in range(MESSAGES):
            channel.basic_publish("", "full", body(number), PERSISTENT, mandatory=True)


def drain(address: BrokerAddress) -> None:
    """Drain the queue while a publisher is blocked, and wait for that publisher's confirm once there is space."""
    with RawClient(address.host, address.port).with_channel() as publisher:
        publisher.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        publish = publish_frames(1, "", "full", b"late", properties=commands.Basic.Properties(delivery_mode=2))
        publisher.send(publish)  # identifies the connection as a publisher; what it sends next is not read
        said = [publisher.next().value for _ in range(2)]
        assert {type(one) for one in said} == {commands.Connection.Blocked, commands.Basic.Ack}
        publisher.send(publish)
        with pika.BlockingConnection(pika.URLParameters(address.url)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=20)
            taken = []
            for method, _, content in channel.consume("full", inactivity_timeout=30):
                if method is None:
                    break
                taken.append(content)
                channel.basic_ack(method.delivery_tag)
                if len(taken) > MESSAGES:
                    break
            channel.cancel()
        assert taken == [*(body(number) for number in range(MESSAGES)), b"late"]
        publisher.expect(commands.Connection.Unblocked, 0)
        publisher.expect(commands.Basic.Ack, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Provide a real file system of 64 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "slotmq-test", str(folder)]
    try:
        made = subprocess.run(mount, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if made.returncode:
        pytest.skip(f"no file system may be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Fill the free space of a folder's disk."""
    piece = bytes(MIB)
    with (folder / "ballast").open("ab", buffering=0) as ballast:
        while True:
            try:
                ballast.write(piece)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                if len(piece) == 1:
                    return
                piece = piece[: len(piece) // 16 or 1]


def free_bytes(folder: Path) -> int:
    """Return the free space of a folder's disk."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


@pytest.fixture
def process(small_disk: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    """Provide a stopped broker with its data folder on the small disk."""
    process = BrokerProcess(tmp_path / "unused", "--data-dir", str(small_disk / "data"))
    process.environment |= {f"SLOTMQ_STORE__{name.upper()}": str(value) for name, value in STORE.items()}
    process.environment["SLOTMQ_FLOW__CHECK_INTERVAL_MS"] = "20"
    yield process
    process.kill()


@pytest.mark.parametrize("free_min_bytes", [FREE_MIN_BYTES, 0])
def test_a_real_disk_that_is_full(small_disk: Path, process: BrokerProcess, free_min_bytes: int) -> None:
    """A broker on a full disk is killed, started and drained twice; with free space, publishers are unblocked.

    Without a minimum of free space too: publishers are blocked while the reserve is missing.
    """
    process.environment["SLOTMQ_STORE__DISK_FREE_MIN_BYTES"] = str(free_min_bytes)
    reserve = small_disk / "data" / "reserve"
    process.start()
    assert reserve.stat().st_blocks * 512 == RESERVE_BYTES
    fill_queue(process.address)
    fill(small_disk)
    process.kill()
    assert free_bytes(small_disk) == 0
    process.start()
    process.restart()  # the rest of the reserve after the first start is enough for another
    assert 0 < free_bytes(small_disk) <= RESERVE_BYTES
    assert not reserve.exists()
    drain(process.address)
    assert free_bytes(small_disk) >= free_min_bytes
    assert reserve.stat().st_blocks * 512 == RESERVE_BYTES
    assert process.terminate() == 0


def test_publishers_fill_a_disk_without_a_minimum(small_disk: Path, process: BrokerProcess) -> None:
    """Publishers that fill the disk end the broker and read why; after the restart they wait until it is drained."""
    process.environment["SLOTMQ_STORE__DISK_FREE_MIN_BYTES"] = "0"
    process.start()
    fill_queue(process.address)
    with RawClient(process.address.host, process.address.port).with_channel() as publisher:
        fill(small_disk)  # a checkpoint may fail before the publish does
        publisher.send(publish_frames(1, "", "full", bytes(2 * MIB), properties=PERSISTENT_RAW))
        close = publisher.expect(commands.Connection.Close, 0)
    assert (close.reply_code, close.reply_text) == (541, f"INTERNAL_ERROR - the store failed: {NO_SPACE}")
    assert process.wait() == 1
    process.start()
    drain(process.address)
    assert process.terminate() == 0


def test_a_start_without_room_may_be_tried_again(small_disk: Path, process: BrokerProcess) -> None:
    """When another program has eaten the reserve, a start says so and exits 1; with room it recovers everything."""
    process.start()
    fill_queue(process.address)
    fill(small_disk)
    process.kill()
    (small_disk / "data" / "reserve").unlink()  # as the start does
    fill(small_disk)
    process.spawn()
    assert process.wait() == 1
    assert process.stderr() == f"slotmq: {small_disk / 'data'}: the data folder cannot be written: {NO_SPACE}\n"
    (small_disk / "ballast").unlink()
    process.start()
    with pika.BlockingConnection(pika.URLParameters(process.address.url)) as connection:
        assert connection.channel().queue_declare("full", passive=True).method.message_count == MESSAGES
    assert process.terminate() == 0


@pytest.mark.parametrize("free_min_bytes", [FREE_MIN_BYTES, 0])
async def test_a_disk_that_is_full(tmp_path: Path, free_min_bytes: int) -> None:
    """A broker on a full disk in memory, which every machine has, can be started again and drained."""
    disk = SmallDisk(DISK_BYTES)
    store = {**STORE, "disk_free_min_bytes": free_min_bytes}
    sections: Sections = {"store": store, "flow": {"check_interval_ms": 20}, "server": {"control_socket": False}}
    folder = tmp_path / "data"
    async with mortal_broker(folder, sections, files=disk, crash=True) as broker:
        assert disk.size(folder / "reserve") == RESERVE_BYTES
        await talk(broker, fill_queue, BrokerAddress("127.0.0.1", broker.listener.port))
        disk.fill()
    assert disk.free_bytes(folder) == 0
    async with mortal_broker(folder, sections, files=disk) as broker:
        assert not disk.exists(folder / "reserve")
        await talk(broker, drain, BrokerAddress("127.0.0.1", broker.listener.port))
        assert disk.size(folder / "reserve") == RESERVE_BYTES


async def test_slot_files_leave_the_logs_their_room(tmp_path: Path) -> None:
    """While the disk is full, tap messages wait in the log: they do not take the space that acks need."""
    disk = SmallDisk(DISK_BYTES)
    sections: Sections = {
        "store": STORE,
        "flow": {"check_interval_ms": 20},
        "server": {"control_socket": False},
        "taps": {"window_bytes": 1 << 30, "window_ms": 3_600_000},
    }
    folder = tmp_path / "data"
    async with mortal_broker(folder, sections, files=disk, crash=True) as broker:
        await broker.taps.add("/", "", "full", name="all")
        await talk(broker, fill_queue, BrokerAddress("127.0.0.1", broker.listener.port))
        disk.fill()
        assert not broker.taps.view.seals
    sections = {**sections, "taps": {"window_bytes": MIB // 2, "window_ms": 3_600_000}}
    async with mortal_broker(folder, sections, files=disk, crash=True) as broker:
        with pytest.raises(TapRefused, match="bytes free, which are reserved for the logs"):
            await broker.taps.seal("/", "all")
        assert disk.free_bytes(folder) >= RESERVE_BYTES // 4
        assert broker.taps.view.seals  # as far as a part of the reserve lasted
        await talk(broker, take_all, BrokerAddress("127.0.0.1", broker.listener.port))
        for engine in broker.engines.values():
            await engine.checkpointer.take()
        await broker.taps.remove("/", "all", drop=True)


def take_all(address: BrokerAddress) -> None:
    """Consume all messages with acks."""
    with pika.BlockingConnection(pika.URLParameters(address.url)) as connection:
        channel = connection.channel()
        for number in range(MESSAGES):
            method, _, content = channel.basic_get("full")
            assert content == body(number)
            channel.basic_ack(method.delivery_tag)


def test_the_reserve_counts_as_used_until_it_is_back() -> None:
    """Missing reserve does not count as free; it is restored in pieces once as much other space is free."""
    disk = SmallDisk(100 * MIB)
    path = Path("/data")
    folder = DataFolder.open(disk, path, reserve_bytes=20 * MIB)
    disk.others_bytes = 65 * MIB
    assert folder.reserve.free_bytes() // MIB == 14  # 34 fit, and some bytes are used by the folder itself
    assert not folder.reserve.allocate_piece()
    disk.others_bytes = 55 * MIB
    free = folder.reserve.free_bytes()
    assert [folder.reserve.allocate_piece() for _ in range(4)] == [True, True, True, False]
    assert folder.reserve.free_bytes() == free
    assert disk.size(path / "reserve") == 20 * MIB
    assert folder.reserve.missing_bytes == 0
    folder.close()
    disk.fill()
    again = DataFolder.open(disk, path, reserve_bytes=20 * MIB)
    assert not disk.exists(path / "reserve")
    assert again.reserve.free_bytes() == 0


def test_a_piece_that_is_refused_is_asked_for_again() -> None:
    """A quota that the free space does not show leaves the reserve missing, and the broker keeps running."""

    class Quota(SmallDisk):
        def free_bytes(self, folder: Path) -> int:
            return 1 << 40 if folder == path else super().free_bytes(folder)

    path = Path("/data")
    disk = Quota(100 * MIB)
    folder = DataFolder.open(disk, path, reserve_bytes=MIB)
    disk.fill()
    assert not folder.reserve.allocate_piece()
    disk.others_bytes = 0
    assert folder.reserve.allocate_piece()


async def test_changes_on_a_full_disk_are_refused(tmp_path: Path) -> None:
    """A change of users or vhosts changes nothing and ends no broker; with free space it goes."""
    disk = SmallDisk(DISK_BYTES)
    async with mortal_broker(tmp_path, {"store": STORE}, files=disk) as broker:
        change = broker.administration.change
        await change(lambda draft: draft.add_vhost("crm", {}))
        disk.fill()
        for edit in (lambda draft: draft.drop_vhost("crm"), lambda draft: draft.users.delete("guest")):
            with pytest.raises(NotStored, match=f"nothing was changed: .*{NO_SPACE}"):
                await change(edit)
        with pytest.raises(NotStored, match=f"cannot create vhost 'new': .*{NO_SPACE}"):
            await change(lambda draft: draft.add_vhost("new", {}))
        assert list(broker.vhosts) == ["/", "crm"]
        assert "guest" in broker.administration.users
        assert broker.failure is None
        disk.others_bytes = 0
        await change(lambda draft: draft.drop_vhost("crm"))
        assert list(broker.vhosts) == ["/"]
