"""Parts of a data folder are missing at a start: it is refused, a vhost is offline, or the loss is accepted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import aio_pika
import pika
import pytest
from structlog.testing import capture_logs

from broker.amqp.errors import BrokerError
from broker.cli.control_client import ask
from broker.server import BrokerServer
from broker.settings import Server, Settings
from broker.settings.storage import Store
from broker.store.damage import MissingData, StoreFailed
from broker.store.data_folder import BEGUN
from tests.broker_process import BrokerProcess
from tests.fault.faulty_files import FaultyFiles, PowerLost
from tests.fault.mortal_files import MortalFiles
from tests.in_process import WITHOUT_HTTP, client_of, queue_of, running_broker

pytestmark = pytest.mark.fault

QUARANTINE: Final = {"SLOTMQ_STORE__ON_CORRUPTION": "quarantine"}
PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)
LONG: Final = "ü" * 120  # its folder has another name
HOW: Final = 'nothing was changed (to start without it: store.on_corruption = "quarantine")'


def connect(broker: BrokerProcess, user: str = "ann", vhost: str = "/") -> pika.BlockingConnection:
    """Log in; the passwords are the names."""
    login = pika.PlainCredentials(user, user)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.address.port, vhost, login))


def is_let_in(broker: BrokerProcess, user: str) -> bool:
    """Return whether a user can log in."""
    try:
        connect(broker, user).close()
    except (pika.exceptions.ProbableAuthenticationError, pika.exceptions.AuthenticationError):
        return False
    return True


def ready(broker: BrokerProcess, vhost: str, user: str = "ann") -> int:
    """Return how many messages the queue of a vhost has."""
    with connect(broker, user, vhost) as connection:
        found: int = connection.channel().queue_declare("q", durable=True, passive=True).method.message_count
        return found


def lost(broker: BrokerProcess) -> list[str]:
    """Return the paths of what the last start missed and continued without."""
    events = [event for event in broker.log_events() if event["event"] == "store.missing"]
    assert all(event["level"] == "error" and event["reason"] for event in events)
    return [event["path"] for event in events]


def refusal(broker: BrokerProcess) -> str:
    """Start a broker that refuses, and return its one line."""
    broker.spawn()
    assert broker.wait() == 1
    (line,) = [line for line in broker.stderr().splitlines() if not line.startswith("{")]
    return line


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Provide a data folder: guest is deleted, ann is an administrator, and each of three vhosts has a message."""
    broker = BrokerProcess(tmp_path_factory.mktemp("original") / "data").start()
    try:
        ask(broker.folder, "add_user", name="ann", password="ann", tags=["administrator"])
        for vhost in ("/", "crm", LONG):
            if vhost != "/":
                ask(broker.folder, "add_vhost", name=vhost)
            ask(broker.folder, "set_permission", user="ann", vhost=vhost, configure=".*", write=".*", read=".*")
            with connect(broker, vhost=vhost) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.queue_declare("q", durable=True)
                channel.basic_publish("", "q", b"m", PERSISTENT)
        ask(broker.folder, "delete_user", name="guest")
        assert broker.terminate() == 0
        yield broker.folder
    finally:
        broker.kill()


@pytest.fixture
def stopped(original: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    """Provide a stopped broker on a copy of that folder."""
    broker = BrokerProcess(shutil.copytree(original, tmp_path / "data"))
    yield broker
    broker.kill()


def test_definitions(stopped: BrokerProcess) -> None:
    """Without definitions the start is refused, each time; with a copy put back all is as it was."""
    definitions = stopped.folder / "definitions"
    kept = definitions.read_bytes()
    definitions.unlink()
    for _ in range(2):
        line = refusal(stopped)
        assert line.startswith(f"slotmq: {definitions}: it is missing, with all users")
        assert line.endswith(HOW)
        assert not definitions.exists()
    definitions.write_bytes(kept)
    stopped.start()
    assert is_let_in(stopped, "ann")
    assert not is_let_in(stopped, "guest")


def test_the_loss_of_definitions_is_accepted(stopped: BrokerProcess) -> None:
    """With quarantine a broker without definitions has its vhosts, but no users: guest is none either."""
    definitions = stopped.folder / "definitions"
    definitions.unlink()
    stopped.environment = QUARANTINE
    stopped.start()
    assert lost(stopped) == [str(definitions)]
    assert ask(stopped.folder, "list_users") == []
    assert not is_let_in(stopped, "guest")
    ask(stopped.folder, "add_user", name="bob", password="bob", tags=["administrator"])
    for vhost in ("/", "crm", LONG):
        ask(stopped.folder, "set_permission", user="bob", vhost=vhost, configure=".*", write=".*", read=".*")
        assert ready(stopped, vhost, "bob") == 1
    stopped.environment = {}
    stopped.restart()
    assert is_let_in(stopped, "bob")
    assert not is_let_in(stopped, "guest")


def test_definitions_of_a_folder_that_has_lost_its_mark(stopped: BrokerProcess) -> None:
    """Without `begun` definitions are missed when vhosts have queues; a start marks the folder again."""
    (stopped.folder / BEGUN).unlink()
    stopped.start()
    assert is_let_in(stopped, "ann")
    stopped.kill()
    assert (stopped.folder / BEGUN).exists()
    (stopped.folder / BEGUN).unlink()
    (stopped.folder / "definitions").unlink()
    assert "definitions: it is missing, with all users" in refusal(stopped)
    assert not (stopped.folder / "definitions").exists()


async def test_definitions_of_a_broker_without_queues() -> None:
    """The definitions are missed although nothing was ever declared: guest may have been deleted."""
    disk = FaultyFiles(folder=FOLDER.parent)
    assert await starts_whole(disk) == {"/"}
    after = disk.after_kill()
    after.remove(FOLDER / "definitions")
    with capture_logs(), pytest.raises(MissingData, match=r"/store/data/definitions: it is missing, with all users"):
        await server(MortalFiles(after)).start()
    assert not after.exists(FOLDER / "definitions")


def folder_of(folder: Path, vhost: str) -> Path:
    """Return the folder of one of the vhosts."""
    if vhost == "crm":
        return folder / "vhosts" / "crm"
    (found,) = (folder / "vhosts").glob("%%*")
    return found


def without_folder(folder: Path) -> None:
    """Remove a vhost's folder."""
    shutil.rmtree(folder)


def without_log(folder: Path) -> None:
    """Remove a vhost's log and its checkpoints."""
    shutil.rmtree(folder / "log")
    for path in folder.glob("checkpoint-*"):
        path.unlink()


def without_segments(folder: Path) -> None:
    """Remove the files of a vhost's log, and its checkpoints."""
    without_log(folder)
    (folder / "log").mkdir()


@pytest.mark.parametrize(
    ("vhost", "remove"),
    [("crm", without_folder), ("crm", without_log), ("crm", without_segments), (LONG, without_folder)],
    ids=["folder", "log", "segments", "folder of a long name"],
)
def test_a_vhost(stopped: BrokerProcess, original: Path, vhost: str, remove: Callable[[Path], None]) -> None:
    """A vhost whose log is missing goes offline, and nothing of it is made; with a copy put back it is there again."""
    folder = folder_of(stopped.folder, vhost)
    remove(folder)
    stopped.start()
    assert [down["vhost"] for down in ask(stopped.folder, "status")["vhosts_down"]] == [vhost]
    assert ready(stopped, "/") == 1
    (event,) = [event for event in stopped.log_events() if event["event"] == "vhost.offline"]
    assert f"{folder}/log: it is missing, and so are the checkpoints: the vhost is lost" in event["reason"]
    stopped.kill()
    assert not list(folder.glob("log/*"))
    shutil.copytree(folder_of(original, vhost), folder, dirs_exist_ok=True)
    stopped.start()
    assert ready(stopped, vhost) == 1


@pytest.mark.parametrize(("vhost", "remove"), [("crm", without_log), (LONG, without_folder)], ids=["log", "folder"])
def test_the_loss_of_a_vhost_is_accepted(stopped: BrokerProcess, vhost: str, remove: Callable[[Path], None]) -> None:
    """With quarantine a vhost whose log is missing is served empty, once: the next start misses nothing."""
    folder = folder_of(stopped.folder, vhost)
    remove(folder)
    stopped.environment = QUARANTINE
    stopped.start()
    assert lost(stopped) == [f"{folder}/log"]
    with connect(stopped, vhost=vhost) as connection:
        assert connection.channel().queue_declare("q", durable=True).method.message_count == 0
    assert ready(stopped, "/") == 1
    stopped.environment = {}
    stopped.restart()
    assert ready(stopped, vhost) == 0


def test_a_lost_vhost_is_given_up(stopped: BrokerProcess) -> None:
    """A vhost whose log is missing can be deleted; the next start does not miss it."""
    without_log(stopped.folder / "vhosts" / "crm")
    stopped.start()
    ask(stopped.folder, "delete_vhost", name="crm")
    assert not (stopped.folder / "vhosts" / "crm").exists()
    stopped.restart()
    assert not ask(stopped.folder, "status")["vhosts_down"]


async def test_numbers_of_a_lost_vhost_are_not_given_again(tmp_path: Path) -> None:
    """A new queue of a vhost that was lost has no number of a queue whose slot files are still there."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        for number in range(3):
            await channel.declare_queue(f"q{number}", durable=True)
        await broker.taps.add("/", "", "q2", name="t", cursors=["reader"])
        message = aio_pika.Message(b"m", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, "q2")
        await broker.taps.seal()
        (seal,) = broker.taps.view.seals
    shutil.rmtree(tmp_path / "vhosts" / "%2F")
    async with running_broker(tmp_path, store={"on_corruption": "quarantine"}) as broker, client_of(broker) as channel:
        assert broker.taps.view.seals == [seal]
        await channel.declare_queue("new", durable=True)
        assert queue_of(broker, "new").number > seal.number > 1


def test_all_vhosts(stopped: BrokerProcess) -> None:
    """Without any of its vhosts a broker does not start, and names one."""
    shutil.rmtree(stopped.folder / "vhosts")
    line = refusal(stopped)
    assert "/log: it is missing, and so are the checkpoints: the vhost is lost" in line
    assert line.endswith(HOW)
    assert not list((stopped.folder / "vhosts").glob("*/log"))
    stopped.environment = QUARANTINE
    stopped.start()
    assert len(lost(stopped)) == 3
    assert is_let_in(stopped, "ann")


@pytest.mark.parametrize("gone", ["slots", "slots/seals.log"])
def test_slot_files(stopped: BrokerProcess, gone: str) -> None:
    """Without its log of slot files, which it always has, a start is refused; accepted, it begins a new one."""
    path = stopped.folder / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    line = refusal(stopped)
    assert line.startswith(f"slotmq: {stopped.folder}/slots/seals.log: it is missing, with all slot files")
    assert line.endswith(HOW)
    assert not (stopped.folder / "slots" / "seals.log").exists()
    stopped.environment = QUARANTINE
    stopped.start()
    assert lost(stopped) == [f"{stopped.folder}/slots/seals.log"]
    assert ready(stopped, "crm") == 1
    stopped.environment = {}
    stopped.restart()
    assert lost(stopped) == []


def test_a_copy_has_everything(stopped: BrokerProcess) -> None:
    """A backup and a copy of the folder start; so does a folder whose other files are gone, which are made again."""
    stopped.start()
    target = stopped.folder.parent / "backup"
    ask(stopped.folder, "backup", target=str(target))
    assert stopped.terminate() == 0
    for name in ("clock", "incarnation", "lock", "reserve"):
        (stopped.folder / name).unlink(missing_ok=True)
    shutil.rmtree(stopped.folder / "vhosts" / "crm" / "queues")
    shutil.rmtree(stopped.folder / "vhosts" / "crm" / "spill")
    for folder in (target, stopped.folder):
        broker = BrokerProcess(folder).start()
        try:
            assert [ready(broker, vhost) for vhost in ("/", "crm", LONG)] == [1, 1, 1]
            assert lost(broker) == []
        finally:
            broker.kill()


# -- no accident looks like a loss ------------------------------------------------------------------------------------

FOLDER: Final = Path("/store/data")


def server(files: Any, *, sync: bool = True) -> BrokerServer:
    """Return a broker on files in memory."""
    store = Store(disk_free_min_bytes=0, reserve_bytes=0, sync=sync)
    place = Server(port=0, data_dir=FOLDER, control_socket=False)
    return BrokerServer(Settings(server=place, store=store, **WITHOUT_HTTP), files)


async def end(broker: BrokerServer, files: MortalFiles) -> None:
    """End a broker as SIGKILL does."""
    files.die()
    broker._fail(PowerLost())
    try:
        await broker.stop()
    except (PowerLost, StoreFailed):
        pass


async def starts_whole(disk: FaultyFiles, *, sync: bool = True) -> set[str]:
    """Start a broker on a disk; return its vhosts, none of which may be missing or lost."""
    files = MortalFiles(disk)
    with capture_logs() as events:
        broker = server(files, sync=sync)
        await broker.start()
        vhosts, users = set(broker.vhosts), list(broker.administration.users)
        offline = dict(broker.vhosts.offline)
        await end(broker, files)
    assert offline == {}
    assert users == ["guest"]
    assert not [event for event in events if event["event"] == "store.missing"]
    return vhosts


@pytest.mark.slow
@pytest.mark.parametrize("sync", [True, False])
async def test_a_first_start_may_die(sync: bool) -> None:
    """Whichever file call of a first start is the last, the next start begins, and finishes what was begun."""
    for n in count(1, 2):
        disk = FaultyFiles(folder=FOLDER.parent)
        disk.lose_at = n
        files = MortalFiles(disk)
        broker = server(files, sync=sync)
        with capture_logs():
            try:
                await broker.start()
            except (PowerLost, BrokerError):
                assert files.dead
            else:
                disk.lose_at = 0
                await end(broker, files)
        for after in (disk.after_kill(), disk.after_loss(n), disk.after_loss(n, kept=0)):
            assert await starts_whole(after, sync=sync) == {"/"}, f"call {n}"
        if disk.calls < n:
            break
    assert n > 30


@pytest.mark.slow
@pytest.mark.parametrize("change", ["add", "delete"])
@pytest.mark.parametrize("accident", ["power lost", "error"])
async def test_a_change_of_a_vhost_may_die(change: str, accident: str) -> None:
    """Whichever file call of a change is the last, or fails, the vhost is there or not, and never missed."""
    outcomes = set()
    for n in count(1):
        disk = FaultyFiles(folder=FOLDER.parent)
        files = MortalFiles(disk)
        with capture_logs():
            broker = server(files)
            await broker.start()
            broker._timers.close()
            change_definitions = broker.administration.change
            if change == "delete":
                await change_definitions(lambda draft: draft.add_vhost("v", {}))
            begin = disk.calls
            if accident == "error":
                disk.fail_at = begin + n
            else:
                disk.lose_at = begin + n
            try:
                if change == "add":
                    await change_definitions(lambda draft: draft.add_vhost("v", {}))
                else:
                    await change_definitions(lambda draft: draft.drop_vhost("v"))
            except (PowerLost, StoreFailed, ValueError):
                done = False
            else:
                done = not (disk.failed or files.dead)
            disk.lose_at = disk.fail_at = 0
            copies = [disk.after_kill(), *(disk.after_loss(seed) for seed in (n, n + 1000)), disk.after_loss(n, kept=0)]
            await end(broker, files)
        for after in copies:
            vhosts = await starts_whole(after)
            assert vhosts in ({"/"}, {"/", "v"}), f"call {n}"
            assert not done or ("v" in vhosts) == (change == "add")
            outcomes.add("v" in vhosts)
        if done:
            break
    assert n > 8
    assert outcomes == {True, False}
