"""The page of a stored run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import page
from bench.results import load
from bench.tables import TABLES, TEXTS

PROJECT = Path(__file__).resolve().parents[3]
PAGES = [PROJECT / "docs" / name for name in ("performance.md", "figures.md")]
MACHINE = {
    "cpu": "a processor", "cores": 2, "memory_gib": 1.0, "kernel": "6", "python": "3.11", "file_system": "ext4",
    "fdatasync_us": 100, "load": 0.0,
}  # fmt: skip


def content(**figures: float) -> dict[str, Any]:
    """Return a stored run of one scenario."""
    run = {"broker": "SlotMQ", "scenario": "S1-16", "round": 0, "figures": figures, "step_ns": 50.0}
    return {
        "machine": MACHINE, "products": {"SlotMQ": "SlotMQ 1"}, "limits": {"rounds": 1}, "quick": True,
        "seconds": 1.0, "runs": [run], "titles": {"S1-16": "transient"}, "append_limits": {}, "least_calls": {},
    }  # fmt: skip


def test_a_place_on_the_page_is_filled_and_what_is_around_it_stays() -> None:
    """Filling twice equals filling once; marks of others are kept; an unknown place is an error."""
    text = (
        "before\n<!-- bench: cost -->\nold\n<!-- end of bench -->\n"
        "<!-- growth: curves -->\ntheirs\n<!-- end of growth -->\n`bench/results/bench-1.json`\n"
    )
    kept = content(cpu_us=4.5, per_s=1234.0)
    filled = page.filled(text, kept, "bench-2.json")
    assert "old" not in filled
    assert "| S1-16: transient | 4.50 / 1,234 | - |" in filled
    assert filled.endswith("<!-- growth: curves -->\ntheirs\n<!-- end of growth -->\n`bench/results/bench-2.json`\n")
    assert page.filled(filled, kept, "bench-2.json") == filled
    with pytest.raises(KeyError):
        page.filled(text.replace("cost", "nothing"), kept, "bench-2.json")


def test_every_table_can_be_made_of_a_run_that_measured_little() -> None:
    """A run of one scenario without RabbitMQ gives short but valid tables."""
    places = "".join(f"<!-- bench: {name} -->\n<!-- end of bench -->\n" for name in (*TEXTS, *TABLES))
    assert "2 cores, a processor" in page.filled(places, content(cpu_us=4.5), "bench-1.json")


def test_pages_and_kept_run_agree() -> None:
    """The tables of the pages are those of the run that they name, and all tables are used."""
    texts = [page_path.read_text() for page_path in PAGES]
    (name,) = {page.kept_name(text) for text in texts}
    kept = load(PROJECT / "bench" / "results" / name)
    assert [page.filled(text, kept, name) for text in texts] == texts
    assert all(f"<!-- bench: {place} -->" in "".join(texts) for place in (*TEXTS, *TABLES))


def test_pages_have_every_picture_that_is_drawn() -> None:
    """Every picture of the benchmark is on a page."""
    drawn = {path.name for path in PAGES[0].parent.glob("performance-*.svg")}
    assert {"performance-cost.svg", "performance-more.svg"} <= drawn
    shown = "".join(page_path.read_text() for page_path in PAGES)
    assert all(f"({name})" in shown for name in drawn)
