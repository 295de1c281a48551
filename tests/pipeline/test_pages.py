"""The pages whose blocks read messages with Spark, in the order in which the blocks stand.

A guide that begins where another ends says so; it runs in a copy of the folder that the other one leaves.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.broker_process import PROJECT
from tests.pages.clone import clone
from tests.pages.page import blocks
from tests.pages.page_run import PageRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

SHOWN = re.compile(r"^\+[-+]+\+\n\|.*\|\n\+[-+]+\+\n((?:\|.*\|\n)*)\+[-+]+\+$", re.MULTILINE)
"""A table that DataFrame.show() printed, with its rows as group."""

CONTINUES = re.compile(r"The examples continue those of\s\[[^]]+\]\(([\w-]+)\.md\)")
GUIDES = [
    page.stem
    for page in sorted((PROJECT / "docs").glob("pipeline-*.md"))
    if any(block.spark and not block.not_run for block in blocks(page))
]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Callable[[str], Path]:
    """Return what runs a guide, after the one that it continues, and returns the folder that its reader has then."""

    @cache
    def run(name: str) -> Path:
        page, folder = PROJECT / "docs" / f"{name}.md", tmp_path_factory.mktemp(name)
        if earlier := CONTINUES.search(page.read_text()):
            beside = shutil.ignore_patterns(".venv", "control.sock")
            shutil.copytree(run(earlier[1]), folder, ignore=beside, dirs_exist_ok=True)
        guide = PageRun(folder, spark=True)
        try:
            assert guide.run(page)
        finally:
            guide.close()
        return folder

    return run


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide(name: str, left: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A reader of a guide succeeds after nothing but the guides that it names, and sees no empty table."""
    left(name)
    assert all(SHOWN.findall(capsys.readouterr().out))


def test_every_guide_runs_or_says_why_not() -> None:
    """Each page has blocks that run; a block that does not run has its reason."""
    assert [page.stem for page in sorted((PROJECT / "docs").glob("pipeline-*.md"))] == GUIDES


@pytest.mark.parametrize("names", [("README.md",), ("docs/index.md", "docs/pipeline.md")], ids=" ".join)
def test_pages_with_their_spark_blocks(
    names: tuple[str, ...], tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the installation in a fresh clone to tables that are not empty: no block undoes what a later one needs."""
    run = PageRun(clone(tmp_path), in_clone=True, spark=True)
    try:
        for name in names:
            assert run.run(tmp_path / name) > 3
    finally:
        run.close()
    tables = SHOWN.findall(capsys.readouterr().out)
    assert tables and all(row for row in tables)
    start = (tmp_path / names[0]).read_text().partition("## As a table")[0]
    assert '"message-ttl"' not in start  # a reader who takes a minute would find nothing
