"""Plans of compaction, columns of a query, and what the commands refuse before they start anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli.main import main
from broker.pipeline.job import ERROR, USAGE
from broker.pipeline.jobs.query import plain, wanted_columns
from broker.pipeline.lake import Lake
from broker.pipeline.lake.compaction import plan
from broker.pipeline.lake.entry import LakeFile
from broker.pipeline.source.schema import COLUMNS
from tests.slot_folders import SlotFolder

TARGET = 1000


def file(date: str, name: str, size: int, *, compacted: bool = False) -> LakeFile:
    """Return a file of a size."""
    return LakeFile(f"date={date}/{name}", date, size, size, 0, 1, 0, 0, compacted=compacted)


def test_days_that_are_over_are_planned_with_their_small_files() -> None:
    """Not today, not a day with one file, not files that are large enough and compacted."""
    files = [
        file("2026-11-18", "a", 900), file("2026-11-18", "b", 1300), file("2026-11-18", "big", 800, compacted=True),
        file("2026-11-19", "alone", 10),
        file("2026-11-20", "small", 100, compacted=True), file("2026-11-20", "late", 10),
        file("2026-11-21", "c", 10), file("2026-11-21", "d", 10),
        file("2026-11-17", "e", 10, compacted=True), file("2026-11-17", "f", 10, compacted=True),
    ]  # fmt: skip
    found = [(one.date, [each.path[-5:] for each in one.files], one.parts) for one in plan(files, "2026-11-21", TARGET)]
    assert found == [("2026-11-18", ["-18/a", "-18/b"], 2), ("2026-11-20", ["/late", "small"], 1)]
    assert [one.date for one in plan(files, "2026-11-21", TARGET, "2026-11-18")] == ["2026-11-18"]
    assert plan(files, "2026-11-21", TARGET, "2026-11-21") == []


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT count(*) FROM messages", ("offset",)),
        ("SELECT Count( * ), max(ts) FROM messages WHERE `Routing_Key` LIKE 'a.%'", ("ts", "routing_key")),
        ("SELECT * FROM messages", COLUMNS),
        ("SELECT m.* FROM messages m", COLUMNS),
        ("TABLE messages", COLUMNS),
        ("FROM messages |> WHERE routing_key = 'a' |> LIMIT 5", COLUMNS),
        ("SELECT length(body) FROM messages NATURAL JOIN messages", COLUMNS),
        ("SELECT get_json_object(headers, '$.n') n FROM messages GROUP BY ALL", ("headers",)),
    ],
)
def test_only_columns_that_a_query_can_mean_are_decoded(sql: str, columns: tuple[str, ...]) -> None:
    """Too many cost time, too few would be an error: whatever may mean all of them takes all."""
    assert wanted_columns(sql) == columns


def test_values_are_said_as_json_can() -> None:
    """Bytes are text where they are, else base64."""
    assert plain([b"abc", b"\xff\x00", bytearray(b"x"), {1: b"y"}, None, 1.5]) == [
        "abc", "/wA=", "x", {"1": "y"}, None, 1.5,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("archive --lake L", "say where the broker is: --path DIR or --url URL, one of them"),
        ("archive --lake L --path D --url http://h", "say where the broker is"),
        ("archive --path D", "the following arguments are required: --lake"),
        ("archive --lake L --path D --once --follow", "not allowed with argument"),
        ("archive --lake L --path D --every 0", "--every 0 is not between 0 and 86,400 seconds"),
        ("archive --lake L --path D --cursor a/b", "--cursor 'a/b' cannot be the name of a folder"),
        ("archive --lake L --path D --max-bad lots", "--max-bad: 'lots' is neither a number of messages nor a share"),
        ("archive --lake {full} --path {store}", "is no lake, and not empty"),
        ("archive --lake L --path {full}/none", "/full/none"),
        ("compact --lake {full}", "is no lake"),
        ("compact --lake {lake} --day 31.12.2026", "--day '31.12.2026' is no date such as 2026-11-20"),
        ("compact --lake {lake} --target-mb 0", "--target-mb 0 is not between"),
        ("compact --lake {lake} --keep-days -1", "--keep-days is between 0 and 36,500"),
        ("compact --lake {lake} --keep-days nan", "--keep-days is between"),
        ("compact --lake {lake} --target-mb 1e-9", "--target-mb 1e-09 is not between"),
        ("query SELECT", "say what to ask: --lake DIR, --path DIR or --url URL, one of them"),
        ("query SELECT --lake {lake} --tap t", "--tap, --queue and --vhost are for live slots"),
        ("query SELECT --lake {lake} --csv --json", "--csv or --json, one of them"),
        ("query SELECT --lake {full}", "is no lake"),
        ("query SELECT --lake {lake} --limit -1", "--limit is between 0 and"),
        ("query SELECT --lake {lake} --limit 2147483647", "--limit is between 0 and"),
        ("query SELECT --lake {lake} --from lately", "'lately' is no time such as"),
        ("query SELECT --path D --until earliest", "nothing stands before the earliest message"),
        ("query SELECT --path D --tap a --queue b", "only one can be given"),
        ("query SELECT --url amqp://u:secret@h", "the url should be http://"),
        ("query SELECT --path {full}/none", "/full/none"),
        ("archive --lake L --url ftp://u:secret@h", "the url should be http://"),
        ("archive --lake L --path {store} --tap none", "there is no tap 'none'"),
        ("archive --lake {full}/file --path {store}", "is no lake but a file"),
        ("compact --lake {lake} --url http://u:secret@h", "unrecognized arguments: --url http://***@h"),
    ],
)
def test_bad_usage_is_told_in_one_line_without_spark(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback, no JVM, exit code 2 for a wrong word and not 0 for what is not there."""
    monkeypatch.chdir(tmp_path)
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("x")
    Lake(tmp_path / "lake", create=True)
    SlotFolder(tmp_path / "store")
    line = ["pipeline", *words.format(full=full, lake=tmp_path / "lake", store=tmp_path / "store").split()]
    try:
        code = main(line)
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    shown = capsys.readouterr().err
    assert "secret" not in shown
    assert said in shown and "Traceback" not in shown and len(shown.splitlines()) == 1
    assert code == (ERROR if words.endswith("none") else USAGE)
    assert not (tmp_path / "L").exists()
