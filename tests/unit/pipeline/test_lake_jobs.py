"""Values of a query, and what the commands refuse before they start anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli.main import main
from broker.pipeline.faults import ERROR, USAGE
from broker.pipeline.jobs.query import plain
from broker.pipeline.lake.lake import Lake
from tests.slot_folders import SlotFolder


def test_values_are_said_as_json_can() -> None:
    """Bytes become text where they are UTF-8, else base64."""
    assert plain([b"abc", b"\xff\x00", bytearray(b"x"), {1: b"y"}, None, 1.5]) == [
        "abc", "/wA=", "x", {"1": "y"}, None, 1.5,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("archive --lake L", "name the broker with either --path DIR or --url URL"),
        ("archive --lake L --path D --url http://h", "name the broker with either"),
        ("archive --path D", "the following arguments are required: --lake"),
        ("archive --lake L --path D --once --follow", "not allowed with argument"),
        ("archive --lake L --path D --every 0", "--every 0 is not between 0 and 86,400 seconds"),
        ("archive --lake L --path D --cursor a/b", "--cursor 'a/b' cannot be the name of a folder"),
        ("archive --lake L --path D --max-bad lots", "--max-bad: 'lots' is neither a number of messages nor a share"),
        ("archive --lake {full} --path {store}", "is not a lake, and not empty"),
        ("archive --lake L --path {full}/none", "/full/none"),
        ("compact --lake {full}", "is not a lake"),
        ("compact --lake {lake} --day 31.12.2026", "--day '31.12.2026' is not a date such as 2026-11-20"),
        ("compact --lake {lake} --target-mb 0", "--target-mb 0 is not between"),
        ("compact --lake {lake} --keep-days -1", "--keep-days is between 0 and 36,500"),
        ("compact --lake {lake} --keep-days nan", "--keep-days is between"),
        ("expire --lake {lake}", "say what to delete: --older 90d, --key K or both"),
        ("expire --lake {lake} --older lately", "--older: 'lately' is not a time such as"),
        ("expire --lake {lake} --key k --keep-days -1", "--keep-days is between 0 and 36,500"),
        ("query SELECT --lake {lake} --as-of lately", "--as-of: 'lately' is not a time such as"),
        ("query SELECT --path {store} --as-of 3", "--as-of is for a lake"),
        ("compact --lake {lake} --target-mb 1e-9", "--target-mb 1e-09 is not between"),
        ("query SELECT", "say what to ask: --lake DIR, --path DIR or --url URL, one of them"),
        ("query SELECT --lake {lake} --tap t", "--tap, --queue, --vhost and --columns are for live slots"),
        ("query SELECT --lake {lake} --csv --json", "--csv or --json, one of them"),
        ("query SELECT --lake {full}", "is not a lake"),
        ("query SELECT --lake {lake} --limit -1", "--limit is between 0 and"),
        ("query SELECT --lake {lake} --limit 2147483647", "--limit is between 0 and"),
        ("query SELECT --lake {lake} --from lately", "'lately' is not a time such as"),
        ("query SELECT --path D --until earliest", "nothing precedes the earliest message"),
        ("query SELECT --path D --tap a --queue b", "only one can be given"),
        ("query SELECT --url amqp://u:secret@h", "the url should be http://"),
        ("query SELECT --path {full}/none", "/full/none"),
        ("archive --lake L --url ftp://u:secret@h", "the url should be http://"),
        ("archive --lake L --path {store} --tap none", "there is no tap 'none'"),
        ("archive --lake {full}/file --path {store}", "is not a lake but a file"),
        ("compact --lake {lake} --url http://u:secret@h", "unrecognized arguments: --url http://***@h"),
    ],
)
def test_bad_usage_is_told_in_one_line_without_spark(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong usage exits with 2 and a missing lake not with 0, both without a traceback and without a JVM."""
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
    told = [line for line in shown.splitlines() if not line.startswith("session: ")]
    assert said in shown and "Traceback" not in shown and len(told) == 1
    assert code == (ERROR if words == "query SELECT --path {full}/none" else USAGE)
    assert not (tmp_path / "L").exists()
