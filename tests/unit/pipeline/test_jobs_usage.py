"""Wrong usage of the jobs: one line and exit code 2, before Spark starts; and the values of a query."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from broker.cli.main import main
from broker.pipeline.faults import GAP, OK
from broker.pipeline.job import Progress, Summary
from broker.pipeline.jobs import query
from broker.pipeline.jobs.query import plain
from broker.pipeline.lake.lake import Lake
from broker.pipeline.source.slot_source import SlotSource
from tests.slot_folders import SlotFolder, numbered

BROKER = "amqp://localhost"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("replay --lake LAKE --to http://x", "should be amqp://"),
        ("replay --lake LAKE --to BROKER --map nowhere", "neither old=new nor a file"),
        ("replay --lake LAKE --to BROKER --map a=*", "more '*' than the left"),
        ("replay --lake LAKE --to BROKER --rate -1", "--rate"),
        ("replay --lake LAKE --to BROKER --rate 1 --speed 1", "not allowed with"),
        ("replay --lake LAKE --to BROKER --set-header x", "NAME=VALUE"),
        ("replay --lake LAKE --to BROKER --drop-property x", "invalid choice"),
        ("replay --lake LAKE --to BROKER --rate nan", "--rate"),
        ("replay --lake LAKE --to BROKER --speed inf", "--rate and --speed"),
        ("replay --lake LAKE --to BROKER --window 65536", "--window is between 1 and 65,535"),
        ("replay --lake LAKE --to BROKER --from lately", "'lately' is not a time such as"),
        ("replay --lake LAKE --to BROKER --until 2026-13-01", "is not a time such as"),
        ("replay --lake LAKE --to amqp://u:secret/x@h", "with %2F for a slash"),
        ("replay --lake NONE --to BROKER", "is not a lake"),
        ("route --lake LAKE --bindings nowhere.csv", "nowhere.csv: cannot be read"),
        ("route --lake LAKE --bindings BAD", "unknown exchange type"),
        ("route --lake LAKE --bindings GOOD --diff", "--diff needs either --path D or --today FILE"),
        ("route --lake LAKE --bindings GOOD --today GOOD", "belong to --diff"),
        ("route --lake LAKE --bindings GOOD --rows LAKE", "already exists"),
        ("route --lake NONE --bindings GOOD", "is not a lake"),
        ("deadletters --queue q", "name the source of dead letters"),
        ("deadletters --path D", "--queue Q"),
        ("deadletters --path D --queue q --where x", "belong to --lake"),
        ("deadletters --path D --queue q --replay", "belong together"),
        ("deadletters --path D --queue q --replay --to BROKER", "slotmq requeue-dead-letters"),
        ("deadletters --path D --queue q --rate 5", "belong to --replay"),
        ("deadletters --path D --queue q --into queue", "belong to --replay"),
        ("deadletters --url x://u:secret@h --queue q", "the url should be http://"),
        ("deadletters --lake LAKE --replay --to BROKER --rate -1", "--rate -1 is not a number"),
        ("report --lake LAKE -o LAKE", "is a folder"),
        ("report --lake LAKE -o x.html --from lately", "'lately' is not a time such as"),
        ("report --lake LAKE -o x.html --url x://u:secret@h", "the url should be http://"),
        ("simulate --brokers many", "'many' is not a number such as 1000 or 1e3"),
        ("simulate --brokers 100,3", "3 is not between 4 and 20,000"),
        ("simulate --subscriptions inf", "'inf' is not a number"),
        ("simulate --subscriptions 1e99", "is not between 0 and 1,000,000,000,000"),
        ("simulate --aggregation covering,all", "'all' is not none, identical or covering"),
        ("simulate --brokers 4 --redundancy 3", "4 brokers are too few: an inner tree node has 3"),
        ("simulate --level messages --brokers 3001", "--level messages simulates at most 3,000 brokers"),
        ("simulate --full --redundancy 1", "it and --redundancy exclude each other"),
        ("simulate -o x.json", "x.json should end in .parquet or .csv"),
        ("simulate --plot x.png", "x.png should end in .svg"),
        ("simulate -o nowhere/x.csv", "there is no such folder"),
        ("archive --path D --lake NEW --cursor x\x07y", "--cursor has 1 to 242 bytes, all of them printable"),
        ("archive --path D --lake NEW --cursor " + "\u00e9" * 122, "--cursor has 1 to 242 bytes"),
        ("archive --path D --lake NEW --cursor .x", "cannot be the name of a folder"),
        ("archive --path nodata --lake NEW", "--path 'nodata' is not a folder"),
        ("archive --path LAKE --lake=", "it names no folder"),
        ("query --lake LAKE --as-of 99 SELECT", "has no version 99: the last one is 0"),
        ("query --lake LAKE --as-of 2020-01-01 SELECT", "has no version of 2020-01-01T00:00:00+00:00: the oldest one"),
        ("archive --path D --lake hdfs://bucket/x", "hdfs://bucket/x is a URL, and hdfs: is not supported"),
        ("archive --path D --lake hdfs:/bucket/x", "hdfs: is not supported"),
        ("archive --path D --lake s3:///", "names no bucket"),
        ("archive --path D --lake s3://b/x --storage-option region=x", "'region' is not an option of an object store"),
        ("archive --path D --lake abfss://lake@account/x", "abfss: is not supported"),
        ("replay --lake hdfs:///x --to BROKER", "hdfs: is not supported"),
        ("query --lake gs://bucket/x SELECT", "gs: is not supported"),
        ("compact --lake gcs://bucket/x", "gcs: is not supported"),
        ("report --lake LAKE -o s3://bucket/x.html", "s3: is not supported"),
        ("route --lake LAKE --bindings GOOD --rows s3://bucket/x", "s3: is not supported"),
        ("deadletters --lake LAKE --replay --to BROKER --unroutable s3://bucket/x", "s3: is not supported"),
        ("archive --lake NEW", "name the broker with either --path DIR or --url URL"),
        ("archive --lake NEW --path D --url http://h", "name the broker with either"),
        ("archive --path D", "the following arguments are required: --lake"),
        ("archive --lake NEW --path D --once --follow", "not allowed with argument"),
        ("archive --lake NEW --path D --every 0", "--every 0 is not between 0 and 86,400 seconds"),
        ("archive --lake NEW --path D --cursor a/b", "--cursor 'a/b' cannot be the name of a folder"),
        ("archive --lake NEW --path D --max-bad lots", "--max-bad: 'lots' is neither a number of messages nor a share"),
        ("archive --lake FULL --path STORE", "is not a lake, and not empty"),
        ("compact --lake FULL", "is not a lake"),
        ("compact --lake LAKE --day 31.12.2026", "--day '31.12.2026' is not a date such as 2026-11-20"),
        ("compact --lake LAKE --target-mb 0", "--target-mb 0 is not between"),
        ("compact --lake LAKE --keep-days -1", "--keep-days is between 0 and 36,500"),
        ("compact --lake LAKE --keep-days nan", "--keep-days is between"),
        ("expire --lake LAKE", "say what to delete: --older 90d, --key K or both"),
        ("expire --lake LAKE --older lately", "--older: 'lately' is not a time such as"),
        ("expire --lake LAKE --key k --keep-days -1", "--keep-days is between 0 and 36,500"),
        ("query SELECT --lake LAKE --as-of lately", "--as-of: 'lately' is not a time such as"),
        ("query SELECT --path STORE --as-of 3", "--as-of is for a lake"),
        ("compact --lake LAKE --target-mb 1e-9", "--target-mb 1e-09 is not between"),
        ("query SELECT", "name what to query with one of --lake DIR, --path DIR and --url URL"),
        ("query SELECT --lake LAKE --tap t", "--tap, --queue, --vhost and --columns are for live slots"),
        ("query SELECT --lake LAKE --allow-gap", "--allow-gap is for live slots"),
        ("query SELECT --lake LAKE --csv --json", "--csv and --json exclude each other"),
        ("query SELECT --lake FULL", "is not a lake"),
        ("query SELECT --lake LAKE --limit -1", "--limit is between 0 and"),
        ("query SELECT --lake LAKE --limit 2147483647", "--limit is between 0 and"),
        ("query SELECT --lake LAKE --from lately", "'lately' is not a time such as"),
        ("query SELECT --path D --until earliest", "nothing precedes the earliest message"),
        ("query SELECT --path D --tap a --queue b", "only one can be given"),
        ("query SELECT --url amqp://u:secret@h", "the url should be http://"),
        (f"query SELECT --url http://u:secret@{'h' * 64}", "the url is not valid: it should be http://"),
        ("archive --lake NEW --url ftp://u:secret@h", "the url should be http://"),
        ("archive --lake NEW --path STORE --tap none", "there is no tap 'none'"),
        ("archive --lake FULL/file --path STORE", "is not a lake but a file"),
        ("compact --lake LAKE --url http://u:secret@h", "unrecognized arguments: --url http://***@h"),
    ],
)
def test_bad_usage_is_one_line(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage is reported with one line that names the argument."""
    monkeypatch.chdir(tmp_path)
    Lake(tmp_path / "LAKE", create=True)
    SlotFolder(tmp_path / "STORE")
    (tmp_path / "FULL").mkdir()
    (tmp_path / "FULL" / "file").write_text("x")
    (tmp_path / "GOOD").write_text("ex,#,q\n")
    (tmp_path / "BAD").write_text("ex,#,q,strange\n")
    try:
        code = main(["pipeline", *words.replace("BROKER", BROKER).split()])
    except SystemExit as end:
        code = int(end.code or 0)
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert said in told.err and "secret" not in told.err
    assert len([line for line in told.err.splitlines() if not line.startswith("session: ")]) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"LAKE", "STORE", "FULL", "GOOD", "BAD"}


@pytest.mark.parametrize("job", ["replay --lake LAKE", "deadletters --lake LAKE --replay"])
def test_a_broker_that_is_not_there_is_told_before_spark_starts(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unreachable broker ends the job with exit code 1 before Spark starts, without the password in the text."""
    monkeypatch.chdir(tmp_path)
    Lake(tmp_path / "LAKE", create=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nothing listens
        url = f"amqp://user:secret@127.0.0.1:{taken.getsockname()[1]}/"
        assert main(["pipeline", *job.split(), "--to", url, "--quiet"]) == 1
    told = capsys.readouterr().err
    assert "no broker answers at amqp://user@127.0.0.1" in told
    assert "secret" not in told
    assert told.count("\n") == 1


def test_a_query_of_live_slots_continues_at_a_gap_if_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A query stops at a slot that is missing between others, and names the flag with which it reads the others."""
    folder = SlotFolder(tmp_path)
    seals = [folder.add_slot("t", numbered(10)) for _ in range(3)]
    folder.lose(seals[1], "damaged")

    def read(options: query.QueryOptions, _progress: Progress) -> Summary:
        return Summary({"seals": [slot.seal for slot in SlotSource(query.live_options(options)).all_now()]}, OK)

    monkeypatch.setattr(query, "run_query", read)
    command = ["pipeline", "query", "SELECT", "--path", str(tmp_path), "--quiet", "--json"]
    assert main(command) == GAP
    told = capsys.readouterr().err
    assert "slot 2 of tap 't' in vhost '/' with 10 messages was lost unread (damaged)" in told
    assert "--allow-gap continues without them" in told
    assert main([*command, "--allow-gap"]) == OK
    assert json.loads(capsys.readouterr().out)["seals"] == [1, 3]


def test_values_are_said_as_json_can() -> None:
    """Bytes become text where they are UTF-8, else base64."""
    assert plain([b"abc", b"\xff\x00", bytearray(b"x"), {1: b"y"}, None, 1.5]) == [
        "abc", "/wA=", "x", {"1": "y"}, None, 1.5,
    ]  # fmt: skip
