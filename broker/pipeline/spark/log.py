"""The log file of Spark's JVM and its workers, which keeps stack traces off the terminal of a job."""

from __future__ import annotations

import logging
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

from broker.pipeline.faults import ServerRefused
from broker.pipeline.spark.server_files import ServerFiles
from broker.pipeline.spark.user_folder import cache_folder

__all__ = ["SparkLog"]

KEPT: Final = 20
TAIL_BYTES: Final = 1 << 16
NOISE: Final = re.compile(r"^(\s|WARNING: |Using Spark's|Setting default|To adjust logging|\.\.\. \d+ more|$)")


@dataclass(frozen=True, slots=True)
class SparkLog:
    """The log of this process's JVM."""

    path: Path
    current: ClassVar[SparkLog | None] = None

    @classmethod
    def begin(cls) -> Self:
        """Return a new log, and remove all but the latest few and the running server's."""
        cache = cache_folder(os.environ)
        folder = cache / "logs"
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(ServerRefused, OSError):  # without the server's state, each log may be its own
            server = ServerFiles(cache).read()
            for old in sorted(folder.glob("spark-*.log"))[: -KEPT + 1]:
                if server is None or str(old) != server.log:
                    old.unlink(missing_ok=True)
        made = cls(folder / f"spark-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.log")
        SparkLog.current = made
        return made

    def take_python_loggers(self) -> None:
        """Redirect PySpark's log of failed queries in Python, which would otherwise go to standard error."""
        from pyspark.logger import PySparkLogger

        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logger = PySparkLogger.getLogger(name)
            logger.propagate = False
            for handler in list(logger.handlers):
                logger.removeHandler(handler)
            logger.addHandler(self._handler())

    def take_root_logger(self) -> None:
        """Redirect messages of libraries without a logger of their own, such as an interrupted bridge to the JVM."""
        root = logging.getLogger()
        if not root.handlers:
            root.addHandler(self._handler())

    def _handler(self) -> logging.Handler:
        return logging.FileHandler(self.path, encoding="utf-8", delay=True)

    def add(self, text: str) -> None:
        """Append an error from the Python side."""
        with suppress(OSError), self.path.open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"{text}\n")

    def last_words(self) -> str:
        """Return the last meaningful line, with the log's name; empty if there is none."""
        with suppress(OSError), self.path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = [line for line in stream.read().decode(errors="replace").splitlines() if not NOISE.match(line)]
            if lines:
                return f"{lines[-1]} (all of it: {self.path})"
        return ""
