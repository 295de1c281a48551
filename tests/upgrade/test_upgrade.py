"""A data folder of an older version: this version opens it, survives failures while it does, and continues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pika
import pytest

from broker.amqp.errors import BrokerError
from broker.server import BrokerServer
from broker.settings import Server, Settings
from broker.settings.storage import Store
from tests.broker_process import BrokerProcess
from tests.fault.faulty_files import FaultyFiles, PowerLost
from tests.fault.mortal_files import MortalFiles
from tests.in_process import WITHOUT_HTTP
from tests.integration.pika.conversation import parameters
from tests.upgrade.contents import NUMBERED, SMALL, look, send_numbered
from tests.upgrade.recordings import CLEAN, FORMATS, KILLED, expected, unpack

pytestmark = pytest.mark.fault

FOLDER: Final = Path("/store/data")


@pytest.fixture(params=[(recorded, name) for recorded in FORMATS for name in (CLEAN, KILLED)], ids="-".join)
def recording(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Provide a recorded folder: its format, and how its broker ended."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def upgraded(recording: tuple[str, str], tmp_path: Path) -> Iterator[BrokerProcess]:
    """Provide a broker of this version that has opened a recorded folder."""
    process = BrokerProcess(unpack(*recording, tmp_path / "data"), environment=SMALL).start()
    yield process
    process.kill()


def test_everything_is_there(recording: tuple[str, str], upgraded: BrokerProcess) -> None:
    """Users, rights, topology, taps, cursors and all messages with headers are as in the older version."""
    assert look(upgraded) == expected(*recording)


def test_it_goes_on_from_there(recording: tuple[str, str], upgraded: BrokerProcess) -> None:
    """A producer's used numbers are still used, and killing this version loses nothing of the older version's data."""
    upgraded.restart()
    with pika.BlockingConnection(parameters(upgraded.address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for sequence in range(1, NUMBERED + 2):
            send_numbered(channel, sequence)
    upgraded.restart()
    then, now = expected(*recording), look(upgraded)
    then["messages"]["numbered"].append([f"number {NUMBERED + 1}", None])
    assert now == then
    assert upgraded.terminate() == 0
    upgraded.start()
    assert look(upgraded)["messages"]["backlog"] == then["messages"]["backlog"]


@pytest.mark.parametrize("lost", [pytest.param("process", marks=pytest.mark.torture), "power"])  # power loses more
async def test_an_upgrade_may_die(recording: tuple[str, str], tmp_path: Path, lost: str) -> None:
    """If this version is killed at any file call of its first start, the next start finds everything."""
    unpacked = unpack(*recording, tmp_path / "data")
    whole = await opened(on_disk(unpacked))
    deaths = 0
    while True:
        disk = on_disk(unpacked)
        before = disk.calls
        disk.lose_at = before + 1 + deaths
        if await opened(disk) is not None:
            break
        after = disk.after_kill() if lost == "process" else disk.after_loss(deaths)
        assert await opened(after) == whole, f"died at file call {disk.lose_at - before} of the start"
        deaths += 1
    assert deaths > 50


def on_disk(folder: Path) -> FaultyFiles:
    """Return a disk with a synced copy of a folder."""
    files = FaultyFiles(folder=FOLDER.parent)
    files.make_folder(FOLDER)
    for path in sorted(folder.rglob("*")):
        place = FOLDER / path.relative_to(folder)
        if path.is_dir():
            files.make_folder(place)
            continue
        file = files.open(place, create=True)
        file.write_at(0, path.read_bytes())
        file.sync()
        file.close()
    for path in sorted(files.folders):
        files.sync_folder(path)
    return files


async def opened(disk: FaultyFiles) -> dict[str, int | None] | None:
    """Start a broker on a disk and return its content, or None if it died before."""
    files = MortalFiles(disk)
    server = Server(port=0, data_dir=FOLDER, control_socket=False)
    store = Store(disk_free_min_bytes=0, reserve_bytes=5000)
    settings = Settings(server=server, store=store, **WITHOUT_HTTP)
    broker = BrokerServer(settings, files)
    try:
        await broker.start()
    except (PowerLost, BrokerError):
        if not files.dead:
            raise
        return None
    disk.lose_at = 0
    found: dict[str, int | None] = {
        f"{name} {queue.name}": queue.ready for name, vhost in broker.vhosts.items() for queue in vhost.queues.values()
    }
    found |= {f"user {name}": None for name in broker.administration.users}
    try:
        await broker.stop()
    except PowerLost:  # raised in a thread of the broker
        return None
    return found
