"""A copy of a data folder replaces the original, or runs beside it: no new message is taken for an archived one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pika
import pytest

from broker.cli.control_client import ask
from broker.pipeline.faults import LakeRefused, SourceRefused
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.delta_log import messages_of

pytest.importorskip("pyspark")

from broker.pipeline.source.catalog import open_catalog
from tests.pipeline.without_spark import archive

OPTIONS = {"SLOTMQ_TAPS__WINDOW_MS": "600000", "SLOTMQ_HTTP__ENABLED": "true", "SLOTMQ_HTTP__PORT": "0"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Provide a broker with a tap whose slots are sealed on request."""
    process = BrokerProcess(tmp_path / "data", environment=OPTIONS).start()
    ask(process.folder, "tap_add", exchange="amq.topic", pattern="#", name="all", cursors=["archive"])
    yield process
    process.kill()


def seal(broker: BrokerProcess, bodies: str) -> None:
    """Publish messages, and seal each into a separate slot."""
    with pika.BlockingConnection(pika.URLParameters(broker.address.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("amq.topic", "k", body.encode(), pika.BasicProperties(delivery_mode=2))
            ask(broker.folder, "seal", tap="all")


def restore(broker: BrokerProcess, copy: Path) -> None:
    """Replace the data folder by a copy of it."""
    broker.kill()
    shutil.rmtree(broker.folder)
    shutil.copytree(copy, broker.folder)
    broker.start()


def copied(broker: BrokerProcess, copy: Path) -> Path:
    """Copy the data folder while the broker is stopped, and restart the broker."""
    broker.kill()
    shutil.copytree(broker.folder, copy, ignore=shutil.ignore_patterns("*.sock"))
    broker.start()
    return copy


def bodies(path: Path) -> str:
    """Return the bodies of all rows of a lake, sorted."""
    return b"".join(messages_of(path, "body")).decode()


def slots(broker: BrokerProcess) -> int:
    """Return the number of slot files."""
    return len(list((broker.folder / "slots").glob("*.slot")))


def test_a_copy_that_was_put_back_loses_nothing(broker: BrokerProcess, tmp_path: Path) -> None:
    """A, B, C are archived; the copy of seal 1 gets D, E, F as 2 to 4: the archive stops, then takes all of them."""
    lake, folder = tmp_path / "lake", str(broker.folder)
    seal(broker, "A")
    copy = copied(broker, tmp_path / "copy")
    seal(broker, "BC")
    assert archive(lake, folder)["seal"] == 3
    assert bodies(lake) == "ABC"

    restore(broker, copy)
    with pytest.raises(LakeRefused, match=r"is at seal 3, but .* has sealed 1 only: .*--accept-restored"):
        archive(lake, folder)
    seal(broker, "DEF")
    for place in (folder, broker.http_url()):
        with pytest.raises(LakeRefused, match=r"is at seal 3, but .* has another slot .*--accept-restored"):
            archive(lake, place)
    assert slots(broker) == 4
    assert bodies(lake) == "ABC"

    assert archive(lake, folder, accept_restored=True)["rows"] == 3
    assert bodies(lake) == "ABCDEF"
    wait_until(lambda: not slots(broker), "what both histories have is released")
    seal(broker, "G")
    assert archive(lake, broker.http_url())["rows"] == 1
    assert bodies(lake) == "ABCDEFG"


@pytest.mark.parametrize("stop_at", ["files", "entry"])
def test_a_batch_that_was_under_way_is_of_its_own_history(broker: BrokerProcess, tmp_path: Path, stop_at: str) -> None:
    """A batch of the lost history that was not committed leaves nothing; a committed one stops the archive."""
    lake, folder = tmp_path / "lake", str(broker.folder)
    seal(broker, "A")
    archive(lake, folder)
    copy = copied(broker, tmp_path / "copy")
    seal(broker, "BC")
    archive(lake, folder, stop_at=stop_at)
    restore(broker, copy)
    seal(broker, "DE")
    if stop_at == "entry":
        with pytest.raises(LakeRefused, match="has another slot under that number"):
            archive(lake, folder)
    archive(lake, folder, accept_restored=stop_at == "entry")
    assert bodies(lake) == ("ABCDE" if stop_at == "entry" else "ADE")


def test_a_lost_note_hides_no_history(broker: BrokerProcess, tmp_path: Path) -> None:
    """The lake itself records the histories of its seals."""
    lake, folder = tmp_path / "lake", str(broker.folder)
    seal(broker, "A")
    copy = copied(broker, tmp_path / "copy")
    seal(broker, "BC")
    archive(lake, folder)
    shutil.rmtree(lake / "_archives")
    restore(broker, copy)
    seal(broker, "DE")
    with pytest.raises(LakeRefused, match=r"the lake .* is at seal 3, but .* has another slot"):
        archive(lake, folder)
    archive(lake, folder, accept_restored=True)
    assert bodies(lake) == "ABCDE"


def test_a_restart_is_no_other_history(broker: BrokerProcess, tmp_path: Path) -> None:
    """Each start has its own incarnation, and slots keep the one that sealed them, even when none of them is left."""
    lake, folder = tmp_path / "lake", str(broker.folder)
    for body in "ABC":
        seal(broker, body)
        archive(lake, folder)
        wait_until(lambda: not slots(broker), "it is released")
        broker.kill()
        broker.start()
    assert bodies(lake) == "ABC"


def test_a_broker_moves_no_cursor_of_another_history(broker: BrokerProcess, tmp_path: Path) -> None:
    """A reader of the old history releases nothing of the copy that replaced it."""
    seal(broker, "A")
    copy = copied(broker, tmp_path / "copy")
    seal(broker, "B")
    with closing(open_catalog(url=broker.http_url())) as catalog:
        place = (2, catalog.view().starts.of(2))
        catalog.set_cursor("archive", "/", "all", *place)
        restore(broker, copy)
        seal(broker, "DE")
    for where in ({"url": broker.http_url()}, {"path": str(broker.folder)}):
        with (
            closing(open_catalog(**where)) as catalog,
            pytest.raises(SourceRefused, match="is not in this history: a copy of the data folder was put back"),
        ):
            catalog.set_cursor("archive", "/", "all", *place)
    assert slots(broker) == 3
