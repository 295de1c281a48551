"""Catalogs: a growing seal log, wrong files, and a real broker over HTTP."""

from __future__ import annotations

import mmap
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pika
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from broker.cli.control_client import ask
from broker.pipeline.faults import SlotDamaged, SlotGap, SlotMissing, SourceRefused
from broker.pipeline.formats import arrow_schema_of, message_batches
from broker.pipeline.source import catalog as catalogs
from broker.pipeline.source import http_catalog, message_run
from broker.pipeline.source.catalog import Catalog, SealReader, open_catalog, open_handle
from broker.pipeline.source.message_run import SlotRun, read_run
from broker.pipeline.source.planner import Condition, read_position
from broker.pipeline.source.schema import ARROW_SCHEMA
from broker.pipeline.source.seal_stream import SealStream
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_source import SlotSource, lost_since
from broker.slot_files.slot_view import open_slot
from tests.broker_process import BrokerProcess
from tests.slot_folders import SlotFolder, numbered


def take_all(_vhost: str, _tap: str) -> bool:
    """Return a reader of all taps."""
    return True


def test_the_log_is_read_on_as_it_grows(tmp_path: Path) -> None:
    """New lines are read; an incomplete line is left for the next read."""
    folder = SlotFolder(tmp_path)
    reader = SealReader(folder.log)
    assert reader.view().last_seal == 0
    folder.add_slot("t", numbered(1))
    view = reader.view()
    assert view.last_seal == 1
    folder.add_slot("t", numbered(1))
    whole = folder.log.read_bytes()
    folder.log.write_bytes(whole[:-5])
    assert reader.view() is view
    assert view.last_seal == 1
    folder.log.write_bytes(whole)
    assert reader.view().last_seal == 2
    assert view.lines == 3  # each line was read once


def test_a_long_log_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of a log are not all in memory at once; their texts are shared."""
    monkeypatch.setattr(catalogs, "BLOCK_BYTES", 600)
    folder = SlotFolder(tmp_path)
    for _ in range(9):
        folder.add_slot("t", numbered(1))
    view = SealReader(folder.log).view()
    assert (view.last_seal, view.lines, len(view.seals)) == (9, 10, 9)
    assert len({id(seal.vhost) for seal in view.seals}) == 1


@pytest.mark.parametrize("same_file", [True, False])
def test_a_log_that_was_rewritten_is_read_anew(tmp_path: Path, same_file: bool) -> None:
    """A log that was rewritten by a rename is read anew, also when it reuses the inode."""
    folder = SlotFolder(tmp_path)
    for _ in range(9):
        last = folder.add_slot("t", numbered(1))
    reader = SealReader(folder.log)
    assert len(reader.view().seals) == 9
    folder.release(last)
    lines = b"".join([*folder.view.to_lines()] * 1)
    padded = lines + b"".join([*folder.view.to_lines()][1:]) * 40  # longer than the old log
    if same_file:
        folder.log.write_bytes(padded)
    else:
        (tmp_path / "new").write_bytes(lines)
        (tmp_path / "new").rename(folder.log)
    view = reader.view()
    assert (view.seals, view.last_seal) == ([], 9)


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    """A wrong octet in the middle of the log is damage, not a torn tail."""
    folder = SlotFolder(tmp_path)
    folder.add_slot("t", numbered(1))
    folder.add_slot("t", numbered(1))
    octets = bytearray(folder.log.read_bytes())
    octets[10] ^= 1
    folder.log.write_bytes(octets)
    with pytest.raises(SourceRefused, match="the line at byte 0 is damaged"):
        SealReader(folder.log).view()


def test_a_folder_without_slots_is_refused(tmp_path: Path) -> None:
    """A folder without slots is refused with a description of the expected folder."""
    with pytest.raises(SourceRefused, match=f"no slots in {tmp_path}: .*is it a data folder"):
        open_catalog(path=str(tmp_path)).view()


def test_a_file_that_is_not_the_one_that_was_sealed_is_refused(tmp_path: Path) -> None:
    """A file of another seal or store, a truncated file and a missing file are refused."""
    folder = SlotFolder(tmp_path / "one")
    handles = [SlotHandle.of(folder.store, folder.add_slot("t", numbered(5))) for _ in range(2)]
    catalog = open_catalog(path=str(folder.path))
    assert open_handle(catalog, handles[0]).rows == 5
    whole = folder.slot_path(1).read_bytes()
    folder.slot_path(1).write_bytes(folder.slot_path(2).read_bytes())
    with pytest.raises(SlotDamaged, match=r"slot 1 of tap 't' .*not the file that was sealed"):
        open_handle(catalog, handles[0])
    folder.slot_path(1).write_bytes(whole[:-1])
    with pytest.raises(SlotDamaged, match="cut short"):
        open_handle(catalog, handles[0])
    folder.slot_path(1).write_bytes(b"")
    with pytest.raises(SourceRefused, match="cannot be read"):
        open_handle(catalog, handles[0])
    folder.slot_path(1).unlink()
    with pytest.raises(SlotMissing, match="slot 1 of tap 't' in vhost '/' is gone"):
        open_handle(catalog, handles[0])


@pytest.mark.parametrize("octet", [0, 19])
def test_damaged_rows_fail_or_are_left_out(tmp_path: Path, octet: int) -> None:
    """A damaged row fails the task with its place; with the option, it is left out and the others are delivered."""
    folder = SlotFolder(tmp_path)
    slot = SlotHandle.of(folder.store, folder.add_slot("t", numbered(5)))
    octets = bytearray(folder.slot_path(1).read_bytes())
    octets[octets.index(b"2...") + octet] ^= 1
    folder.slot_path(1).write_bytes(octets)
    with pytest.raises(SlotDamaged, match=r"1 of 5 rows cannot be read \(row 2: its checksum is wrong\)"):
        list(read_run(SlotRun(str(tmp_path), None, [slot], [], reader="a test"), ARROW_SCHEMA))
    run = SlotRun(str(tmp_path), None, [slot], [], reader="a test", fail_on_bad_rows=False)
    [batch] = read_run(run, ARROW_SCHEMA)
    assert batch["offset"].to_pylist() == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("begin", "lost"),
    [
        ("earliest", []),
        ("seal:1", [1, 3]),
        ("seal:3", [3]),
        ("seal:4", []),
        ("id:1", [1, 3]),
        ("id:25", [3]),
        ("id:31", []),
        ("2023-11-14T22:13:20Z", [1, 3]),
        ("2023-11-14T22:14:00Z", []),
    ],
)
def test_losses_are_those_that_may_have_been_in_the_range(tmp_path: Path, begin: str, lost: list[int]) -> None:
    """Released slots are losses unless present ones reach back to the start of the range."""
    folder = SlotFolder(tmp_path)
    seals = [folder.add_slot("t", numbered(10)) for _ in range(5)]
    folder.add_slot("other", numbered(10))
    folder.add_gap(seals[0], "age")
    folder.add_gap(seals[2], "bytes")  # slot 2 was released with this one
    found = lost_since(SealReader(folder.log).view(), read_position(begin), take_all)
    assert [gap.seal for gap in found] == lost
    none = lost_since(folder.view, read_position(begin), lambda _vhost, tap: tap == "other")
    assert none == []


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ({}, True),
        ({"to": "seal:4"}, True),
        ({"to": "seal:3"}, False),
        ({"to": "id:22"}, True),
        ({"to": "id:21"}, False),
        ({"to": "2023-11-14T22:13:20.205Z"}, True),
        ({"to": "2023-11-14T22:13:20.200Z"}, False),
        ({"from": "seal:2", "to": "seal:3"}, False),
        ({"from": "id:15", "to": "id:21"}, False),
        ({"from": "2023-11-14T22:13:20.310Z"}, False),
    ],
)
def test_a_slot_lost_between_others_is_missing_from_a_read_of_its_range(
    tmp_path: Path, options: dict[str, str], lost: bool
) -> None:
    """A read is refused if a slot of its range was lost; the earliest message is that of the first existing slot."""
    folder = SlotFolder(tmp_path)
    seals = [folder.add_slot("t", numbered(10)) for _ in range(5)]
    folder.lose(seals[0], "damaged")  # earliest begins after it
    folder.lose(seals[2], "damaged")
    source = SlotSource({"path": str(folder.path), **options})
    with pytest.raises(SlotGap, match="slot 3 of tap 't'") if lost else nullcontext():
        source.all_now()


@pytest.mark.parametrize(("begin", "lost"), [("earliest", []), ("id:5", [1]), ("id:11", []), ("2023-11-14", [1])])
def test_a_lost_first_slot_is_missing_from_a_read_that_begins_before_it(
    tmp_path: Path, begin: str, lost: list[int]
) -> None:
    """A read that begins at an id or a time misses a damaged first slot; the earliest message comes after it."""
    folder = SlotFolder(tmp_path)
    seals = [folder.add_slot("t", numbered(10)) for _ in range(2)]
    folder.lose(seals[0], "damaged")
    assert [gap.seal for gap in lost_since(folder.view, read_position(begin), take_all)] == lost


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ({"from": "id:5"}, [3, 6]),
        ({"from": "id:5", "to": "id:25"}, [3]),
        ({"from": "id:5", "to": "id:35"}, [3]),
        ({"from": "seal:1", "to": "seal:3"}, [3]),
        ({"from": "seal:1", "to": "seal:5"}, [3]),
        ({"from": "seal:4", "to": "seal:6"}, []),
        ({"from": "2023-11-14", "to": "2023-11-14T22:13:20.310Z"}, [3]),
        ({"to": "id:35"}, []),
    ],
)
def test_a_gap_after_a_range_does_not_hide_released_slots_in_it(
    tmp_path: Path, options: dict[str, str], lost: list[int]
) -> None:
    """A read of a range misses the released slots in it, also if a slot after the range was lost."""
    folder = SlotFolder(tmp_path)
    seals = [folder.add_slot("t", numbered(10)) for _ in range(7)]
    folder.release(seals[2])
    folder.lose(seals[5], "damaged")
    source = SlotSource({"path": str(folder.path), **options})
    begin, end = source.options.begin, source.options.end
    assert [gap.seal for gap in lost_since(folder.view, begin, take_all, end)] == lost
    with pytest.raises(SlotGap) if lost else nullcontext():
        source.all_now()


@pytest.mark.parametrize(("begin", "end"), [("id:0", "id:50"), ("seal:1", "seal:50")])
def test_newer_gaps_do_not_hide_released_slots_whose_gaps_are_not_kept(tmp_path: Path, begin: str, end: str) -> None:
    """A read of a range misses its slots even if only the gaps after the range are still known."""
    folder = SlotFolder(tmp_path)
    seals = [folder.add_slot("t", numbered(1)) for _ in range(60)]
    folder.release(seals[49])
    folder.add_gap(seals[54])
    [gap] = lost_since(folder.view, read_position(begin), take_all, read_position(end))
    assert (gap.seal, gap.reason) == (55, "released")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Provide a broker with a tap, a queue and an HTTP server."""
    environment = {"SLOTMQ_HTTP__ENABLED": "true", "SLOTMQ_HTTP__PORT": "0"}
    process = BrokerProcess(tmp_path_factory.mktemp("catalog") / "data", environment=environment).start()
    ask(process.folder, "tap_add", exchange="amq.topic", pattern="#", name="all")
    ask(process.folder, "add_user", name="ann", password="secret", tags=[])
    with pika.BlockingConnection(pika.URLParameters(process.address.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("late", durable=True)
        channel.queue_bind("late", "amq.topic", "#")
        channel.confirm_delivery()  # bind-ok does not wait for the disk, and a test kills the broker
        channel.basic_publish("", "late", b"", pika.BasicProperties(delivery_mode=2))
        channel.queue_purge("late")
    yield process
    process.kill()


def publish(broker: BrokerProcess, count: int) -> None:
    """Publish messages and wait for their confirms."""
    with pika.BlockingConnection(pika.URLParameters(broker.address.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(count):
            channel.basic_publish("amq.topic", f"k.{number}", b"body %d" % number)


def handles(catalog: Catalog) -> list[SlotHandle]:
    """Return the handles of all slots."""
    view = catalog.view()
    return [SlotHandle.of(view.store, seal) for seal in view.seals]


def test_both_catalogs_answer_alike(broker: BrokerProcess) -> None:
    """HTTP and folder give the same seals, bytes and snapshot, also for later seals."""
    here, there = open_catalog(path=str(broker.folder)), open_catalog(url=broker.http_url())
    before = sum(part.count for part in here.snapshot("/", "late"))
    for count in (3, 4):
        publish(broker, count)
        last = there.seal_now("/", "all")
        assert last == here.seal_now("/", "all") == here.view().last_seal == there.view().last_seal
        assert here.view().store == there.view().store
        assert handles(here) == handles(there)
        slot = handles(there)[-1]
        assert slot.count == count
        assert bytes(here.fetch_slot(slot)) == there.fetch_slot(slot)
    for catalog in (here, there):
        catalog.set_cursor("mine", "/", "all", 0, "")  # so that every slot is kept
        assert [(tap["name"], tap["cursors"][0]["name"]) for tap in catalog.taps()] == [("all", "mine")]
        catalog.set_cursor("gone", "/", "all", 0, "")
        catalog.remove_cursor("gone", "/", "all")
        assert [cursor["name"] for cursor in catalog.taps()[0]["cursors"]] == ["mine"]
        parts = catalog.snapshot("/", "late")
        assert sum(open_handle(catalog, part).rows for part in parts) == before + 7
        assert {open_slot(catalog.fetch_slot(part), part.crc).meta.queue for part in parts} == {"late"}
    assert [(cursor.name, cursor.seal) for cursor in there.view().cursors] == [("mine", 0)]
    there.close()


def test_a_large_slot_over_http_is_not_in_memory(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is mapped from a file that has no name, and its rows are those of the folder's."""
    publish(broker, 3)
    here, there = open_catalog(path=str(broker.folder)), open_catalog(url=broker.http_url())
    there.seal_now("/", "all")
    slot = handles(there)[-1]
    monkeypatch.setattr(http_catalog, "LARGE_BYTES", 100)
    block = there.fetch_slot(slot)
    assert isinstance(block, mmap.mmap)
    assert block[:] == here.fetch_slot(slot)
    assert open_handle(there, slot).rows == 3
    there.close()


def test_small_slots_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots of one message make one batch, with the rows that each has alone; a damaged one is named."""
    folder = SlotFolder(tmp_path)
    for at in range(30):
        folder.add_slot("ab"[at % 2], numbered(2, start=2 * at))
    run = SlotRun(
        str(tmp_path), None, handles(open_catalog(path=str(tmp_path))), [Condition("offset", ">=", 5)], reader="it"
    )

    def read() -> list[pa.RecordBatch]:
        return list(read_run(run, ARROW_SCHEMA))

    [together] = read()
    monkeypatch.setattr(message_run, "GROUP_SLOTS", 1)
    alone = read()
    assert len(alone) == 26
    assert pa.Table.from_batches(alone).combine_chunks().to_batches() == [together]
    monkeypatch.undo()
    path = folder.slot_path(9)
    path.write_bytes(path.read_bytes().replace(b"17..", b"18.."))
    with pytest.raises(SlotDamaged, match=r"slot 9 of tap 'a' .*1 of 2 rows cannot be read \(row 1"):
        read()
    folder.slot_path(9).unlink()
    with pytest.raises(SlotMissing, match="slot 9 of tap 'a'"):
        read()


def test_a_stream_over_http_is_that_of_the_folder(broker: BrokerProcess) -> None:
    """Both streams have the same offsets, and their tasks the same messages."""
    publish(broker, 2)
    open_catalog(path=str(broker.folder)).seal_now("/", "all")
    found = []
    for where in ({"path": str(broker.folder)}, {"url": broker.http_url()}):
        schema = arrow_schema_of(StructType().add("body", "binary").add("offset", "long"))
        stream = SealStream({"tap": "all", **where}, partial(message_batches, schema=schema))
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        rows = [row for run in stream.partitions(start, end) for batch in stream.read(run) for row in batch.to_pylist()]
        found.append((start, end, stream.reportLatestOffset(), rows))
        stream.stop()
    assert found[0] == found[1]
    assert found[0][3][-1]["body"] == b"body 1"


def test_what_the_broker_refuses_is_one_line_without_a_password(broker: BrokerProcess) -> None:
    """Missing rights, wrong logins and unknown names or slots are reported with the broker's reason."""
    publish(broker, 1)
    last = open_catalog(path=str(broker.folder)).seal_now("/", "all")
    slot = handles(open_catalog(path=str(broker.folder)))[-1]
    there, ann, wrong = (open_catalog(url=broker.http_url(login)) for login in ("guest:guest", "ann:secret", "ann:no"))
    for call, kind, said in [
        (lambda: there.snapshot("/", "nix"), SourceRefused, "no queue 'nix'"),
        (
            lambda: there.fetch_slot(replace(slot, seal=last + 5)),
            SlotMissing,
            f"slot {last + 5} of tap 'all'",
        ),
        (lambda: ann.fetch_slot(slot), SourceRefused, "refuses user 'ann'"),
        (lambda: ann.snapshot("/", "late"), SourceRefused, "refuses user 'ann'"),
        (lambda: ann.seal_now("/", "all"), SourceRefused, "refuses user 'ann'"),
        (lambda: wrong.view().store, SourceRefused, "refuses user 'ann'"),
    ]:
        with pytest.raises(kind) as refused:
            call()
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)
        assert "secret" not in str(refused.value)
    assert ann.view().seals == []  # unreadable taps are not listed
    for catalog in (there, ann, wrong):
        catalog.close()


def test_a_broker_that_is_not_there_is_one_line() -> None:
    """A port on which nothing listens is reported with one line."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(
        SourceRefused, match=rf"^no answer from the broker at http://127.0.0.1:{port}: Connection refused$"
    ):
        open_catalog(url=f"http://127.0.0.1:{port}").view()


def test_a_catalog_outlives_a_restart_of_its_broker(broker: BrokerProcess) -> None:
    """A stream continues after its broker restarts at the same address."""
    there = open_catalog(url=broker.http_url())
    before = handles(there)
    port = broker.http_url().rpartition(":")[2]
    broker.environment["SLOTMQ_HTTP__PORT"] = port
    broker.restart()
    publish(broker, 2)
    there.seal_now("/", "all")
    assert [slot.seal for slot in handles(there)][: len(before)] == [slot.seal for slot in before]
    assert handles(there)[-1].count == 2
    there.close()
