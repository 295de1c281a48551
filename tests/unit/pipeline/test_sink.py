"""The sink's tasks without Spark: rows become messages, failed attempts publish nothing twice, bad rows are kept."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import randbytes
from typing import Any

import pika
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from broker.pipeline.faults import PublishFailed, SinkRefused
from broker.pipeline.formats import Sink
from broker.pipeline.lake.place import Disk
from broker.pipeline.sink.amqp_publisher import RefusedMessage
from broker.pipeline.sink.publishing import UNWRITTEN_MAX, BadRecordFile, BadRecordLog, Tally
from broker.pipeline.source.schema import ARROW_SCHEMA
from broker.pipeline.spark.session import register
from broker.testing import Broker

ROW: dict[str, Any] = {**dict.fromkeys(ARROW_SCHEMA.names), "exchange": "", "routing_key": "q", "body": b"body"}
MESSAGE_COLUMNS = from_arrow_schema(ARROW_SCHEMA)
TYPES = {"string": pa.string(), "binary": pa.binary(), "int": pa.int32(), "bigint": pa.int64(), "date": pa.date32()}


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Provide a broker with the durable queue q."""
    with Broker() as running, pika.BlockingConnection(pika.URLParameters(running.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.queue_declare("full", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        yield running


def columns_of(text: str) -> StructType:
    """Return columns in Spark's form, from names and types."""
    pairs = [column.split(" ") for column in text.split(", ")]
    return from_arrow_schema(pa.schema([(name, TYPES[kind]) for name, kind in pairs]))


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Return rows with all columns of a message."""
    return pa.RecordBatch.from_pylist([{**ROW, **row} for row in rows], ARROW_SCHEMA)


def placed(count: int, seal: int = 3, **values: Any) -> list[dict[str, Any]]:
    """Return the rows of one slot."""
    return [
        {"seal": seal, "slot": 100, "offset": 100 + row, "body": b"%d/%d" % (seal, row), **values}
        for row in range(count)
    ]


def written(broker: Broker, batches: list[pa.RecordBatch], **options: str) -> Tally:
    """Run one task."""
    return Sink({"url": broker.url, **options}, MESSAGE_COLUMNS, overwrite=False).write(iter(batches))


def bodies(broker: Broker) -> list[bytes]:
    """Return the bodies in q."""
    broker.wait_idle()
    return [message.body for message in broker.queue("q").messages]


def test_columns_become_properties(broker: Broker) -> None:
    """Single columns set properties; the message's original octets override them."""
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    texts = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "app_id")
    values: dict[str, Any] = {**{name: f"the {name}" for name in texts}, "expiration": "60000", "user_id": "guest"}
    values |= {"headers": '{"a": 1, "b": {"$B": 2}}', "priority": 200, "delivery_mode": 2, "app_ts": moment}
    written(broker, [batch_of(values, {}, {**values, "properties_raw": b"\x10\x00\x01"})])
    broker.wait_idle()
    first, second, third = broker.queue("q").messages
    properties = first.properties
    assert (properties.message_type, properties.timestamp) == ("the type", moment)
    assert {name: getattr(properties, name) for name in texts if name != "type"} == {
        name: f"the {name}" for name in texts if name != "type"
    }
    assert (properties.priority, properties.delivery_mode, properties.expiration) == (200, 2, "60000")
    assert properties.headers == {"a": 1, "b": 2}
    assert (second.header[12:], third.header[12:]) == (b"\x10\x00\x02", b"\x10\x00\x01")


@pytest.mark.parametrize(("persistent", "modes"), [("true", [2, 2, 2]), ("false", [None, 1, 1]), ("", [2, 1, 2])])
def test_persistence_can_be_asked_for(broker: Broker, persistent: str, modes: list[int | None]) -> None:
    """The option sets the delivery mode of all rows; else a row keeps its own, and one without is persistent."""
    rows: list[dict[str, Any]] = [{"delivery_mode": None}, {"delivery_mode": 1}, {"delivery_mode": 2}]
    written(broker, [batch_of(*rows)], **({"persistent": persistent} if persistent else {}))
    broker.wait_idle()
    assert [message.properties.delivery_mode for message in broker.queue("q").messages] == modes


def test_an_attempt_after_one_that_failed_publishes_nothing_twice(broker: Broker) -> None:
    """Each row is in the queue once, whatever a failed attempt published, and after a repeated batch."""
    rows = placed(300) + placed(300, seal=4)

    def failing() -> Iterator[pa.RecordBatch]:
        yield batch_of(*rows[:400])
        raise RuntimeError("the executor is gone")

    writer = Sink({"url": broker.url, "producer": "job"}, MESSAGE_COLUMNS, overwrite=False)
    with pytest.raises(RuntimeError, match="is gone"):
        writer.write(failing())
    assert bodies(broker)
    for _ in range(2):
        assert writer.write(iter([batch_of(*reversed(rows))])).rows == 600
    assert Counter(bodies(broker)) == Counter(row["body"] for row in rows)


def test_rows_without_a_place_are_published_each_time(broker: Broker) -> None:
    """A row of a snapshot or without a seal has no number and is published at least once."""
    rows: list[dict[str, Any]] = [*placed(1, seal=0), {"body": b"none"}]
    for _ in range(2):
        written(broker, [batch_of(*rows)], producer="job")
    assert bodies(broker) == [b"0/0", b"none"] * 2


def test_a_column_of_the_users_own_numbers_rows(broker: Broker, tmp_path: Path) -> None:
    """A user's column numbers rows without a place; a row without a number there is bad."""
    columns = columns_of("body binary, number bigint, seal bigint")
    options = {"url": broker.url, "exchange": "", "routingKey": "q", "producer": "totals", "sequenceColumn": "number"}
    schema = pa.schema([("body", pa.binary()), ("number", pa.int64()), ("seal", pa.int64())])
    numbers = [0, 7, 1 << 62, None, -1]
    rows = [{"body": b"%d" % row, "number": number, "seal": 3} for row, number in enumerate(numbers)]
    for _ in range(2):
        writer = Sink({**options, "badRecords": str(tmp_path)}, columns, overwrite=False)
        told = writer.write(iter([pa.RecordBatch.from_pylist(rows, schema)]))
        assert (told.rows, told.refused) == (5, 2)
        writer.commit([told])
    assert bodies(broker) == [b"0", b"1", b"2"]
    reasons = pq.read_table(BadRecordLog(tmp_path).files()[0]).column("reason").to_pylist()
    assert reasons == ["the column 'number' should be a number from 0 on"] * 2


def test_bad_rows_are_kept(broker: Broker, tmp_path: Path) -> None:
    """Rows that cannot be encoded or routed are in the folder with the reason, and the rest arrives."""
    bad: list[dict[str, Any]] = [
        {"routing_key": "nowhere", "delivery_mode": 2},
        {"routing_key": None},
        {"exchange": "e" * 256},
        {"headers": "[]"},
        {"properties_raw": b"\xff"},
        {"expiration": "soon"},
        {"priority": 256},
        {"message_id": "m" * 256},
        {"routing_key": "full"},
        {"offset": 65_636},
    ]
    rows = [{**row, **change} for row, change in zip(placed(len(bad)), bad, strict=True)] + placed(3, seal=9)
    options = {"badRecords": str(tmp_path), "producer": "job", "nackAttempts": "1"}
    writer = Sink({"url": broker.url, **options}, MESSAGE_COLUMNS, overwrite=False)
    told = writer.write(iter([batch_of(*rows)]))
    assert (told.rows, told.refused) == (len(rows), len(bad))
    log = BadRecordLog(tmp_path)
    assert log.files() == []
    writer.commit([told, None])
    found = pq.read_table(log.files()).sort_by("offset").to_pylist()
    assert {row["offset"]: (row["code"], row["reason"]) for row in found} == {
        100: (312, "NO_ROUTE"),
        101: (0, "the routing_key is null"),
        102: (0, "the exchange has 256 bytes, and can have 255"),
        103: (0, "column headers: headers are a JSON object"),
        104: (0, "properties_raw is not valid: SYNTAX_ERROR - content header without property flags"),
        105: (0, "invalid expiration 'soon': no_integer"),
        106: (0, "column priority: 256 is not an octet"),
        107: (0, "column message_id: a short string cannot hold 256 octets"),
        108: (0, "a full queue refused it 1 times"),
        65_636: (0, "the offset is not one of the slot"),
    }
    assert found[0]["properties_raw"] == b"\x10\x00\x02"
    assert bodies(broker) == [b"9/0", b"9/1", b"9/2"]


def test_only_attempts_that_won_count(broker: Broker, tmp_path: Path) -> None:
    """A failed attempt and an aborted write leave no file; of a repeated batch the first files count."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id":"00000000-0000-0000-0000-000000000007"}')
    folder = tmp_path / "bad"
    options = {"url": broker.url, "badRecords": str(folder), "checkpointLocation": str(checkpoint)}
    nowhere = batch_of(*placed(2, routing_key="nowhere"))

    def failing() -> Iterator[pa.RecordBatch]:
        yield nowhere
        raise RuntimeError("gone")

    writer = Sink(options, MESSAGE_COLUMNS, overwrite=False)
    with pytest.raises(RuntimeError):
        writer.write(failing())
    writer.abort([writer.write(iter([nowhere])), None])
    assert list((folder / "data").iterdir()) == []
    for _ in range(2):  # the second attempt is the restarted query, whose last commit was not recorded
        stream = Sink(options, MESSAGE_COLUMNS, overwrite=False)
        stream.commit([stream.write(iter([nowhere])), stream.write(iter([]))], 5)
    log = BadRecordLog(folder)
    assert len(log.files()) == len(list((folder / "data").iterdir())) == 1
    assert [path.name for path in (folder / "_log").iterdir()] == [
        "00000000-0000-0000-0000-000000000007-00000000000000000005.json"
    ]


def test_without_a_folder_a_bad_row_is_an_error(broker: Broker) -> None:
    """The error names the message, the reason and the option that helps."""
    text = r"exchange '' with key 'nowhere': NO_ROUTE; the option badRecords names a folder for such rows"
    with pytest.raises(PublishFailed, match=text):
        written(broker, [batch_of({"routing_key": "nowhere"})])


def test_a_task_without_rows_connects_nowhere() -> None:
    """An empty partition needs no broker."""
    writer = Sink({"url": "amqp://127.0.0.1:1"}, MESSAGE_COLUMNS, overwrite=False)
    assert writer.write(iter([batch_of()])) == Tally()


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ("routing_key string", {}, "there is no column 'body'"),
        ("body binary", {"exchange": "x"}, "there is no column 'routing_key', and no option routingKey"),
        ("body binary", {"routingKey": "k"}, "there is no column 'exchange', and no option exchange"),
        ("body int", {"routingKey": "k", "exchange": ""}, "the column 'body' should be binary or string, not int"),
        ("body string, date date", {}, "the column 'date' is not part of a message: drop it"),
        (
            "body string, seal bigint, slot bigint",
            {"routingKey": "k", "exchange": "", "producer": "p"},
            "the producer numbers rows by the columns seal, slot and offset, and there is no 'offset'",
        ),
        (
            "body string",
            {"routingKey": "k", "exchange": "", "producer": "p", "sequenceColumn": "n"},
            "the column 'n' of the option sequenceColumn should be a whole number, and there is none",
        ),
        (
            "body string, n string",
            {"routingKey": "k", "exchange": "", "producer": "p", "sequenceColumn": "n"},
            "should be a whole number, not string",
        ),
        ("body string, n int", {"sequenceColumn": "n"}, "numbers the messages of a producer: name one with producer"),
        ("body string", {"winow": "5"}, "there is no option 'winow'; did you mean window?"),
        ("body string", {"window": "0"}, "the option window should be a whole number from 1 to 65535, not '0'"),
        ("body string", {"mandatory": "maybe"}, "the option mandatory should be true or false, not 'maybe'"),
        ("body string", {"badRecords": "s3://bucket"}, "should be the absolute path of a folder that all workers see"),
        ("body string", {"badRecords": "file://["}, "should be the absolute path of a folder that all workers see"),
        ("body string", {"producer": "p" * 256}, "the option producer has more than 189 bytes"),
        ("body string", {"url": "http://h"}, "the url of the broker should be amqp://user:password@host:port/vhost"),
    ],
)
def test_what_the_sink_refuses(columns: str, options: dict[str, str], text: str) -> None:
    """Wrong columns and options are refused with one line before anything is published."""
    with pytest.raises(SinkRefused) as caught:
        Sink({"url": "amqp://127.0.0.1:1", **options}, columns_of(columns), overwrite=False)
    assert text in str(caught.value)


def test_other_modes_are_refused() -> None:
    """Overwriting, and a sink without an address, are refused."""
    with pytest.raises(SinkRefused, match="use mode append"):
        Sink({"url": "amqp://h"}, MESSAGE_COLUMNS, overwrite=True)
    with pytest.raises(SinkRefused, match="the option url is missing"):
        Sink({}, MESSAGE_COLUMNS, overwrite=False)


class RegisteringSession:
    """A session as `register` uses it, with one setting, which Spark cannot change later."""

    def __init__(self, speculation: str | None) -> None:
        self.conf = {} if speculation is None else {"spark.speculation": speculation}
        self.formats: dict[str, Any] = {}
        self.dataSource = self

    def register(self, kind: Any) -> None:
        """Record the format."""
        self.formats[kind.name()] = kind


@pytest.mark.parametrize(("speculation", "refuses"), [(None, False), ("false", False), ("true", True)])
def test_a_session_that_speculates_does_not_write(speculation: str | None, refuses: bool) -> None:
    """A speculative second attempt would publish in parallel, so such a session has no writers."""
    session: Any = RegisteringSession(speculation)
    register(session)
    source = session.formats["slotmq"](options={"url": "amqp://h"})
    for make in (source.writer, source.streamWriter):
        if refuses:
            with pytest.raises(SinkRefused, match=r"the session has spark\.speculation"):
                make(MESSAGE_COLUMNS, overwrite=False)
        else:
            make(MESSAGE_COLUMNS, overwrite=False)


def test_equal_seals_of_other_stores_and_histories_are_other_messages(broker: Broker) -> None:
    """Numbers are unique per store and per start of the sealing broker, so equal seals of others are not duplicates."""
    origins: list[dict[str, Any]] = [
        {"store": "a" * 32, "incarnation": "1" * 32},
        {"store": "a" * 32, "incarnation": "2" * 32},
        {"store": "b" * 32, "incarnation": "1" * 32},
        {"store": "b" * 32, "incarnation": None},
        {"store": None, "incarnation": None},
    ]
    rows = [{**row, **origin} for origin in origins for row in placed(3)]
    for _ in range(2):
        assert written(broker, [batch_of(*rows)], producer="p" * 189).rows == len(rows)
    assert len(bodies(broker)) == len(rows)


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("limit_bytes", "rows"), [(0, 1), (1000, 1), (1000, UNWRITTEN_MAX)])
def test_a_full_disk_leaves_no_file_of_refused_rows(tmp_path: Path, limit_bytes: int, rows: int) -> None:
    """The file is closed and removed wherever the disk is full: at its first bytes, among its rows, or at its end."""
    descriptors = len(list(Path("/dev/fd").iterdir()))
    refused = RefusedMessage(("", "q", b"", randbytes(5000), None, (1, 1, 1)), 312, "NO_ROUTE")

    def write() -> None:
        with file_size_limit(limit_bytes), BadRecordFile(tmp_path) as file:
            for _ in range(rows):
                file.add(refused)

    with pytest.raises(OSError, match="too large"):
        write()
    assert not list((tmp_path / "data").iterdir())
    assert len(list(Path("/dev/fd").iterdir())) == descriptors


def test_a_full_disk_leaves_no_unfinished_entry_or_state(tmp_path: Path) -> None:
    """A file that is to get its name when it is complete is removed if it cannot be completed."""
    for write in (
        lambda: BadRecordLog(tmp_path).commit("run", 1, ["a.parquet"]),
        lambda: Disk().write_whole(tmp_path / "_log" / "state.json", b"{}"),
    ):
        with pytest.raises(OSError, match="too large"), file_size_limit(0):
            write()
    assert not list((tmp_path / "_log").iterdir())
