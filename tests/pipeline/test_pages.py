"""The pages whose blocks read messages with Spark, in the order in which the blocks stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pages.clone import clone
from tests.pages.page_run import PageRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

SHOWN = re.compile(r"^\+[-+]+\+\n\|.*\|\n\+[-+]+\+\n((?:\|.*\|\n)*)\+[-+]+\+$", re.MULTILINE)
"""A table that DataFrame.show() printed, with its rows as group."""


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
