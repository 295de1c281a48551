"""Create Spark sessions with the pipeline's settings and formats."""

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
WORKER_IDLE_S: Final = 600  # a worker that is silent for longer is killed; nothing else ends one that hangs
BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 8 << 20  # limits the memory of rows with large bodies

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
POLL_S: Final = 0.2
OVERLAP_BYTES: Final = 200  # read again, because a line may be incomplete when it is read
WRONG_SECRET: Final = re.compile(rb"Exception while bootstrapping client|Expected SaslMessage, received something else")
UNREACHABLE: Final = re.compile(rb"All masters are unresponsive! Giving up")
SPECULATION: Final = "spark.speculation"
FORMATS: Final = "broker.pipeline.formats"  # imported by name, because only the formats need the whole pipeline


def settings(master: str, app: str, conf: Mapping[str, str], cores: int) -> dict[str, str]:
    """Return the settings of a session; those in `conf` take precedence."""
    made = {"spark.master": master, "spark.app.name": app, **ALWAYS}
    if is_local(master):
        made |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.sql.shuffle.partitions": str(2 * local_cores(master, cores)),
        }
    return made | dict(conf)


def is_local(master: str) -> bool:
    """Return whether the driver itself runs the tasks."""
    return master == "local" or master.startswith("local[")


def local_cores(master: str, cores: int) -> int:
    """Return how many tasks a local master runs at the same time on a machine with this number of cores."""
    number = master.removeprefix("local").strip("[]").partition(",")[0]
    return cores if number == "*" else int(number) if number.isdecimal() else 1


def session(
    master: str = "local[*]", conf: Mapping[str, str] | None = None, app: str = "slotmq", *, formats: bool = True
) -> SparkSession:
    """Return a session with the pipeline's formats. If this process already has one, return it, with `conf` set.

    Shapes: `formats` is False to save the second that it takes to register the formats.
    Raises: JobFailed if there is no supported Java (NO_JAVA), the extra is missing (USAGE), or Spark does not start.
    Cost: the first session starts a JVM: some 5 s and 300 MB.
    """
    if find_spec("pyspark") is None:
        raise JobFailed('Spark is not installed: pip install ".[spark]" in a clone of SlotMQ', USAGE)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:  # noqa: SLF001
        wanted = dict(conf or {})
    elif "PYSPARK_GATEWAY_PORT" in os.environ:  # started by spark-submit, whose settings take precedence
        SparkContext._ensure_initialized()  # noqa: SLF001 - loads these settings
        wanted = {**ALWAYS, **dict(SparkConf().getAll()), **(conf or {})}
    else:
        wanted = {"spark.sql.warehouse.dir": _warehouse(), **settings(master, app, conf or {}, os.cpu_count() or 1)}
        _create_context(SparkConf(loadDefaults=False).setAll(list(wanted.items())), master)
    made = SparkSession.builder.config(map=wanted).getOrCreate()
    return register(made) if formats else made


def _create_context(conf: SparkConf, master: str) -> None:
    """Create the context, and a JVM unless a stopped session has left one."""
    from pyspark import SparkContext

    if SparkContext._gateway is None:  # noqa: SLF001
        _start_jvm(conf, master)
    else:
        with environment(_python(master)):
            _connect_context(conf, master, SparkContext._gateway)  # noqa: SLF001


def _start_jvm(conf: SparkConf, master: str) -> None:
    import pyspark
    from pyspark.java_gateway import launch_gateway

    java = find_java()
    if shutil.which("bash") is None:
        raise JobFailed("Spark's launcher needs bash, which is not on PATH")
    log = SparkLog.begin()
    log.take_python_loggers()
    home = os.path.dirname(pyspark.__file__)  # noqa: PTH120 - another Spark's jars would not fit
    local = {"SPARK_LOCAL_IP": LOOPBACK} if is_local(master) else {}
    with environment({"JAVA_HOME": str(java.home), "SPARK_HOME": home, **local, **_python(master)}):
        try:
            with log.path.open("ab") as stream:
                gateway = launch_gateway(conf, {"stdout": stream, "stderr": stream})
            _connect_context(conf, master, gateway)
        except JobFailed:
            raise
        except Exception as error:
            raise JobFailed(f"Spark did not start on the Java in {java.where}: {log.last_line() or error}") from error


def _connect_context(conf: SparkConf, master: str, gateway: Any) -> None:
    """Create the context in a JVM. Raises: JobFailed if the master refuses the session; the JVM has then ended."""
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
    """Return a temporary folder for tables without a location; by default Spark would use the current folder."""
    folder = tempfile.mkdtemp(prefix="slotmq-warehouse-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _python(master: str) -> dict[str, str]:
    """Return the setting for the workers' Python: this one, unless PYSPARK_PYTHON names the one of a cluster."""
    named = os.environ.get("PYSPARK_PYTHON")
    return {"PYSPARK_PYTHON": named if named and not is_local(master) else sys.executable}


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within a context, because some options of Spark exist only there."""
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
    """Return why a session cannot use a master, according to the output of its JVM; "" if it shows no reason."""
    if WRONG_SECRET.search(output):
        return (
            f"the Spark master at {master} and this job have different secrets: "
            "spark.authenticate and spark.authenticate.secret should be those of the cluster, "
            "in spark-defaults.conf of the folder that SPARK_CONF_DIR names"
        )
    return f"no Spark master answers at {master}" if UNREACHABLE.search(output) else ""


class MasterWatch:
    """Watch the output of the JVM within a context, and end the JVM when it reports that it cannot use the master.

    Raises: JobFailed at the end of the context, in that case.
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
        """Read the new output, and return whether it says why the master cannot be used."""
        with suppress(OSError), self._output.open("rb") as stream:
            stream.seek(self._at)
            text = stream.read()
            self._fault = master_fault(text, self._master)
            self._at += max(0, len(text) - OVERLAP_BYTES)
        return bool(self._fault)

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            if self.find_reason():
                self._end()
                return


def register(spark: SparkSession) -> SparkSession:
    """Register the formats with a session, and return the session."""
    formats = import_module(FORMATS)
    speculates = str(spark.conf.get(SPECULATION, "false")).lower() == "true"  # a writer cannot read this setting
    with _active(spark):
        spark.dataSource.register(formats.SpeculatingMessageFormat if speculates else formats.MessageFormat)
        spark.dataSource.register(formats.SlotFormat)
    return spark


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session active within a context, because Spark checks names of formats in the active session."""
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
    """Make a session active by creating a frame of local rows, because there is no public method for it."""
    spark.createDataFrame([], "n int")
