"""Medians, omitted engines and tables of the topic index's benchmark, and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.results import load
from bench.topics import article, page
from bench.topics.claims import ratios
from bench.topics.goals import AUTO_ENGINE, goals
from bench.topics.ink import ticks
from bench.topics.sizes import Entry, expected
from bench.topics.tables import TABLES, number, table
from bench.topics.traffic import medians

PROJECT = Path(__file__).resolve().parents[3]
PAGES = [PROJECT / "docs" / name for name in ("topic-index.md", "figures.md")]


def entry(engine: str, size: int, match_us: float, left_out: str = "") -> dict[str, Any]:
    """Return the stored figures of an engine at one size."""
    made = Entry(engine, "interpreted", size, left_out=left_out)
    if not left_out:
        made.laps_us = [match_us, match_us * 9, match_us / 2]
        made.figures = {
            "patterns": size,
            "footprint_bytes": 400 * size,
            "step_ns": 47.0,
            "hits": 1.5,
            "visited": 12.0,
            "add_us": 5.0,
            "add_worst_us": 50.0,
            "remove_us": 25.0,
            "remove_worst_us": 60.0,
        }
    return made.record()


def test_growth_goes_on_as_it_was() -> None:
    """A proportional time is extrapolated as proportional, a flat one as flat; one figure is not extrapolated."""
    small, large = Entry("x", "interpreted", 1000), Entry("x", "interpreted", 10_000)
    small.laps_us, large.laps_us = [10.0], [100.0]
    assert expected("match_us", 100_000, large, small) == pytest.approx(1000.0)
    assert expected("match_us", 100_000, large, None) == pytest.approx(100.0)
    large.laps_us = [5.0]
    assert expected("match_us", 100_000, large, small) == pytest.approx(5.0)


def test_an_engine_left_out_is_a_dash() -> None:
    """A missing figure is a dash."""
    parts = {
        "sizes": {"entries": [entry("trie", 1000, 7.0), entry("slow", 1000, 9e4), entry("slow", 10_000, 0, "why")]}
    }
    lines = TABLES["match"][1](parts).splitlines()
    assert lines[0] == "| engine | form | 1,000 | 10,000 |"
    assert "| slow | interpreted | 90,000 | - |" in lines
    assert lines[-1].endswith("| 47 to 47 |")


def test_goals_are_judged_by_what_the_broker_does_by_itself() -> None:
    """The default engine is judged; better figures of other engines are shown, those of comparison engines are not."""
    entries = [entry(AUTO_ENGINE, 1000, 3.0), entry("dfa", 1000, 1.5), entry("split-once", 1000, 0.1)]
    found = {goal.what: goal for goal in goals({"sizes": {"entries": entries}})}
    match = found["uncached match at 1,000 patterns"]
    assert (match.reached, match.found, match.best) == (False, "3.00 us (interpreted)", "1.50 us (dfa, interpreted)")
    change = found["the slower of add and remove at 1,000 patterns"]
    assert (change.found, change.verdict) == ("25.0 us (interpreted)", "not reached")
    assert not list(goals({"sizes": {"entries": entries[1:]}}))


@pytest.mark.parametrize(("ours", "reached"), [(10_000, True), (9_900, False)])
def test_ten_times_rabbitmq_is_judged_by_the_medians(ours: float, reached: bool) -> None:
    """The ratio is that of the medians, so one slow run of three does not matter; bind times do not count."""
    runs: list[dict[str, Any]] = [{"broker": "SlotMQ", "bindings": 10, "keys": "binding", "bound_per_s": 1.0}]
    for name, rates in (("SlotMQ", (ours, ours, 1.0)), ("RabbitMQ", (1000.0, 1000.0, 9e9))):
        runs += [{"broker": name, "bindings": 10, "keys": "new keys", "per_s": rate, "cpu_us": 1.0} for rate in rates]
    (goal,) = goals({"broker": {"medians": medians(runs)}})
    assert goal.reached is reached


def test_ratios_are_times_of_the_conventional() -> None:
    """A third of the conventional time is three times faster; the conventional engine has no ratio."""
    assert ratios({"conventional": 90.0, "split-once": 30.0}) == {"split-once": 3.0}


def test_numbers_have_three_digits() -> None:
    """Figures have three significant digits."""
    assert [number(value) for value in (None, 0.1234, 12.34, 1234.5)] == ["-", "0.12", "12.3", "1,234"]
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_marks_of_a_log_scale() -> None:
    """Few decades have marks in between, many have none."""
    assert ticks(0.9, 60) == [1, 2, 5, 10, 20, 50]
    assert ticks(1, 20_000) == [1, 10, 100, 1000, 10_000]


def test_a_place_on_the_page_is_filled_and_what_is_around_it_stays() -> None:
    """Filling twice equals filling once; an unknown place is an error."""
    content = {"parts": {"sizes": {"entries": [entry("trie", 1000, 7.0)]}}}
    text = "before\n<!-- figures: match -->\nold\n<!-- end of figures -->\nafter, `bench/results/topics-1.json`\n"
    filled = page.filled(text, content, "topics-2.json")
    assert filled.startswith("before\n")
    assert "old" not in filled
    assert "| trie | interpreted | 7.00 |" in filled
    assert filled.endswith("after, `bench/results/topics-2.json`\n")
    assert page.filled(filled, content, "topics-2.json") == filled
    assert "Not measured" in page.filled(text.replace("match", "broker"), content, "topics-2.json")
    with pytest.raises(KeyError):
        page.filled(text.replace("match", "nothing"), content, "topics-2.json")


def test_pages_and_kept_run_agree() -> None:
    """The tables of the pages are those of the run that they name, and all tables are used."""
    texts = [page_path.read_text() for page_path in PAGES]
    (name,) = {page.kept_name(text) for text in texts}
    content = load(PROJECT / "bench" / "results" / name)
    assert [page.filled(text, content, name) for text in texts] == texts
    assert all(f"<!-- figures: {place} -->" in "".join(texts) for place in TABLES)


def test_pages_have_every_picture_that_is_drawn() -> None:
    """Every picture is on a page, and no page lacks one."""
    drawn = {path.name for path in PAGES[0].parent.glob("topic-index-*.svg")}
    assert drawn
    shown = "".join(page_path.read_text() for page_path in PAGES)
    assert all(f"({name})" in shown for name in drawn)


def test_targets_stand_at_the_sizes_measured() -> None:
    """Every size of a complete run has a target."""
    from bench.topics.plan import WHOLE

    assert tuple(article.TARGET_MATCH_US) == WHOLE.sizes
