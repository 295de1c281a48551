"""`slotmq tap` and `slotmq cursor` against a running broker, and what they refuse without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.cli.main import main
from broker.cli.taps import cursor_text
from broker.testing import Broker


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands manage a tap from creation to removal; a list has the documented columns, or all keys as JSON."""

    def slotmq(*words: str) -> list[str]:
        assert main([*words, "--data-dir", str(tmp_path)]) == 0
        return capsys.readouterr().out.splitlines()

    def refused(*words: str) -> str:
        assert main([*words, "--data-dir", str(tmp_path)]) == 1
        return capsys.readouterr().err

    with Broker(server={"data_dir": tmp_path, "control_socket": True}):
        caps = ["--max-bytes", "10MB", "--max-age", "2h"]
        slotmq("tap", "add", "amq.topic", "stock.#", "--name", "s", "--cursor", "a", "--cursor", "b", *caps)
        slotmq("tap", "add", "", "#")
        assert [line.split("\t")[1:5] for line in slotmq("tap", "list")] == [
            ["default", "", "#", "0"],
            ["s", "amq.topic", "stock.#", "0"],
        ]
        assert slotmq("tap", "list")[1].split("\t")[-1] == "a:0 (up to date),b:0 (up to date)"
        (row,) = [row for row in json.loads("".join(slotmq("tap", "list", "--json"))) if row["name"] == "s"]
        assert (row["max_bytes"], row["max_age_ms"], row["listens"]) == (10_000_000, 7_200_000, True)
        assert [row["name"] for row in json.loads("".join(slotmq("status", "--json")))["cursors"]] == ["a", "b"]
        assert "  s in / a:0 (up to date), s in / b:0 (up to date)" in "\n".join(slotmq("status"))
        assert slotmq("tap", "seal") == ["0"]
        assert slotmq("tap", "seal", "s") == ["0"]
        slotmq("cursor", "set", "c", "s", "0")
        slotmq("cursor", "remove", "a", "s")
        assert [line.split("\t")[1:4] for line in slotmq("cursor", "list")] == [["s", "b", "0"], ["s", "c", "0"]]
        assert "the last seal is 0" in refused("cursor", "set", "c", "s", "7")
        assert "no tap 'nothing'" in refused("tap", "seal", "nothing")
        assert "no exchange 'x'" in refused("tap", "add", "x", "#")
        assert "no cursor 'a'" in refused("cursor", "remove", "a", "s")
        assert slotmq("tap", "remove", "s", "--drop") == ["dropped 0 messages; 0 slot files, 0 bytes"]
        assert "no tap 's'" in refused("tap", "remove", "s")
        assert slotmq("cursor", "list") == []
        with pytest.raises(SystemExit, match="2"):
            main(["tap", "add", "amq.topic", "#", "--max-age", "soon", "--data-dir", str(tmp_path)])
        assert "--max-age: 'soon' should be a time such as" in capsys.readouterr().err


def test_where_a_cursor_stands() -> None:
    """A cursor's lag is in slots, bytes and seconds, or is missing."""
    cursor = {"name": "a", "seal": 7, "lag_slots": 1, "lag_bytes": 2048, "lag_s": 12.3}
    assert cursor_text(cursor) == "a:7 (1 slot, 2048 bytes, 12 s behind)"
    assert cursor_text({**cursor, "lag_slots": 0}) == "a:7 (up to date)"


def test_the_queue_of_a_tap_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tap's queue is listed, but cannot be purged or deleted by its name."""
    with Broker(server={"data_dir": tmp_path, "control_socket": True}):
        folder = ["--data-dir", str(tmp_path)]
        assert main(["tap", "add", "amq.topic", "#", "--name", "s", *folder]) == 0
        assert main(["list", "queues", "--columns", "name", *folder]) == 0
        assert capsys.readouterr().out == "amq.tap.s\n"
        assert main(["list", "bindings", *folder]) == 0
        assert capsys.readouterr().out == ""
        for command in (["purge", "amq.tap.s"], ["delete", "queue", "amq.tap.s"]):
            assert main([*command, *folder]) == 1
            assert "belongs to a tap" in capsys.readouterr().err
