"""The report of a lake beside a running broker: its numbers equal those counted from the messages."""

from __future__ import annotations

import json
import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pika
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from broker.cli.main import main
from broker.pipeline.source.schema import ARROW_SCHEMA
from broker.routing.pattern import split_words
from tests.broker_process import BrokerProcess
from tests.lake_folders import make_lake
from tests.property.topic_reference import matches
from tests.slot_folders import SlotFolder, TapMessage

START = datetime(2026, 11, 18, 22, 30, tzinfo=UTC)
HOURS = 5
BINDINGS = {  # for the topic exchange "air"
    "all": ["#"],
    "late": ["flight.*.late", "flight.UA.late", "#.late"],
    "trains": ["train.#"],
    "american": ["flight.AA.*"],
}
SIZES = (0, 1, 2, 3, 100, 128, 129, 5000)


def messages() -> list[dict[str, Any]]:
    """Return the messages of the lake: a busy exchange, one without consumers, and the default exchange."""
    random = Random(7)
    keys = [("air", f"flight.{carrier}.{state}") for carrier in ("UA", "AA", "DL") for state in ("late", "well")]
    keys += [("air", ""), ("air", "gate"), ("deaf", "a.b.c.d.e"), ("", "late"), ("", "nobody")]
    return [
        {
            "vhost": "/", "queue": "t", "offset": number, "exchange": exchange, "routing_key": key,
            "ts": START + timedelta(milliseconds=random.randrange(HOURS * 3_600_000)),
            "body": bytes(random.choice(SIZES)),
        }
        for number in range(900)
        for exchange, key in random.choices(keys, range(1, len(keys) + 1))
    ]  # fmt: skip


def queues_of(row: dict[str, Any]) -> list[str]:
    """Return the queues that get a message, by the definition of patterns."""
    if row["exchange"] == "":
        return [name for name in BINDINGS if name == row["routing_key"]]
    if row["exchange"] != "air":
        return []
    words = split_words(row["routing_key"])
    return [name for name, keys in BINDINGS.items() if any(matches(split_words(key), words) for key in keys)]


@pytest.fixture
def declared(broker_process: BrokerProcess) -> Any:
    """Provide a broker with the bindings, and queue `all` with two consumers, one holding three times as many."""
    broker_process.start()
    address = broker_process.address
    connection = pika.BlockingConnection(pika.ConnectionParameters(address.host, address.port, heartbeat=0))
    channel = connection.channel()
    channel.exchange_declare("air", "topic", durable=True)
    channel.exchange_declare("deaf", "fanout", durable=True)
    for queue, keys in BINDINGS.items():
        channel.queue_declare(queue, durable=True)
        for key in keys:
            channel.queue_bind(queue, "air", key)
    for number in range(5):
        channel.basic_publish("", "all", str(number).encode())
    for prefetch in (3, 1):
        consuming = connection.channel()
        consuming.basic_qos(prefetch_count=prefetch)
        got: list[bytes] = []
        consuming.basic_consume("all", lambda _c, _m, _p, body, got=got: got.append(body))
        while len(got) < prefetch:
            connection.process_data_events(1)
    yield broker_process
    connection.close()


def test_the_numbers_are_those_of_the_messages(
    spark: SparkSession, declared: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every figure in the report's JSON equals the one counted from the messages, the bindings and the slots."""
    rows = messages()
    make_lake(tmp_path / "lake", pa.RecordBatch.from_pylist(rows, ARROW_SCHEMA))
    output = tmp_path / "report.html"
    words = ["--lake", str(tmp_path / "lake"), "--path", str(declared.folder), "-o", str(output), "--json", "--quiet"]
    assert main(["pipeline", "report", *words]) == 0
    values = json.loads(capsys.readouterr().out)

    traffic = values["traffic"]
    count = len(rows)
    assert traffic["messages"] == count
    assert traffic["bytes"] == sum(len(row["body"]) for row in rows)
    assert traffic["keys"] == len({(row["exchange"], row["routing_key"]) for row in rows})
    assert traffic["slice_ms"] == 300_000  # five hours are 300 minutes, more than are shown
    check_slices(traffic, rows)
    check_heat(traffic, rows)
    assert {int(day): n for day, n in traffic["by_day"].items()} == Counter(
        int(row["ts"].replace(hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000) for row in rows
    )
    by_key = Counter((row["exchange"], row["routing_key"]) for row in rows)
    told = [((row["exchange"], row["routing_key"]), row["messages"]) for row in traffic["top_keys"]]
    assert told == sorted(by_key.items(), key=lambda item: (-item[1], item[0]))
    exchanges = {row["exchange"]: (row["messages"], row["keys"]) for row in traffic["exchanges"]}
    assert exchanges == {
        name: (
            sum(row["exchange"] == name for row in rows),
            len({row["routing_key"] for row in rows if row["exchange"] == name}),
        )
        for name in ("air", "deaf", "")
    }
    check_sizes(traffic["sizes"], [len(row["body"]) for row in rows])
    check_reach(values["reach"], rows)
    assert {(row["binding"], row["covered_by"]) for row in values["redundant_bindings"]} == {
        ("air --flight.*.late--> late", "air --#.late--> late"),
        ("air --flight.UA.late--> late", "air --#.late--> late"),
    }
    assert [(row["queue"], row["ready"], row["unacked"], row["held"], row["skew"]) for row in values["queues"]] == [
        ("all", 1, 4, [3, 1], 1.5)
    ]
    forecast = values["forecast"]
    span_ms = (max(row["ts"] for row in rows) - min(row["ts"] for row in rows)) / timedelta(milliseconds=1)
    assert math.isclose(forecast["messages_a_day"], count * 86_400_000 / span_ms)
    size = sum(path.stat().st_size for path in (tmp_path / "lake").rglob("*.parquet"))
    assert forecast["lake_bytes"] == size
    assert math.isclose(forecast["ahead"][0]["lake_bytes"], size + 7 * forecast["messages_a_day"] * size / count)
    page = output.read_text()
    assert f"{count}" in page
    assert "air --train.#--&gt; trains" in page


def check_slices(traffic: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Check messages and bytes of each slice of time, including empty ones."""
    size_ms, begins_ms = traffic["slice_ms"], traffic["rate"]["begins_ms"]
    counts: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for row in rows:
        place = (int(row["ts"].timestamp() * 1000) - begins_ms) // size_ms
        counts[place] += 1
        sizes[place] += len(row["body"])
    assert traffic["rate"]["messages"] == [counts[at] for at in range(max(counts) + 1)]
    assert traffic["rate"]["bytes"] == [sizes[at] for at in range(max(counts) + 1)]


def check_heat(traffic: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Check each level: the keys with this many words, by their beginning, slice by slice."""
    size_ms, begins_ms = traffic["slice_ms"], traffic["rate"]["begins_ms"]
    assert [level["level"] for level in traffic["heat"]] == [1, 2, 3, 4]
    for level in traffic["heat"]:
        expected: dict[tuple[str, str], Counter[int]] = {}
        for row in rows:
            words = row["routing_key"].split(".") if row["routing_key"] else []
            if len(words) >= level["level"]:
                beginning = (row["exchange"], ".".join(words[: level["level"]]))
                place = (int(row["ts"].timestamp() * 1000) - begins_ms) // size_ms
                expected.setdefault(beginning, Counter())[place] += 1
        assert level["beginnings"] == len(expected)
        assert level["messages"] == sum(sum(counts.values()) for counts in expected.values())
        slices = len(traffic["rate"]["messages"])
        assert {(row["exchange"], row["beginning"]): (row["messages"], row["slices"]) for row in level["rows"]} == {
            beginning: (sum(counts.values()), [counts[at] for at in range(slices)])
            for beginning, counts in expected.items()
        }


def check_sizes(sizes: dict[str, Any], expected: list[int]) -> None:
    """Check the size classes, which end at powers of two, and the facts."""
    upto = [size if size <= 1 else 1 << (size - 1).bit_length() for size in expected]
    assert {row["upto"]: row["messages"] for row in sizes["classes"]} == Counter(upto)
    assert (sizes["max"], sizes["mean"]) == (max(expected), sum(expected) / len(expected))
    ordered = sorted(expected)
    assert ordered[len(ordered) // 2 - 1] <= sizes["p50"] <= ordered[len(ordered) // 2]
    assert sizes["p99"] == 5000


def check_reach(reach: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Check fan-out, keys that reach no queue, and bindings that no message matched."""
    fan_out = Counter(len(queues_of(row)) for row in rows)
    assert {row["queues"]: row["messages"] for row in reach["by_queues"]} == fan_out
    assert reach["copies"] == sum(queues * count for queues, count in fan_out.items())
    nobody = Counter((row["exchange"], row["routing_key"]) for row in rows if not queues_of(row))
    assert {(row["exchange"], row["routing_key"]): row["messages"] for row in reach["unmatched"]} == nobody
    assert (reach["unmatched_messages"], reach["unmatched_keys"]) == (nobody.total(), len(nobody))
    assert [row["binding"] for row in reach["dead_bindings"]] == ["air --train.#--> trains"]


def test_slots_and_bindings_without_a_running_broker(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For an empty lake beside a stopped broker, the report has slots and cursors, and bindings from a file."""
    make_lake(tmp_path / "lake")
    folder = SlotFolder(tmp_path / "data")
    for _ in range(3):
        folder.add_slot("t", [TapMessage(b"x", "a"), TapMessage(b"y", "b")])
    (tmp_path / "bindings.csv").write_text("air,#,all\nair,flight.#,all\n")
    words = f"--lake {tmp_path}/lake --path {tmp_path}/data -o {tmp_path}/r.html --bindings {tmp_path}/bindings.csv"
    assert main(["pipeline", "report", *words.split(), "--json"]) == 0
    said = capsys.readouterr()
    values = json.loads(said.out)
    assert "no broker" in said.err
    assert values["queues"] is None
    assert [(row["cursor"], row["lag_slots"], row["lag_messages"]) for row in values["taps"]] == [(None, 3, 6)]
    assert (values["traffic"], values["forecast"], values["reach"]["by_queues"]) == (None, None, [])
    assert len(values["reach"]["dead_bindings"]) == 2
    assert len(values["redundant_bindings"]) == 1
    assert "There is no message in this part of the lake." in (tmp_path / "r.html").read_text()
