"""Comparing two checkouts: by instructions, and by pairs of runs."""

from __future__ import annotations

import shutil
import sys
from argparse import ArgumentTypeError
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from bench import checkout, instructions
from bench.checkout import HERE, Checkout
from bench.messages.rows import known_names, rows
from bench.pairs import BEFORE, NOW, summary
from broker.perf.faults import RunFailed
from tools import compiled_build


def test_pairs_are_judged_by_the_ratio_of_the_medians() -> None:
    """One run that others disturbed moves neither the ratio nor the middle half of the pairs."""
    pairs = [{BEFORE: 10.0, NOW: 8.0}] * 6 + [{BEFORE: 10.0, NOW: 80.0}]
    said = summary("S9", "cpu_us", pairs)
    assert "cpu_us 10 -> 8: 0.800 times" in said
    assert "half of the pairs 0.80 to 0.80, all 0.80 to 8.00, less in 6 of 7" in said
    assert summary("S9", "cpu_us", pairs[:1]).endswith("all 0.80 to 0.80, less in 1 of 1")


def test_scenarios_are_picked_by_group_and_by_name() -> None:
    """S1 selects all of its sizes, S1-16 one; both may be named at once."""
    assert [row.name for row in rows(["S1-16", "S9"])] == ["S1-16", "S9"]
    assert {"S1", "S1-16"} <= set(known_names())


def test_without_valgrind_one_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2, and no broker is started."""
    monkeypatch.setattr(sys, "argv", ["instructions"])
    monkeypatch.setattr(instructions, "which", lambda _: None)
    assert instructions.main() == 2
    assert capsys.readouterr().err.splitlines() == [
        "valgrind is not installed; it counts the instructions (apt install valgrind)"
    ]


def test_a_profile_states_its_instructions(tmp_path: Path) -> None:
    """The sum is taken from the head of a profile; a profile without one is an error."""
    profile = tmp_path / "callgrind.1"
    profile.write_text("version: 1\nevents: Ir\nsummary: 1234567\n")
    assert instructions.total_of(profile) == 1_234_567
    profile.write_text("version: 1\n")
    with pytest.raises(RunFailed, match="has no sum"):
        instructions.total_of(profile)


def test_a_checkout_is_a_folder_with_the_broker(tmp_path: Path) -> None:
    """Interpreted, the broker runs from its sources; another folder is refused in one line."""
    assert HERE.package(compiled=False) == HERE.folder
    with pytest.raises(ArgumentTypeError, match="is not a checkout of SlotMQ"):
        Checkout.of(str(tmp_path))


def test_only_a_compiled_package_is_measured_as_one(tmp_path: Path) -> None:
    """A folder that is missing, or holds sources only, would be measured interpreted: it is refused in one line."""
    package = tmp_path / "broker" / "store"
    package.mkdir(parents=True)
    (package / "record.py").touch()
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ArgumentTypeError, match=f"{folder.name} contains no compiled broker"):
            checkout.package_at(str(folder))
    (package / f"record{EXTENSION_SUFFIXES[0]}").touch()
    assert checkout.package_at(str(tmp_path)) == tmp_path


def test_compiled_package_is_made_again_when_a_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run reuses the compiled package; a changed source makes a new one."""
    source = tmp_path / "broker" / "module.py"
    source.parent.mkdir()
    source.write_text("A = 1\n")

    def build(project: Path, folder: Path) -> list[Path]:
        shutil.copytree(project / "broker", folder / "broker")
        return []

    monkeypatch.setattr(compiled_build, "build", build)
    folder = tmp_path / "out"
    assert [compiled_build.refresh(tmp_path, folder) for _ in range(2)] == [True, False]
    source.write_text("A = 2\n")
    assert compiled_build.refresh(tmp_path, folder)
