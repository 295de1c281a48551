"""`slotmq pipeline simulate` on Spark: one task for each overlay, and its results as files."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker.cli.main import main
from broker.pipeline.simulate.levels import TableSimulation
from broker.pipeline.simulate.plan import SimulationPlan

WORDS = "--brokers 7,10 --redundancy 1,2 --fan-out 2 --subscriptions 30 --patterns 40 --messages 20 --quiet"


def test_each_task_simulates_one_overlay(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows are those of a simulation without Spark, in Parquet and JSON alike, and a picture shows them."""
    output, plot = tmp_path / "rows.parquet", tmp_path / "rows.svg"
    assert main(["pipeline", "simulate", *WORDS.split(), "--json", "-o", str(output), "--plot", str(plot)]) == 0
    rows = json.loads(capsys.readouterr().out)["simulations"]
    assert [row.asDict() for row in spark.read.parquet(str(output)).collect()] == rows
    assert {(row["brokers"], row["redundancy"]) for row in rows} == {(7, 1), (7, 2), (10, 1), (10, 2)}
    for row in rows:
        plan = SimulationPlan(**{name: row[name] for name in SimulationPlan.__slots__})
        here = TableSimulation(plan).run().to_json(plan)
        for measured in ("cpu_s", "broker_cpu_ms"):
            del here[measured], row[measured]
        for held in ("inner_bytes", "leaf_bytes", "broker_bytes"):  # equal texts are one object or two, as it happens
            assert here.pop(held) == pytest.approx(row.pop(held), rel=0.01)
        assert here == row
    assert list(ET.parse(plot).getroot().iter("{http://www.w3.org/2000/svg}polyline"))
    assert {path.name for path in tmp_path.iterdir()} == {"rows.parquet", "rows.svg"}


def test_whole_brokers_as_lines_and_csv(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Overlays of whole brokers are printed as a table and written as CSV; a failed simulation is one line."""
    output = tmp_path / "rows.csv"
    words = ["--level", "messages", "--brokers", "6", "--messages", "10", "-o", str(output), "--quiet"]
    assert main(["pipeline", "simulate", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Whole brokers (level messages), 10 messages in each"
    assert lines[2].split()[:4] == ["6", "4", "4", "2"]
    head, values = (line.split(",") for line in output.read_text().splitlines())
    assert dict(zip(head, values, strict=True))['"brokers"'] == "6"
