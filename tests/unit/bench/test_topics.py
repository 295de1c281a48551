"""The engines of the topic index: slices of keys, processes that hold an index, forms and goals."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from bench.run import Run
from bench.stage import Stage, quick
from bench.topics import workload
from bench.topics.cell_process import Runner
from bench.topics.engines import Cell, contestants, written
from bench.topics.published_engines import ENGINES
from bench.topics.suite import Plan, goals
from broker.perf.faults import RunFailed
from broker.routing.index import DEFAULT
from tests.property.topic_reference import matches

PROJECT = Path(__file__).resolve().parents[3]
KEYS = [str(number) for number in range(1000)]
MEMORY_BYTES = 1 << 31


def test_a_runner_meets_every_key_before_any_again() -> None:
    """Keys repeat only after all were used, because an index may cache; a batch never wraps."""
    met: list[str] = []
    runner = Runner(met.append, KEYS, batch=300)
    for _ in range(3):
        runner.lap()
    assert met == KEYS[:900]
    runner.lap()
    assert met[900:] == KEYS[:300]


def a_stage(folder: Path, **packages: Path) -> Stage:
    """Return the circumstances of a small run."""
    return Stage(quick(Plan()), packages or {"interpreted": PROJECT}, folder, Run("topics"), tell=lambda _: None)


def test_a_cell_answers_as_the_reference(tmp_path: Path) -> None:
    """An index in its own process matches as many patterns as single comparisons, and empties."""
    patterns, keys = workload.patterns(200), workload.keys(100)
    stage = a_stage(tmp_path)
    kept = written(stage, "p", patterns), written(stage, "k", keys)
    with closing(Cell(PROJECT, MEMORY_BYTES)) as cell:
        built = cell.ask("build", engine="trie", patterns=kept[0], keys=kept[1])
        assert (built["patterns"], built["form"]) == (200, "interpreted")
        hits = cell.ask("settle", slice_s=1e-4)["hits"]
        chosen = keys[-20:], keys
        counts = [
            sum(matches(text.split("."), key.split(".")) for text in patterns for key in some) / len(some)
            for some in chosen
        ]
        assert hits in [pytest.approx(count) for count in counts]
        assert cell.ask("change", count=50, bound_s=9.0)["changes"] == 40
        assert cell.ask("footprint")["counts"]["wildcards"] == 200


def test_a_cell_tells_why_it_cannot() -> None:
    """An unknown engine is reported with a reason, and the next request is answered."""
    with closing(Cell(PROJECT, MEMORY_BYTES)) as cell:
        with pytest.raises(RunFailed, match="KeyError: 'none'"):
            cell.ask("storm", engine="none", family="#.a.#", patterns=1, matches=1, bound_s=1)
        told = cell.ask("storm", engine="trie", family="#.a.#", patterns=40, matches=5, bound_s=9)
        assert (told["patterns"], told["matches"]) == (40, 5)
        assert told["hits"] > 0
        assert told["visited_most"] >= 64


def test_only_compiled_engines_are_measured_in_both_forms(tmp_path: Path) -> None:
    """An engine that is not compiled is measured in one form only."""
    place = tmp_path / "broker" / "routing" / "engines"
    place.mkdir(parents=True)
    (place / "trie.cpython-311-x86_64-linux-gnu.so").touch()
    stage = a_stage(tmp_path, compiled=tmp_path, interpreted=PROJECT)
    found = [(name, form) for name, form, _ in contestants(stage, ["split-once", "trie"])]
    assert found == [("split-once", "interpreted"), ("trie", "interpreted"), ("trie", "compiled")]
    assert set(ENGINES) >= {"split-once", "trie"}


def test_goals_are_judged_by_what_the_broker_does_by_itself() -> None:
    """The default engine is judged, in its best form; those of comparison are not."""
    run = Run("topics")
    for engine, form, us in (
        (DEFAULT, "interpreted", 3.0),
        (DEFAULT, "compiled", 1.5),
        ("dfa", "compiled", 9.0),
    ):
        run.add("sizes", {"us": us, "add_us": 25.0}, engine=engine, form=form, size=1000)
    found = {goal.what: (goal.found, goal.reached) for goal in goals(run)}
    assert found["uncached match at 1,000 patterns, us"] == ("1.5", True)
    assert found["add at 1,000 patterns, us"] == ("25", False)
    assert list(goals(Run("topics"))) == []
