"""A run: its medians and spreads, the kept table, and the pages and pictures that are made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.run import RESULTS, Run
from bench.suites import NAMES, suite_of
from bench.tables import Column, Goal, crossed, size, table, table_of
from broker.figures.numerals import number_text

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_a_cell_has_the_medians_of_its_rounds() -> None:
    """An outlier moves the spread only; a figure that some rounds lack is the median of the others."""
    run = Run("growth")
    for per_s, more in ((10.0, {}), (900.0, {"cpu_us": 5.0}), (30.0, {})):
        run.add("queues", {"per_s": per_s, **more}, size=10)
    run.add("queues", {"per_s": 7.0}, size=100)
    row = run.row("queues", size=10)
    assert (row.runs, row["per_s"], row.spread("per_s"), row["cpu_us"]) == (3, 30.0, (10.0, 900.0), 5.0)
    assert row.spread("cpu_us") == (5.0, 5.0)
    assert [one["size"] for one in run.rows("queues")] == [10, 100]
    assert (run.row("backlog").runs, run.row("backlog")["per_s"], "per_s" in run.row("backlog")) == (0, None, False)


def test_a_kept_run_is_the_run(tmp_path: Path) -> None:
    """Keys, medians, spreads, texts and series come back; figures have six digits, counts all of theirs."""
    run = Run("topics", {"quick": True})
    for us in (1.23456789, 3.0, 2.0):
        run.add("sizes", {"us": us, "hits": 123_456_789, "series": [1, 2], "left_out": "why"}, engine="trie", size=7)
    run.add("silent", {"rate_ratio": 1.0})
    run.failures.append("cache: nothing came")
    path = tmp_path / "topics-1.jsonl"
    run.save(path)
    kept = Run.load(path)
    assert (kept.suite, kept.facts["quick"], kept.failures) == ("topics", True, ["cache: nothing came"])
    assert kept.rows() == run.rows()
    row = kept.row("sizes", engine="trie")
    assert (row["us"], row.spread("us"), row["hits"]) == (2.0, (1.23457, 3.0), 123_456_789)
    assert (row["series"], row["left_out"]) == ([1, 2], "why")


def test_figures_are_written_with_three_digits_and_units() -> None:
    """A figure that was not measured is a dash; a table without rows is nothing."""
    assert [size(value) for value in (512, 12_340, 45e6)] == ["512 B", "12.3 kB", "45 MB"]
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    run = Run("topics")
    assert table_of(run.rows(), [Column("", "x")]) == ""
    run.add("sizes", {"us": 7.0, "each_bytes": 400}, engine="trie", size=1000)
    run.add("sizes", {"us": 9.0}, engine="slow", size=10_000)
    columns = [Column("engine", "engine", str), Column("each", "each_bytes")]
    assert table_of(run.rows(), columns).splitlines()[2:] == ["| trie | 400 B |", "| slow | - |"]
    assert crossed(run.rows(), columns[:1], "size", lambda row: number_text(row["us"])).splitlines() == [
        "| engine | 1,000 | 10,000 |", "| --- | --- | --- |", "| trie | 7 | - |", "| slow | - | 9 |",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "reached"), [(Goal.at_most, [True, True, False]), (Goal.at_least, [False, True, True])]
)
def test_a_goal_is_reached_at_its_limit(make: Callable[..., list[Goal]], reached: list[bool]) -> None:
    """A goal is reached at its limit and not beyond it; what was not measured is not judged."""
    assert [goal.reached for found in (1.9, 2.0, 2.1) for goal in make("it", found, 2.0)] == reached
    assert make("it", None, 2.0) == []


def test_a_place_on_a_page_is_filled_and_what_is_around_it_stays() -> None:
    """Filling twice equals filling once; places of others stay, and an unknown place is an error."""
    tables = {"cost": lambda run: f"{len(run.rows())} rows", "other": lambda _: ""}
    suite = replace(suite_of("messages"), tables=tables)
    text = (
        "before\n<!-- bench: cost -->\nold\n<!-- end of bench -->\n<!-- bench: other --><!-- end of bench -->\n"
        "<!-- growth: cost -->\ntheirs\n<!-- end of growth -->\n`bench/results/messages-1.jsonl`\n"
    ).replace("--><!--", "-->\n<!--")
    filled = suite.filled(text, Run("messages"), "messages-2.jsonl")
    assert "old" not in filled
    assert "<!-- bench: cost -->\n\n0 rows\n\n<!-- end of bench -->" in filled
    assert "(Not measured in this run.)" in filled
    assert filled.endswith("<!-- growth: cost -->\ntheirs\n<!-- end of growth -->\n`bench/results/messages-2.jsonl`\n")
    assert suite.filled(filled, Run("messages"), "messages-2.jsonl") == filled
    with pytest.raises(KeyError):
        suite.filled(text.replace("cost", "nothing"), Run("messages"), "messages-2.jsonl")


@pytest.mark.parametrize("name", NAMES)
def test_pages_and_kept_runs_agree(name: str) -> None:
    """The tables of the pages are those of the run that they name, and its suite can show everything of the run."""
    if name == "pipeline":
        pytest.importorskip("pyspark")
    suite = suite_of(name)
    kept = {path.name: Run.load(path) for path in RESULTS.glob(f"{name}-*.jsonl")}
    assert kept
    assert all(
        make(run) for run in kept.values() for place, make in suite.tables.items() if place in ("machine", "cost")
    )
    for page in DOCS.glob("*.md"):
        text = page.read_text()
        if f"<!-- {suite.mark}: " in text:
            shown = next(kept_name for kept_name in kept if f"`bench/results/{kept_name}`" in text)
            assert suite.filled(text, kept[shown], shown) == text


def test_every_picture_is_on_a_page() -> None:
    """Every picture drawn by the suites is shown on a page."""
    shown = "".join(page.read_text() for page in DOCS.glob("*.md"))
    suites = [suite_of(name) for name in NAMES if name != "pipeline"]
    assert [picture for suite in suites for picture in suite.pictures if f"({picture}.svg)" not in shown] == []
