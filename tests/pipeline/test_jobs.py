"""Replay, route and deadletters against a real broker."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pamqp import commands
from pyspark.sql import SparkSession

from broker.amqp.wire import PROPERTIES_AT
from broker.cli.control_client import ask
from broker.cli.main import main
from broker.client.address import AmqpAddress
from broker.client.blocking import BlockingLink
from broker.pipeline.faults import BAD_RECORDS, OK
from broker.pipeline.job import Progress
from broker.pipeline.jobs.replay import ReplayOptions, run_replay
from broker.pipeline.jobs.route import count_frame, routed_rows, running_topology
from broker.pipeline.lake.lake import Lake
from broker.pipeline.routes.topology import read_definitions, read_text
from broker.pipeline.selection import Selection
from broker.pipeline.sink.amqp_publisher import AmqpPublisher
from broker.pipeline.sink.publishing import BadRecordLog
from broker.pipeline.source.schema import ARROW_SCHEMA, COLUMNS, ddl_of
from broker.pipeline.spark.tasks import session_setting
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.lake_folders import make_lake
from tests.unit.pipeline.encoded import properties

FIRST_US = 1_790_000_000_000_000
SLOT = 200


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Provide a broker for all tests here, each of which uses its own names."""
    process = BrokerProcess(tmp_path_factory.mktemp("jobs") / "data").start()
    yield process
    process.kill()


@pytest.fixture
def channel(broker: BrokerProcess) -> Iterator[Any]:
    """Provide a channel with confirms."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.address.url))
    made = connection.channel()
    made.confirm_delivery()
    yield made
    connection.close()


def depth(channel: Any, queue: str) -> int:
    """Return the number of messages in a queue."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def drain(broker: BrokerProcess, queue: str) -> list[tuple[str, str, bytes, bytes]]:
    """Return the messages of a queue (exchange, key, properties, body) in order, and leave it empty.

    The bytes of properties are those that clients do not show.
    """
    link = BlockingLink(AmqpAddress.parse(broker.address.url), {"connection_name": "test"})
    found: list[tuple[str, str, bytes, bytes]] = []
    get = commands.Basic.Get(0, queue, no_ack=False)
    while isinstance((got := link.call(1, get)).method, commands.Basic.GetOk):
        method = got.method
        found.append((method.exchange, method.routing_key or "", got.header[PROPERTIES_AT:], got.body))
    link.client.send(1, commands.Basic.Ack(0, multiple=True))
    link.close()
    return found


def rows_of(queue: str, messages: Sequence[tuple[str, str, bytes, bytes]], seal: int) -> Any:
    """Return rows of messages (exchange, key, properties, body) in slots of a queue, from this seal on."""
    rows = [
        {
            "vhost": "/", "queue": queue, "slot": n // SLOT * SLOT + 1, "seal": seal + 2 * (n // SLOT), "offset": n + 1,
            "ts": FIRST_US + 1000 * n, "exchange": exchange, "routing_key": key, "properties_raw": octets,
            "headers": '{"CC": []}' if b"\x02CCA" in octets else None, "body": body,
        }
        for n, (exchange, key, octets, body) in enumerate(messages)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, ARROW_SCHEMA)


def test_replay_publishes_a_slice_octet_by_octet_in_order_and_once(
    spark: SparkSession,
    broker: BrokerProcess,
    channel: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Order is the lake's per queue and key; unroutable messages are kept; a rerun and a resume add nothing."""
    draw = random.Random(1)
    heads = [properties({}), properties({"n": 1, "a": [1, {"b": b"\xff"}]}, content_type="text/x"), b"\x00\x00"]
    sent = {
        queue: [
            ("replay", f"{queue}.k{draw.randrange(7)}", draw.choice(heads), f"{queue} {n}".encode() * draw.randrange(3))
            for n in range(500)
        ]
        for queue in ("one", "two")
    }
    sent["one"][7] = ("replay", "lost.key", heads[1], b"nobody")
    lake = make_lake(
        tmp_path / "lake", *(rows_of(queue, rows, seal) for seal, (queue, rows) in enumerate(sent.items(), 1))
    )
    channel.exchange_declare("replay", "topic")
    channel.queue_declare("replayed", durable=True)
    for pattern in ("one.#", "two.#", "again.#"):
        channel.queue_bind("replayed", "replay", pattern)
    monkeypatch.setattr("broker.pipeline.job.spark_of", lambda _: spark)
    command = ["pipeline", "replay", "--lake", str(lake.place), "--to", broker.address.url, "--quiet", "--json"]

    assert main([*command, "--dry-run"]) == OK
    assert depth(channel, "replayed") == 0
    assert main(command) == BAD_RECORDS
    got = drain(broker, "replayed")
    expected = [row for rows in sent.values() for row in rows if row[1] != "lost.key"]
    assert Counter(got) == Counter(expected)
    by_key: dict[str, list[bytes]] = defaultdict(list)
    wanted: dict[str, list[bytes]] = defaultdict(list)
    for _, key, _, body in got:
        by_key[key].append(body)
    for _, key, _, body in expected:
        wanted[key].append(body)
    assert by_key == wanted

    (folder,) = (lake.place.work_folder / "unroutable").iterdir()
    refused = [row for path in BadRecordLog(folder).files() for row in pq.read_table(path).to_pylist()]
    assert [(row["routing_key"], row["offset"], row["code"]) for row in refused] == [("lost.key", 8, 312)]

    capsys.readouterr()
    assert main([*command, "--json"]) == BAD_RECORDS
    assert depth(channel, "replayed") == 0, "the broker knows the numbers of the first run"
    told = json.loads(capsys.readouterr().out)
    assert (told["published"], told["dropped"], told["refused"]) == (0, told["messages"] - 1, 1)
    assert told["refused_rows"] == str(folder)
    assert main([*command, "--resume"]) == OK
    mapped = ["--resume", "--producer", "other", "--queue", "one", "--pattern", "*.k1", "--map", "one.*=again.*"]
    assert main([*command, *mapped]) == OK
    again = drain(broker, "replayed")
    assert again == [("replay", "again.k1", row[2], row[3]) for row in sent["one"] if row[1] == "one.k1"]
    assert main([*command, "--resume", "--producer", "other"]) == 2, "the state is that of another selection"

    options = replace(_replay_options(spark, lake, broker), producer="none", exchange="", speed=1000.0)
    channel.queue_declare("two.k3", durable=True)
    chosen = replace(options, selection=replace(options.selection, where="routing_key = 'two.k3' AND seal = 2"))
    summary = run_replay(chosen, Progress("replay", quiet=True))
    first = [row for row in sent["two"][:SLOT] if row[1] == "two.k3"]
    assert summary.values["published"] == len(first)
    assert [row[2:] for row in drain(broker, "two.k3")] == [row[2:] for row in first]


def test_a_resumed_replay_publishes_what_another_archive_brought_meanwhile(
    spark: SparkSession,
    broker: BrokerProcess,
    channel: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Slots of other taps and stores may have lower seals, or the same: they are published, and none is repeated."""
    channel.queue_declare("resumed", durable=True)
    monkeypatch.setattr("broker.pipeline.job.spark_of", lambda _: spark)

    def rows(tap: str, seal: int) -> Any:
        return rows_of(tap, [("", key, b"\x00\x00", tap.encode()) for key in ("resumed", "nobody")], seal)

    def replay() -> tuple[int, int, int]:
        main([*command, "--producer", "none", "--resume"])
        told = json.loads(capsys.readouterr().out)
        return told["skipped"], told["published"], told["refused"]

    lake = make_lake(tmp_path / "lake", rows("late", 9))
    command = ["pipeline", "replay", "--lake", str(lake.place), "--to", broker.address.url, "--quiet", "--json"]
    assert replay() == (0, 1, 1)
    make_lake(tmp_path / "lake", rows("early", 1), rows("elsewhere", 9), rows("late", 10))
    assert replay() == (2, 3, 3)
    assert replay() == (8, 0, 0)
    assert sorted(body for *_, body in drain(broker, "resumed")) == [b"early", b"elsewhere", b"late", b"late"]
    (folder,) = (lake.place.work_folder / "unroutable").iterdir()
    assert sum(pq.read_table(path).num_rows for path in BadRecordLog(folder).files()) == 4


def test_a_dry_run_counts_the_routes_that_would_be_published(
    spark: SparkSession,
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Keys and exchanges that become one are counted as one route."""
    monkeypatch.setattr("broker.pipeline.job.spark_of", lambda _: spark)
    keys = [("x", "a.1"), ("y", "b.1"), ("x", "a.1"), ("x", "other")]
    lake = make_lake(tmp_path / "lake", rows_of("t", [(exchange, key, b"", b"12") for exchange, key in keys], 1))
    command = ["pipeline", "replay", "--lake", str(lake.place), "--to", broker.address.url, "--quiet", "--json"]
    assert main([*command, "--dry-run", "--map", "*.1=one", "--exchange", "new"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert (told["messages"], told["bytes"], told["keys"]) == (4, 8, 2)
    assert told["top"] == [
        {"exchange": "new", "routing_key": "one", "messages": 3},
        {"exchange": "new", "routing_key": "other", "messages": 1},
    ]


def _replay_options(spark: SparkSession, lake: Lake, broker: BrokerProcess) -> Any:
    return ReplayOptions(lambda: spark, Selection(lake.place.root), AmqpAddress.parse(broker.address.url))


BINDINGS: dict[str, list[dict[str, Any]]] = {
    "exchanges": [
        {"name": "r.top", "type": "topic", "arguments": {"alternate-exchange": "r.lost"}},
        {"name": "r.direct", "type": "direct"},
        {"name": "r.fan", "type": "fanout"},
        {"name": "r.heads", "type": "headers"},
        {"name": "r.lost", "type": "fanout"},
    ],
    "bindings": [
        {"source": "r.top", "routing_key": "a.*", "destination": "r1"},
        {"source": "r.top", "routing_key": "a.#", "destination": "r1"},
        {"source": "r.top", "routing_key": "#.b", "destination": "r2"},
        {"source": "r.top", "routing_key": "c", "destination": "r.direct", "destination_type": "exchange"},
        {"source": "r.top", "routing_key": "never.*", "destination": "r3"},
        {"source": "r.direct", "routing_key": "c", "destination": "r3"},
        {"source": "r.fan", "routing_key": "", "destination": "r1"},
        {"source": "r.fan", "routing_key": "", "destination": "r.heads", "destination_type": "exchange"},
        {"source": "r.heads", "destination": "r4", "arguments": {"x-match": "any", "kind": "x", "size": 3}},
        {"source": "r.lost", "routing_key": "", "destination": "r5"},
    ],
}


def test_route_tells_what_the_broker_does(
    spark: SparkSession, broker: BrokerProcess, channel: Any, tmp_path: Path
) -> None:
    """Messages published with these bindings reach the queues as counted; a diff with them finds nothing."""
    queues = [f"r{n}" for n in range(1, 6)]
    for queue in queues:
        channel.queue_declare(queue, durable=True)
    for exchange in BINDINGS["exchanges"]:
        channel.exchange_declare(exchange["name"], exchange["type"], durable=True, arguments=exchange.get("arguments"))
    for made in BINDINGS["bindings"]:
        bind = channel.exchange_bind if made.get("destination_type") == "exchange" else channel.queue_bind
        bind(made["destination"], made["source"], made.get("routing_key", ""), made.get("arguments"))
    draw = random.Random(2)
    heads = [properties({}), properties({"kind": "x"}), properties({"size": 3.0}), properties({"CC": ["a.z", "c"]})]
    words = ["a", "b", "c", "d"]
    messages = [
        (
            draw.choice(["r.top", "r.top", "r.direct", "r.fan", "r.heads", ""]),
            draw.choice(["c", "r2", ".".join(draw.choices(words, k=draw.randint(1, 3)))]),
            draw.choice(heads),
            b"",
        )
        for _ in range(2000)
    ]
    with AmqpPublisher(AmqpAddress.parse(broker.address.url), refused=lambda _: None) as publisher:
        publisher.publish((*message, None, None) for message in messages)
    frame = spark.createDataFrame(pa.Table.from_batches([rows_of("t", messages, 1)]).to_pandas(), _ddl())
    topology = read_definitions({**BINDINGS, "queues": [{"name": queue} for queue in queues]})
    today = running_topology(str(broker.folder))

    values = count_frame(frame, topology, today)

    counted = {found["queue"]: found["messages"] for found in values["queues"]}
    assert counted == {queue: depth(channel, queue) for queue in queues}
    assert (values["messages"], values["copies"]) == (2000, sum(counted.values()))
    assert values["dead_bindings"] == ["r.top --never.*--> r3"]
    assert values["diff"]["messages"] == 0
    assert {key: values["diff"][key] for key in ("gained", "lost")} == {"gained": [], "lost": []}

    fewer = replace(topology, bindings=tuple(each for each in topology.bindings if each.destination != "r1"))
    diff = count_frame(frame, fewer, topology)["diff"]
    assert [(found["queue"], found["messages"]) for found in diff["lost"]] == [("r1", counted["r1"])]
    assert len(diff["bindings_removed"]) == 3
    rows = routed_rows(frame, topology).collect()
    alone = sum(row["exchange"] == "r.top" and row["queues"] == ["r1"] for row in rows)
    assert [(found["queue"], found["messages"]) for found in diff["gained"]] == [("r5", alone)]
    assert Counter(queue for row in rows for queue in row["queues"]) == Counter(counted)
    assert len(rows) == values["routed"]


def test_a_key_with_varying_properties_is_ranked_by_all_of_its_messages(spark: SparkSession) -> None:
    """A frequent key is listed although no two of its messages are alike, and 3,000 other keys reach no queue."""
    other = [("gone", f"key {n}", properties({}), b"") for n in range(3000) for _ in range(6)]
    varied = [("gone", "hot", properties({"CC": ["none"], "n": n}), b"") for n in range(8)]
    frame = spark.createDataFrame(pa.Table.from_batches([rows_of("t", other + varied, 1)]).to_pandas(), _ddl())
    with session_setting(spark, "spark.sql.adaptive.coalescePartitions.enabled", "false"):
        values = count_frame(frame, read_text("ex,a.*,q1\n"))
    assert values["unrouted_keys"][0] == {"vhost": "/", "exchange": "gone", "key": "hot", "messages": 8}


def _ddl() -> str:
    return ddl_of(ARROW_SCHEMA, COLUMNS)


def test_dead_letters_are_told_and_go_back(
    spark: SparkSession, broker: BrokerProcess, channel: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Groups are as the messages died; a listing takes nothing; requeued messages that die again are recognized."""
    channel.exchange_declare("d.ex", "topic")
    channel.queue_declare("d.dead", durable=True)
    channel.queue_declare(
        "d.work",
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d.dead"},
    )
    channel.queue_bind("d.work", "d.ex", "#")

    def die(count: int) -> None:
        for _ in range(count):
            method = wait_until(lambda: channel.basic_get("d.work")[0], "a message to reject")
            channel.basic_nack(method.delivery_tag, requeue=False)

    for n in range(9):
        channel.basic_publish(
            "d.ex", f"k{n % 2}", b"rejected", pika.BasicProperties(headers={"n": n}, expiration="90000")
        )
    die(9)
    for _ in range(4):
        channel.basic_publish("d.ex", "k0", b"expired", pika.BasicProperties(expiration="1"))
    channel.basic_publish("", "d.dead", b"alive")
    wait_until(lambda: depth(channel, "d.dead") == 14, "dead letters")
    monkeypatch.setattr("broker.pipeline.job.spark_of", lambda _: spark)
    look = ["pipeline", "deadletters", "--path", str(broker.folder), "--queue", "d.dead", "--quiet", "--json"]

    def told(*more: str) -> Any:
        capsys.readouterr()
        assert main([*look, *more]) == 0
        return json.loads(capsys.readouterr().out)

    def groups(found: Any) -> dict[tuple[str, str, str, str], tuple[int, int]]:
        return {
            (group["reason"], group["died_in"], group["exchange"], group["routing_key"]): (
                group["messages"],
                group["replayed"],
            )
            for group in found["groups"]
        }

    found = told()
    assert groups(found) == {
        ("rejected", "d.work", "d.ex", "k0"): (5, 0),
        ("rejected", "d.work", "d.ex", "k1"): (4, 0),
        ("expired", "d.work", "d.ex", "k0"): (4, 0),
    }
    assert found["groups"][0]["sample"]["body"] == {"text": "rejected"}
    assert found["groups"][0]["first"].endswith("+00:00")
    assert depth(channel, "d.dead") == 14

    requeued = ask(broker.folder, "requeue_dead_letters", queue="d.dead", into="exchange", reasons=["rejected"])
    assert (requeued["moved"], requeued["unwanted"]) == (9, 5)
    assert (depth(channel, "d.dead"), depth(channel, "d.work")) == (5, 9)
    back = channel.basic_get("d.work")
    assert (back[0].exchange, back[0].routing_key, back[1].expiration) == ("d.ex", back[0].routing_key, "90000")
    assert {name: value for name, value in back[1].headers.items() if name != "n"} == {
        "x-replayed": 1,
        "x-replayed-queue": "d.work",
        "x-replayed-reason": "rejected",
    }
    channel.basic_nack(back[0].delivery_tag, requeue=False)
    die(8)
    wait_until(lambda: depth(channel, "d.dead") == 14, "those that died again")
    assert groups(told("--reason", "rejected")) == {
        ("rejected", "d.work", "d.ex", "k0"): (5, 5),
        ("rejected", "d.work", "d.ex", "k1"): (4, 4),
    }


@pytest.mark.parametrize(("into", "place"), [("exchange", ("l.ex", "k")), ("queue", ("", "l.work"))])
def test_dead_letters_of_a_lake_go_back_once(
    spark: SparkSession,
    broker: BrokerProcess,
    channel: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    into: str,
    place: tuple[str, str],
) -> None:
    """Chosen dead letters go to their first exchange, or to the queue in which they died; a rerun adds nothing."""
    channel.exchange_declare("l.ex", "topic")
    channel.queue_declare("l.work", durable=True)
    channel.queue_bind("l.work", "l.ex", "#")
    deaths = [
        {"queue": "l.work", "reason": reason, "exchange": "l.ex", "routing-keys": ["k"], "count": 1}
        for reason in ("rejected", "expired")
    ]
    dead = [("", "l.dead", properties({"x-death": [deaths[n % 2]]}), b"%d" % n) for n in range(8)]
    lake = make_lake(tmp_path / "lake", rows_of("l.tap", [*dead, ("", "l.dead", b"\x00\x00", b"alive")], 1))
    monkeypatch.setattr("broker.pipeline.job.spark_of", lambda _: spark)
    command = ["pipeline", "deadletters", "--lake", str(lake.place), "--reason", "rejected", "--quiet", "--json"]
    for count in (4, 0):
        capsys.readouterr()
        assert main([*command, "--replay", "--to", broker.address.url, "--into", into]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["messages"], told["published"], told["dropped"]) == (4, count, 4 - count)
        found = drain(broker, "l.work")
        assert sorted(body for *_, body in found) == [b"0", b"2", b"4", b"6"][:count]
        assert {(exchange, key) for exchange, key, _, _ in found} == ({place} if count else set())
        assert all(b"x-replayed" in octets and b"x-death" not in octets for _, _, octets, _ in found)
