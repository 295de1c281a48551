"""A standalone cluster on loopback: a master and two workers of one core archive the same rows as local[2]."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from broker.cli.pipeline import missing_packages
from broker.pipeline.lake.lake import Lake
from broker.pipeline.spark.java import find_java
from tests.broker_process import PACKAGE, PROJECT
from tests.deadline import wait_until
from tests.slot_folders import SlotFolder, TapMessage

pytestmark = [
    pytest.mark.torture,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing_packages()), reason='not installed: pip install ".[spark]"'),
]

DEADLINE_S = 60
HOST = "127.0.0.1"
MASTER = "local-cluster[2,1,600]"  # a master and two workers with separate executors
ROWS = 1000  # for each slot
BODY_BYTES = 5000
FEW, MANY = 10, 50
GROWTH_MAX_BYTES = 32 << 20  # for a driver that archives 200 MB more


def folder_of(path: Path, slots: int) -> Path:
    """Return a data folder with slots of 5 MB, whose bodies differ."""
    folder = SlotFolder(path)
    for slot in range(slots):
        folder.add_slot(
            "all",
            (TapMessage(b"%08d" % (slot * ROWS + row) * (BODY_BYTES // 8), f"a.{row % 7}") for row in range(ROWS)),
        )
    return path


def driver(environment: dict[str, str], *words: str) -> list[dict[str, Any]]:
    """Run a driver, and return its figures for each folder."""
    command = [sys.executable, "-m", "tests.pipeline.cluster_driver", *words]
    done = subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def table_of(lake: Path) -> pa.Table:
    """Return the rows of a lake, in the order of the messages."""
    found = Lake(lake)
    tables = [pq.read_table(found.message_table.folder / file.path, partitioning=None) for file in found.files()]
    return pa.concat_tables(tables).sort_by([("seal", "ascending"), ("offset", "ascending")])


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Provide the environment variables of drivers with a separate cache folder."""
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": f"{PACKAGE}:{PROJECT}"}


def test_a_wrong_secret_is_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    """A master that refuses the job's secret ends it before Spark asks again, which it does after 20 s."""
    (tmp_path / "spark-defaults.conf").write_text("spark.authenticate true\nspark.authenticate.secret right\n")
    home = Path(pyspark.__file__).parent
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    java = {"JAVA_HOME": str(find_java().home), "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(tmp_path)}
    words = ["org.apache.spark.deploy.master.Master", "--host", HOST, "--port", str(port), "--webui-port", "0"]
    output = tmp_path / "master.log"
    with output.open("w") as stream:
        master = subprocess.Popen(
            [home / "bin" / "spark-class", *words], env={**environment, **java}, stdout=stream, stderr=stream
        )
    try:
        wait_until(lambda: "I have been elected leader" in output.read_text(), "a master", DEADLINE_S)
        job = ["--path", str(folder_of(tmp_path / "data", 1)), "--lake", str(tmp_path / "lake")]
        wrong = ["--master", f"spark://{HOST}:{port}", "--conf", "spark.authenticate=true"]
        wrong += ["--conf", "spark.authenticate.secret=wrong"]
        command = [sys.executable, "-m", "broker", "pipeline", "archive", "--quiet", *job, *wrong]
        done = subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("have different secrets")) == (1, 1)
        assert "Traceback" not in done.stderr and "stopped SparkContext" not in done.stderr
        log = max((tmp_path / "cache").rglob("spark-*.log"))
        assert log.read_text().count("Failed to connect to master") <= 1
    finally:
        master.kill()
        master.wait()


def test_two_workers_archive_what_one_machine_does(environment: dict[str, str], tmp_path: Path) -> None:
    """Two workers write the same rows as one machine, both executors work, and the driver's memory does not grow."""
    few, many = folder_of(tmp_path / "few", FEW), folder_of(tmp_path / "many", MANY)
    first, second = driver(
        environment, MASTER, str(few), str(tmp_path / "few-lake"), str(many), str(tmp_path / "many-lake")
    )
    assert [first["rows"], second["rows"]] == [FEW * ROWS, MANY * ROWS]
    assert [first["code"], second["code"]] == [0, 0]

    assert len(second["tasks"]) == 2
    assert all(tasks >= FEW for tasks in second["tasks"].values()), second["tasks"]
    assert second["heap_bytes"] - first["heap_bytes"] < GROWTH_MAX_BYTES
    assert second["rss_bytes"] - first["rss_bytes"] < GROWTH_MAX_BYTES

    alone = tmp_path / "alone-lake"
    assert driver(environment, "local[2]", str(many), str(alone))[0]["rows"] == MANY * ROWS
    assert table_of(tmp_path / "many-lake").equals(table_of(alone))
