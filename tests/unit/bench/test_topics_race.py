"""Taking turns, processes that hold an index, and publishing through brokers."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from bench.topics import load, workload
from bench.topics.cell import INTERPRETED, Cell, NoAnswer, Package
from bench.topics.plan import QUICK
from bench.topics.race import Runner, race
from bench.topics.stage import Stage
from bench.topics.traffic import Keys, Side
from broker.routing.engine_names import ENGINES
from tests.property.topic_reference import matches

KEYS = [str(number) for number in range(1000)]
MEMORY_BYTES = 1 << 31


def test_contestants_take_turns() -> None:
    """After the first laps, which determine the slice length, slices alternate A B A B."""
    said: list[str] = []
    names = ("a", "b")
    runners = race(dict.fromkeys(names, said.append), {name: [name] * 1000 for name in names}, 3, 1e-5)
    slices = [name for name, _ in groupby(said)]
    assert slices[-6:] == ["a", "b", "a", "b", "a", "b"]
    assert [len(runner.times_us) for runner in runners.values()] == [3, 3]


def test_a_runner_meets_every_key_before_any_again() -> None:
    """Keys repeat only after all were used, because an index may cache; a batch never wraps."""
    met: list[str] = []
    runner = Runner(met.append, KEYS, batch=300)
    for _ in range(3):
        runner.lap()
    assert met == KEYS[:900]
    runner.lap()
    assert met[900:] == KEYS[:300]


def test_a_cell_answers_as_the_reference(tmp_path: Path) -> None:
    """An index in its own process matches as many patterns as single comparisons, and empties."""
    patterns, keys = workload.patterns(200), workload.keys(100)
    stage = Stage(QUICK, [INTERPRETED], tmp_path, print)
    kept = stage.write("p", patterns), stage.write("k", keys)
    with Cell(INTERPRETED, MEMORY_BYTES) as cell:
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
    with Cell(INTERPRETED, MEMORY_BYTES) as cell:
        with pytest.raises(NoAnswer, match="no topic engine"):
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
    stage = Stage(QUICK, [INTERPRETED, Package("compiled", tmp_path)], tmp_path, print)
    found = [(name, package.form) for name, package in stage.contestants(["split-once", "trie"])]
    assert found == [("split-once", "interpreted"), ("trie", "interpreted"), ("trie", "compiled")]
    assert set(ENGINES) >= {"split-once", "trie"}


def test_one_key_in_a_hundred_meets_a_binding_and_none_comes_twice() -> None:
    """New keys are unique across rounds, and the number of expected messages is known."""
    keys = Keys(workload.narrow_patterns(300), 5000)
    first, second = keys.take(1000), keys.take(1000)
    assert [keys.matching(taken) for taken in (first, second)] == [10, 10]
    assert len({*first, *second}) == 2000


def test_a_tape_holds_its_messages_end_to_end() -> None:
    """Messages of a tape are adjacent, so any number of them can be sent."""
    tape = load.encode(["a", "bb.cc", ""])
    assert tape.ends[-1] == len(tape.buffer)
    assert tape.buffer[tape.ends[0] - 1] == 0xCE
    assert b"bb.cc" in tape.buffer[tape.ends[0] : tape.ends[1]]


def test_what_would_take_too_long_to_bind_is_left_out(tmp_path: Path) -> None:
    """A slow bind is not attempted with larger sizes, and the reason is stored."""
    from bench.topics import traffic

    side = Side("slow", None, None, binds_per_s=10.0)  # type: ignore[arg-type]
    run = traffic._bind(Stage(QUICK, [INTERPRETED], tmp_path, print), side, ["a.*"] * 10_000, 10_000)
    assert "would take about 1,000 s" in run["left_out"]
