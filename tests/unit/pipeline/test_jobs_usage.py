"""Wrong usage of the jobs: one line and exit code 2, before Spark starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from broker.cli.main import main
from broker.pipeline.lake.lake import Lake

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
        ("route --lake LAKE --bindings GOOD --diff", "--diff needs --path D or --today FILE"),
        ("route --lake LAKE --bindings GOOD --today GOOD", "belong to --diff"),
        ("route --lake LAKE --bindings GOOD --rows LAKE", "already exists"),
        ("route --lake NONE --bindings GOOD", "is not a lake"),
        ("deadletters --queue q", "say where the dead letters are"),
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
    ],
)
def test_bad_usage_is_one_line(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage is reported with one line that names the argument."""
    monkeypatch.chdir(tmp_path)
    Lake(tmp_path / "LAKE", create=True)
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
    assert {path.name for path in tmp_path.iterdir()} == {"LAKE", "GOOD", "BAD"}


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
