"""The log of Spark's JVM and workers in the user's cache folder, and the one line that the user sees of each failure.

The log contains the stack traces of Java and of Python.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Final, Self

from broker.cli.table import cell
from broker.pipeline.faults import JobFailed, ServerRefused, fault_in
from broker.pipeline.spark.server_files import ServerFiles

NAME: Final = "slotmq"
LOGS_KEPT: Final = 20
TAIL_BYTES: Final = 1 << 16
NOISE: Final = re.compile(r"^(\s|WARNING: |Using Spark's|Setting default|To adjust logging|\.\.\. \d+ more|$)")
PYTHON_TRACE: Final = "Traceback (most recent call last):"
LINE_MAX: Final = 600
RAISED: Final = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
CALLING: Final = re.compile(r"^An error occurred while calling [^\n]*\n: ")
CAUSE: Final = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
JAVA_CLASS: Final = re.compile(r"^(?:[a-z]\w*\.)+([A-Z]\w*): ")
CONDITION: Final = re.compile(r"^\[[A-Z][A-Z0-9_.]+\] ?")
SQL_STATE: Final = re.compile(r"\s*SQLSTATE: \w{5}(?:; (line \d+ pos \d+);?)?")
RPC: Final = re.compile(r'^<_\w+ of RPC that terminated with:\s+status = StatusCode\.(\w+)\s+details = "([^\n]*)"')
OUR_PACKAGE: Final = "broker."


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the user's cache folder, created if missing, or a temporary one if that cannot be written to."""
    made = _user_folder(environment) / NAME
    try:
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return _process_folder()
    return made if os.access(made, os.W_OK | os.X_OK) else _process_folder()


def is_kept(folder: Path) -> bool:
    """Return whether a cache folder is the user's, and so outlives this process."""
    return folder.name == NAME


def _user_folder(environment: Mapping[str, str]) -> Path:
    named = environment.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):
        return Path(named)
    home = Path(environment.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - never raises
    return home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"


@cache
def _process_folder() -> Path:
    made = tempfile.mkdtemp(prefix="slotmq-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


@dataclass(frozen=True, slots=True)
class SparkLog:
    """The log of this process's JVM."""

    path: Path
    current: ClassVar[SparkLog | None] = None

    @classmethod
    def begin(cls) -> Self:
        """Begin a new log, and remove old ones except the latest few and that of the running server."""
        cache = cache_folder(os.environ)
        folder = cache / "logs"
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(ServerRefused, OSError):  # if the server's state is unreadable, any log may be the server's
            server = ServerFiles(cache).read()
            for old in sorted(folder.glob("spark-*.log"))[: -LOGS_KEPT + 1]:
                if server is None or str(old) != server.log:
                    old.unlink(missing_ok=True)
        made = cls(folder / f"spark-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.log")
        SparkLog.current = made
        return made

    def take_python_loggers(self) -> None:
        """Write PySpark's log of failed queries to this log instead of standard error."""
        from pyspark.logger import PySparkLogger

        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logger = PySparkLogger.getLogger(name)
            logger.propagate = False
            for handler in list(logger.handlers):
                logger.removeHandler(handler)
            logger.addHandler(self._handler())

    def take_root_logger(self) -> None:
        """Write the log messages of libraries to this log, unless the root logger has a handler."""
        root = logging.getLogger()
        if not root.handlers:
            root.addHandler(self._handler())

    def _handler(self) -> logging.Handler:
        return logging.FileHandler(self.path, encoding="utf-8", delay=True)

    def add(self, text: str) -> None:
        with suppress(OSError), self.path.open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"{text}\n")

    def last_line(self) -> str:
        """Return the last meaningful line, with the path of the log, or "" if there is none."""
        with suppress(OSError), self.path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = [line for line in stream.read().decode(errors="replace").splitlines() if not NOISE.match(line)]
            if lines:
                return f"{lines[-1]} (in full: {self.path})"
        return ""


def failure_of(error: Exception) -> JobFailed:
    """Return the failure to show to the user; write details of an unexpected exception to the log."""
    fault = fault_in(error)
    if fault is not None:
        return JobFailed(_short(str(fault)), fault.code)
    if isinstance(error, JobFailed):
        return error
    log = SparkLog.current or SparkLog.begin()
    text = reason(_text(error))
    log.add("".join(traceback.format_exception(error)))
    return JobFailed(f"{text} (details: {log.path})")


def reason(text: str) -> str:
    """Return one line from Spark's text that describes what happened.

    An exception from Python is preferred to those from Java, because it is nearest to the cause.
    """
    if PYTHON_TRACE in text:
        return _python_error(text.rpartition(PYTHON_TRACE)[2])
    if call := RPC.match(text):
        return _short(f"the Spark server does not answer: {call[2]} ({call[1]})")
    causes = CAUSE.findall(text)
    line = causes[-1] if causes else first_line(CALLING.sub("", text.lstrip()))
    return _short(
        SQL_STATE.sub(
            lambda found: f" ({found[1]})" if found[1] else "", CONDITION.sub("", JAVA_CLASS.sub(r"\1: ", line))
        )
    )


def _python_error(trace: str) -> str:
    for line in trace.splitlines():
        raised = RAISED.match(line)  # lines of code are indented
        if raised is None:
            continue
        name, message = raised[1], raised[2] or ""
        if name.startswith(OUR_PACKAGE):
            return _short(message or name.rpartition(".")[2])
        return _short(f"{name.rpartition('.')[2]}: {message}")
    return _short(first_line(trace))


def _text(error: Exception) -> str:
    message = str(error)
    kind = type(error)
    if kind.__module__.partition(".")[0] in {"pyspark", "py4j", "grpc"}:
        return message or kind.__name__
    trace = f"{PYTHON_TRACE}\n{kind.__module__}.{kind.__qualname__}"
    return f"{trace}: {message}" if message else trace


def first_line(text: str) -> str:
    """Return the first line that is not blank, or "" if there is none."""
    return next((line for line in text.splitlines() if line.strip()), "")


def _short(line: str) -> str:
    line = cell(line.strip().rstrip(";"))
    return line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]} ..."
