"""Offsets, batches, gaps and limits of a stream, called as Spark does; without a Spark session."""

from __future__ import annotations

import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.types import StructType

from broker.cli.control_client import Unanswered
from broker.pipeline.faults import SlotGap, SlotMissing, SourceRefused
from broker.pipeline.formats import arrow_schema_of, message_batches
from broker.pipeline.source import catalog as catalogs
from broker.pipeline.source.message_run import SlotRun
from broker.pipeline.source.seal_stream import SealStream
from tests.slot_folders import SlotFolder, numbered

LIMITED = ReadMaxFiles(1)


def folder_of(path: Path, slots: int = 5, rows: int = 10) -> SlotFolder:
    """Return a data folder with slots of a tap."""
    folder = SlotFolder(path / "data")
    for number in range(slots):
        folder.add_slot("audit", numbered(rows, start=number * rows))
    return folder


def stream(folder: SlotFolder, **options: str) -> SealStream:
    """Return the stream reader that Spark makes of the options."""
    given = {"path": str(folder.path), **{name.strip("_"): value for name, value in options.items()}}
    return SealStream(given, partial(message_batches, schema=arrow_schema_of(StructType().add("offset", "long"))))


def batches(reader: SealStream, start: dict[str, Any] | None = None) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the batches that Spark would run until nothing is new."""
    start = reader.initialOffset() if start is None else start
    found = []
    while (end := reader.latestOffset(start, LIMITED)) != start:
        found.append((start, end))
        start = end
    return found


def ids(reader: SealStream, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return the message ids that a batch's tasks read."""
    runs = [pickle.loads(pickle.dumps(run)) for run in reader.partitions(start, end)]
    assert all(isinstance(run, SlotRun) for run in runs)
    return [row["offset"] for run in runs for batch in reader.read(run) for row in batch.to_pylist()]


def all_ids(reader: SealStream, start: dict[str, Any] | None = None) -> list[int]:
    """Return the message ids of all batches."""
    return [one for batch in batches(reader, start) for one in ids(reader, *batch)]


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"maxSlotsPerTrigger": "2"}, [2, 2, 1]),
        ({"maxRowsPerTrigger": "30"}, [3, 2]),
        ({"maxRowsPerTrigger": "1"}, [1, 1, 1, 1, 1]),
        ({"maxSlotsPerTrigger": "4", "maxRowsPerTrigger": "25"}, [2, 2, 1]),
        ({"maxBytesPerTrigger": "1"}, [1, 1, 1, 1, 1]),
        ({}, [5]),
    ],
)
def test_a_trigger_takes_whole_slots_within_all_limits(
    tmp_path: Path, options: dict[str, str], sizes: list[int]
) -> None:
    """Every message is read once, in order, in batches of whole slots."""
    reader = stream(folder_of(tmp_path), **options)
    found = batches(reader)
    assert [end["slots"] for _, end in found] == sizes
    assert [one for batch in found for one in ids(reader, *batch)] == list(range(1, 51))


def test_all_available_is_all_whatever_the_limits_say(tmp_path: Path) -> None:
    """Trigger.Once overrides the limits of the options, as Spark requires."""
    reader = stream(folder_of(tmp_path), maxSlotsPerTrigger="1")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable())["seal"] == 5
    assert reader.latestOffset(start, reader.getDefaultReadLimit())["seal"] == 1


def test_available_now_ends_where_it_began(tmp_path: Path) -> None:
    """Slots that are sealed after the start of the query belong to the next query."""
    folder = folder_of(tmp_path, 2)
    reader = stream(folder, maxSlotsPerTrigger="1")
    reader.prepareForTriggerAvailableNow()
    folder.add_slot("audit", numbered(10))
    found = batches(reader)
    assert [end["seal"] for _, end in found] == [1, 2]
    assert [end["seal"] for _, end in batches(stream(folder), found[-1][1])] == [3]


def test_a_stream_reads_only_what_is_new(tmp_path: Path) -> None:
    """The long-lived reader continues in the log at its last place."""
    folder = folder_of(tmp_path, 1)
    reader = stream(folder)
    [(_, end)] = batches(reader)
    assert reader.latestOffset(end, LIMITED) is end
    folder.add_slot("audit", numbered(5))
    folder.add_slot("other", numbered(5))
    assert all_ids(reader, end) == [11, 12, 13, 14, 15, 1, 2, 3, 4, 5]


def test_a_stream_tells_the_broker_which_taps_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch names the taps of its slots; a broker that does not answer in two seconds is left alone."""
    folder = SlotFolder(tmp_path)
    asked: list[tuple[str, dict[str, Any]]] = []

    def ask(_folder: Path, verb: str, **arguments: Any) -> None:
        asked.append((verb, arguments))
        raise Unanswered("it does not run")

    monkeypatch.setattr(catalogs, "ask", ask)
    for tap in ("b", "a", "b"):
        folder.add_slot(tap, numbered(1))
    folder.add_slot("c", numbered(1), vhost="/v")
    reader = stream(folder, tap="a,b")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert asked == [("tap_read", {"vhost": "/", "taps": ["a", "b"], "silence_s": 2.0})]
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert len(asked) == 1


def test_taps_are_told_apart(tmp_path: Path) -> None:
    """Taps are selected by name, by glob, by the name of their queue and by vhost."""
    folder = SlotFolder(tmp_path / "data")
    for tap, vhost in (("a.one", "/"), ("a.two", "/"), ("b", "/"), ("b", "/v")):
        folder.add_slot(tap, numbered(1), vhost=vhost)

    def seals(**options: str) -> list[int]:
        reader = stream(folder, maxSlotsPerTrigger="1", **options)
        return [end["seal"] for _, end in batches(reader)]

    assert seals() == [1, 2, 3, 4]
    assert seals(tap="a.*") == [1, 2]
    assert seals(tap="a.one,b") == [1, 3, 4]
    assert seals(queue="amq.tap.b") == [3, 4]
    assert seals(tap="b", vhost="/v") == [4]
    assert seals(vhost="/v") == [4]


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({"from_": "earliest"}, 1, 50),
        ({"from_": "seal:3"}, 21, 50),
        ({"from_": "seal:3", "to": "seal:4"}, 21, 30),
        ({"from_": "id:15", "to": "id:33"}, 15, 32),
        ({"from_": "2023-11-14T22:13:20.120Z", "to": "2023-11-14T22:13:20.300Z"}, 12, 29),
    ],
)
def test_a_stream_begins_and_ends_where_it_is_told(
    tmp_path: Path, options: dict[str, str], first: int, last: int
) -> None:
    """A range by seal, id or time is the same in a stream and in a single read."""
    assert all_ids(stream(folder_of(tmp_path), **options)) == list(range(first, last + 1))


def test_latest_is_what_comes(tmp_path: Path) -> None:
    """A stream from `latest` reads no slot that was sealed before it began."""
    folder = folder_of(tmp_path, 2)
    reader = stream(folder, from_="latest")
    start = reader.initialOffset()
    assert start["seal"] == 2
    folder.add_slot("audit", numbered(3))
    assert all_ids(reader, start) == [21, 22, 23]


def test_earliest_is_what_is_there(tmp_path: Path) -> None:
    """Slots released before the start are not loss, also of a tap whose slots are older."""
    folder = SlotFolder(tmp_path / "data")
    folder.add_slot("old", numbered(1))
    gone = folder.add_slot("audit", numbered(10))
    folder.add_slot("audit", numbered(10))
    folder.release(gone)
    reader = stream(folder)
    assert reader.initialOffset() == {"v": 2, "store": folder.store, "seal": 0, "gaps": 2, "incarnation": ""}
    assert all_ids(reader) == [1, *range(11, 21)]


@pytest.mark.parametrize("noted", [True, False])
def test_a_gap_fails_and_fail_on_gap_goes_on(tmp_path: Path, noted: bool) -> None:
    """A slot that is gone before it was read stops the stream, unless fail_on_gap is off."""
    folder = folder_of(tmp_path, 3)
    reader = stream(folder, maxSlotsPerTrigger="1")
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMITED)
    second = folder.view.seal(2)
    assert second is not None
    if noted:
        folder.add_gap(second, "age")
    else:
        folder.release(second)
    with pytest.raises(SlotGap) as refused:
        reader.latestOffset(end, LIMITED)
    assert "tap 'audit' in vhost '/'" in str(refused.value)
    assert "after seal 1" in str(refused.value)
    assert ("10 messages" in str(refused.value) and "(age)" in str(refused.value)) is noted
    assert all_ids(stream(folder, failOnGap="false"), end) == list(range(21, 31))


def test_a_batch_that_is_planned_again_has_the_same_slots_or_is_refused(tmp_path: Path) -> None:
    """After a restart Spark plans the old range again; a missing slot is refused, because the batch would differ."""
    folder = folder_of(tmp_path, 3)
    [(start, end)] = batches(stream(folder))
    restarted = stream(folder)
    assert ids(restarted, start, end) == list(range(1, 31))
    first = folder.view.seal(1)
    assert first is not None
    folder.release(first)
    with pytest.raises(SlotGap, match=r"had 3 slots when it was planned, and has 2 now"):
        stream(folder).partitions(start, end)
    assert ids(stream(folder, failOnGap="false"), start, end) == list(range(11, 31))


def test_other_options_on_an_old_checkpoint_are_refused(tmp_path: Path) -> None:
    """A batch that is planned again must have the same range, so other options are refused."""
    folder = folder_of(tmp_path, 3)
    [(start, end)] = batches(stream(folder))
    with pytest.raises(SourceRefused, match="the options of a stream with a checkpoint must not change"):
        stream(folder, from_="seal:2").partitions(start, end)


def test_a_slot_that_goes_before_its_task_reads_it_is_named(tmp_path: Path) -> None:
    """The task names the slot and the reader; with the option it reads the others."""
    folder = folder_of(tmp_path, 2)
    [(start, end)] = batches(stream(folder))
    runs = stream(folder).partitions(start, end)
    lenient = stream(folder, failOnGap="false").partitions(start, end)
    folder.slot_path(1).unlink()
    with pytest.raises(SlotMissing, match=r"^slot 1 of tap 'audit' .* is gone.*a stream of all taps after seal 0"):
        list(stream(folder).read(runs[0]))
    assert [row for batch in stream(folder).read(lenient[0]) for row in batch["offset"].to_pylist()] == list(
        range(11, 21)
    )


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        ({"v": 2, "store": "00" * 16, "seal": 1, "incarnation": ""}, "the checkpoint belongs to store 0000"),
        ({"v": 3, "seal": 1}, "its offsets are of version 3, this one reads up to version 2"),
        ({"v": 2, "store": "00" * 16, "seal": 1}, "none of SlotMQ's"),
        ({"v": 1, "store": "00" * 16, "seal": 1}, "none of SlotMQ's"),
        ({"partition-0": 5}, "none of SlotMQ's"),
        ({"v": 2, "seal": "x"}, "none of SlotMQ's"),
        ({"v": 2, "store": "00" * 16, "seal": math.inf, "incarnation": ""}, "none of SlotMQ's"),
        ({"v": 2, "store": "00" * 16, "seal": 1, "incarnation": "", "slots": math.inf}, "none of SlotMQ's"),
        (5, "none of SlotMQ's"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path, offset: Any, said: str) -> None:
    """Another store, a later version and another source are refused with one line each."""
    with pytest.raises(SourceRefused) as refused:
        stream(folder_of(tmp_path, 1)).latestOffset(offset, LIMITED)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_older_copy_of_the_data_folder_is_refused(tmp_path: Path) -> None:
    """A checkpoint with a later seal than the folder has is refused."""
    folder = folder_of(tmp_path, 1)
    with pytest.raises(SourceRefused, match="an older copy"):
        stream(folder).latestOffset({"v": 2, "store": folder.store, "seal": 9, "incarnation": ""}, LIMITED)


def test_a_queue_cannot_be_followed(tmp_path: Path) -> None:
    """A queue cannot be followed, because a snapshot has no end."""
    with pytest.raises(SourceRefused, match="queue 'late' in vhost '/' cannot be followed: a stream reads a tap"):
        stream(folder_of(tmp_path, 1), queue="late").initialOffset()


def test_a_tap_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    """An unknown tap is refused with the known names, so a typing error does not wait for ever."""
    with pytest.raises(SourceRefused, match=r"there is no tap 'audti' at .*; there are: 'audit'"):
        stream(folder_of(tmp_path, 1), tap="audti").initialOffset()


def test_what_is_pickled_has_nothing_open(tmp_path: Path) -> None:
    """The reader has no open files, because Spark pickles it into tasks."""
    reader = stream(folder_of(tmp_path, 1))
    reader.initialOffset()
    assert all_ids(pickle.loads(pickle.dumps(reader))) == list(range(1, 11))
