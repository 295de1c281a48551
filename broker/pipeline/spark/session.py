"""Spark sessions with the pipeline's settings: a supported Java, this Python in the workers, loopback, quiet, UTC."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from broker.pipeline.faults import USAGE, JobFailed
from broker.pipeline.spark.java import find_java
from broker.pipeline.spark.log import SparkLog

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
WORKER_IDLE_S: Final = 600  # nothing else ends a worker that hangs
BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 8 << 20  # 10,000 rows with large bodies would be too much

ALWAYS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",  # a second, concurrent attempt would publish twice
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
    "spark.python.worker.idleTimeoutSeconds": str(WORKER_IDLE_S),
    "spark.python.worker.killOnIdleTimeout": "true",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}
LOOK_EVERY_S: Final = 0.2
BEFORE_BYTES: Final = 200  # a text may be half written when it is read
REFUSED: Final = re.compile(rb"Exception while bootstrapping client|Expected SaslMessage, received something else")
SILENT: Final = re.compile(rb"All masters are unresponsive! Giving up")
SPECULATION: Final = "spark.speculation"
FORMATS: Final = "broker.pipeline.formats"  # loaded by name: the formats need the pipeline, and sessions do not


def settings(master: str, app: str, conf: Mapping[str, str], cores: int) -> dict[str, str]:
    """Return the settings of a session; those of `conf` take precedence."""
    made = {"spark.master": master, "spark.app.name": app, **ALWAYS}
    if is_local(master):
        made |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.sql.shuffle.partitions": str(2 * local_cores(master, cores)),
        }
    return made | dict(conf)


def is_local(master: str) -> bool:
    """Return whether the driver does all the work."""
    return master == "local" or master.startswith("local[")


def local_cores(master: str, cores: int) -> int:
    """Return the number of tasks that run at once on a local master, on a machine with this number of cores."""
    number = master.removeprefix("local").strip("[]").partition(",")[0]
    return cores if number == "*" else int(number) if number.isdecimal() else 1


def session(
    master: str = "local[*]", conf: Mapping[str, str] | None = None, app: str = "slotmq", *, formats: bool = True
) -> SparkSession:
    """Return a session with the pipeline's formats; if this process already has a session, that one with `conf`.

    Shapes: without `formats` the session has none of them, and starts a second earlier.

    Raises: JobFailed: no supported Java (NO_JAVA), the extra is missing (USAGE), Spark does not start.
    Cost: the first one starts a JVM: some 5 s and 300 MB.
    """
    if find_spec("pyspark") is None:
        raise JobFailed('Spark is not installed: pip install ".[spark]" in a clone of SlotMQ', USAGE)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:  # noqa: SLF001
        wanted = dict(conf or {})
    elif "PYSPARK_GATEWAY_PORT" in os.environ:  # of spark-submit, whose master and other settings hold
        SparkContext._ensure_initialized()  # noqa: SLF001 - otherwise its settings are unknown
        wanted = {**ALWAYS, **dict(SparkConf().getAll()), **(conf or {})}
    else:
        wanted = {"spark.sql.warehouse.dir": _warehouse(), **settings(master, app, conf or {}, os.cpu_count() or 1)}
        _begin(SparkConf(loadDefaults=False).setAll(list(wanted.items())), master)
    made = SparkSession.builder.config(map=wanted).getOrCreate()
    return register(made) if formats else made


def _begin(conf: SparkConf, master: str) -> None:
    """Create the context, and the JVM unless a stopped session has left one."""
    from pyspark import SparkContext

    if SparkContext._gateway is None:  # noqa: SLF001
        _start(conf, master)
    else:
        with environment(_python(master)):
            _create(conf, master, SparkContext._gateway)  # noqa: SLF001


def _start(conf: SparkConf, master: str) -> None:
    """Start the JVM and the context; their output goes to a log file."""
    import pyspark
    from pyspark.java_gateway import launch_gateway

    java = find_java()
    if shutil.which("bash") is None:
        raise JobFailed("Spark's launcher is written for bash, and there is none on PATH")
    log = SparkLog.begin()
    log.take_python_loggers()
    home = os.path.dirname(pyspark.__file__)  # noqa: PTH120 - another Spark's jars would not fit
    local = {"SPARK_LOCAL_IP": LOOPBACK} if is_local(master) else {}
    with environment({"JAVA_HOME": str(java.home), "SPARK_HOME": home, **local, **_python(master)}):
        try:
            with log.path.open("ab") as stream:
                gateway = launch_gateway(conf, {"stdout": stream, "stderr": stream})
            _create(conf, master, gateway)
        except JobFailed:
            raise
        except Exception as error:
            raise JobFailed(f"Spark did not start on the Java in {java.where}: {log.last_words() or error}") from error


def _create(conf: SparkConf, master: str, gateway: Any) -> None:
    """Create the context in a JVM. Raises: JobFailed when the master refuses the session; its JVM has ended then."""
    from pyspark import SparkContext

    log = SparkLog.current
    try:
        with nullcontext() if log is None or is_local(master) else MasterWatch(log.path, master, gateway.proc.kill):
            SparkContext(conf=conf, gateway=gateway)
    except JobFailed:
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
        raise


@cache
def _warehouse() -> str:
    """Return a folder of this process for tables without a location; Spark would create one in the current folder."""
    folder = tempfile.mkdtemp(prefix="slotmq-warehouse-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _python(master: str) -> dict[str, str]:
    """Return the settings for the workers' Python: this one with its packages, unless a cluster has its own."""
    named = os.environ.get("PYSPARK_PYTHON")
    return {"PYSPARK_PYTHON": named if named and not is_local(master) else sys.executable}


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within a context: some options of Spark exist only there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def master_fault(output: bytes, master: str) -> str:
    """Return the reason why a session cannot use a master, empty if it can.

    Shapes: `output` is that of the driver's JVM.
    """
    if REFUSED.search(output):
        return (
            f"the Spark master at {master} and this job have different secrets: "
            "spark.authenticate and spark.authenticate.secret should be those of the cluster, "
            "in spark-defaults.conf of the folder that SPARK_CONF_DIR names"
        )
    return f"no Spark master answers at {master}" if SILENT.search(output) else ""


class MasterWatch:
    """Read the output of the JVM within a context, and end the JVM once it says why it cannot reach the master.

    Raises: JobFailed, at the end of the context.
    """

    def __init__(self, output: Path, master: str, end: Callable[[], object]) -> None:
        self._fault = ""
        self._output = output
        self._at = output.stat().st_size
        self._master = master
        self._end = end
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="slotmq-master-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._fault:
            raise JobFailed(self._fault) from None

    def find_reason(self) -> bool:
        """Read the new output, and return whether it has the reason why the master is unreachable."""
        with suppress(OSError), self._output.open("rb") as stream:
            stream.seek(self._at)
            said = stream.read()
            self._fault = master_fault(said, self._master)
            self._at += max(0, len(said) - BEFORE_BYTES)
        return bool(self._fault)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            if self.find_reason():
                self._end()
                return


def register(spark: SparkSession) -> SparkSession:
    """Register the formats with any session, and return the session."""
    formats = import_module(FORMATS)
    speculates = str(spark.conf.get(SPECULATION, "false")).lower() == "true"
    with _active(spark):  # Spark does not tell a writer about speculation
        spark.dataSource.register(formats.SpeculatingMessageFormat if speculates else formats.MessageFormat)
        spark.dataSource.register(formats.SlotFormat)
    return spark


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session active within a context: Spark checks there whether a name is taken, and registers elsewhere."""
    if not hasattr(spark, "sparkContext"):  # a Connect session has no context
        yield
        return
    before = type(spark).getActiveSession()
    _activate(spark)
    try:
        yield
    finally:
        if before is not None:
            _activate(before)


def _activate(spark: SparkSession) -> None:
    """Make a session active: creating a frame of local rows does that, and there is no public call for it."""
    spark.createDataFrame([], "n int")
