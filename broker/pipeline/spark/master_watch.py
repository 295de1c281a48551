"""Watches the start of a session on a cluster: Spark asks a master for a minute that refuses its secret at once."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from broker.pipeline.job_failure import JobFailed

__all__ = ["MasterWatch", "master_fault"]

LOOK_EVERY_S: Final = 0.2
BEFORE_BYTES: Final = 200  # a text may be half written at one look
REFUSED: Final = re.compile(rb"Exception while bootstrapping client|Expected SaslMessage, received something else")
SILENT: Final = re.compile(rb"All masters are unresponsive! Giving up")


def master_fault(output: bytes, master: str) -> str:
    """Return what keeps a session from a master, empty if nothing does.

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
    """Reads the output of the JVM within a context, and ends the JVM once it says why it cannot reach the master.

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

    def look(self) -> bool:
        """Read the new output, and return whether it says why the master cannot be reached."""
        with suppress(OSError), self._output.open("rb") as stream:
            stream.seek(self._at)
            said = stream.read()
            self._fault = master_fault(said, self._master)
            self._at += max(0, len(said) - BEFORE_BYTES)
        return bool(self._fault)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            if self.look():
                self._end()
                return
