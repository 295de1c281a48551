"""The loop of a run over its contestants and parts: turns, failures and limits; the command line."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as command
from bench.run import RESULTS, Run
from bench.stage import NotOffered, Stage, quick
from bench.suites import NAMES, Suite, suite_of
from broker.perf.faults import RunFailed


def a_stage(**more: Any) -> Stage:
    """Return the circumstances of a run that starts nothing."""
    return Stage(None, {"interpreted": Path("/nowhere")}, Path("/nowhere"), Run("growth"), tell=lambda _: None, **more)


def test_contestants_take_turns() -> None:
    """The order is A B C, then B C A, so that no contestant is always first."""
    order: list[str] = []
    works = {name: lambda number, name=name: order.append(f"{name}{number}") for name in "abc"}
    a_stage().in_turn(works, 3)
    assert order == ["a0", "b0", "c0", "b1", "c1", "a1", "c2", "a2", "b2"]


def test_a_contestant_that_fails_is_left_out_of_later_rounds() -> None:
    """The others continue; one that does not offer what is measured has not failed."""
    order: list[int] = []
    stage = a_stage()

    def fails(_number: int) -> None:
        raise RunFailed("first line\nno broker")

    def lacks(_number: int) -> None:
        raise NotOffered

    stage.in_turn({"fails": fails, "lacks": lacks, "works": order.append}, 3)
    assert order == [0, 1, 2]
    assert stage.run.failures == ["fails: no broker"]


def test_nothing_begins_when_the_time_is_used_up() -> None:
    """No round begins late, and the run says that it was cut short."""
    order: list[int] = []
    stage = a_stage(deadline=time.monotonic() - 1)
    stage.in_turn({"a": order.append}, 2)
    assert (order, stage.run.facts["cut_short"]) == ([], True)


def test_a_part_that_fails_keeps_the_figures_that_it_has() -> None:
    """A refusal and a defect end in a line each, and the figures before stay."""
    stage = a_stage()
    with stage.guarded("refuses"):
        stage.add("load", {"cpu_us": 1.0})
        raise RunFailed("no broker")
    with stage.guarded("breaks down"):
        raise KeyError("load")
    assert stage.run.failures == ["refuses: no broker", "breaks down: KeyError: 'load'"]
    assert stage.run.row("load")["cpu_us"] == 1.0


def test_parts_are_measured_one_by_one() -> None:
    """Each named part gets what the suite prepares; a part that is late is told."""
    done: list[str] = []
    suite = suite_of("growth")
    parts = {name: lambda what, name=name: done.append(f"{name}, {what}") for name in ("one", "two", "three")}
    told = Suite(
        "growth",
        "",
        parts,
        suite.plan,
        1.0,
        {},
        (),
        "growth",
        prepare=lambda stage: nullcontext(stage.run.suite),
    )
    options = command.options_of(told, ["--only", "one,three"])
    told.measure(a_stage(), options, told)
    assert done == ["one, growth", "three, growth"]
    late = a_stage(deadline=time.monotonic() - 1)
    told.measure(late, options, told)
    assert late.run.failures[0] == "one: the time of this run was used up"


@pytest.mark.parametrize("name", NAMES)
def test_every_suite_has_a_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Quick and full runs have the same parts; an unknown part is refused with the known ones."""
    if name == "pipeline":
        pytest.importorskip("pyspark")
    suite = suite_of(name)
    assert set(suite.printed) <= set(suite.tables)
    assert quick(suite.plan) != suite.plan
    options = command.options_of(suite, ["--quick", "--rounds", "2"])
    assert (options.quick, options.rounds, options.only) == (True, 2, tuple(suite.parts))
    with pytest.raises(SystemExit):
        command.options_of(suite, ["--only", "nothing"])
    assert f"known are {', '.join(suite.parts)}" in " ".join(capsys.readouterr().err.split())


def test_a_kept_run_is_shown_without_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tables are printed and the page is filled; failures are told and make the exit code 1."""
    (kept,) = RESULTS.glob("growth-*.jsonl")
    page = tmp_path / "page.md"
    page.write_text("<!-- growth: silent -->\n<!-- end of growth -->\n`bench/results/growth-1.jsonl`\n")
    pytest.importorskip("matplotlib")
    assert command.main(["growth", "--kept", str(kept), "--page", str(page)]) == 0
    assert "Beside two consumers that read nothing" in page.read_text()
    assert kept.name in page.read_text()
    assert (tmp_path / "growth.svg").exists()
    assert "| bindings: 10,000 keys |" in capsys.readouterr().out
    failed = Run.load(kept)
    failed.failures.append("backlog at 10,000,000: the time was used up")
    failed.save(tmp_path / "growth-2.jsonl")
    assert command.main(["growth", "--kept", str(tmp_path / "growth-2.jsonl")]) == 1
    assert "FAILED: backlog at 10,000,000: the time was used up" in capsys.readouterr().out
