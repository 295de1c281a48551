"""Chooses the Spark of a command: the user's server if it runs and fits, else one of the command's own."""

from __future__ import annotations

import argparse
import atexit
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.pipeline.faults import ServerRefused
from broker.pipeline.spark.log import SparkLog
from broker.pipeline.spark.server import ServerRequest, connect, files, start, why_not
from broker.pipeline.spark.server_files import ServerState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ALWAYS_WARM", "SessionChoice", "choose"]

ALWAYS_WARM: Final = "SLOTMQ_PIPELINE_WARM"  # the environment variable that makes every command start the server
RUNTIME: Final = "spark.sql."  # settings that a session may change while Spark runs


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """A server, or why there is none."""

    server: ServerState | None
    why: str = ""
    started: bool = False

    def __str__(self) -> str:
        if self.server is None:
            return f"session: Spark of its own ({self.why})"
        return f"session: {self.server}{', started now' if self.started else ''}"

    def connect(self, conf: Mapping[str, str]) -> SparkSession:
        """Return a session on the server, which ends with this process. Raises: JobFailed."""
        assert self.server is not None
        (SparkLog.current or SparkLog.begin()).take_python_loggers()
        made = connect(self.server, conf)
        atexit.register(made.stop)
        return made


def choose(arguments: argparse.Namespace) -> SessionChoice:
    """Return the Spark that the arguments of `add_spark` request; start a server if they say so.

    Raises: JobFailed, ServerRefused when a requested server is unavailable.
    """
    warm = arguments.warm or os.environ.get(ALWAYS_WARM, "") == "1"
    asked = _asks_for_its_own(arguments)
    if asked:
        if arguments.warm:
            raise ServerRefused(f"--warm and {asked}: the server has its own; start it with them")
        return SessionChoice(None, asked)
    place = files()
    try:
        state, started = start(ServerRequest(), place) if warm else (place.use(), False)
    except ServerRefused as refused:
        if arguments.warm:
            raise
        return SessionChoice(None, str(refused))
    if state is None:
        return SessionChoice(None, "no server runs: --warm starts one")
    if why := why_not(state):
        if arguments.warm:
            raise ServerRefused(f"{state} cannot be used: {why}; slotmq pipeline server stop")
        return SessionChoice(None, f"not {state}: {why}")
    return SessionChoice(state, started=started)


def _asks_for_its_own(arguments: argparse.Namespace) -> str:
    """Return the argument that a running server cannot satisfy, empty if there is none."""
    if arguments.cold:
        return "--cold"
    if arguments.master is not None:
        return f"--master {arguments.master}"
    if arguments.driver_memory is not None:
        return f"--driver-memory {arguments.driver_memory}"
    lake = getattr(arguments, "lake", None)
    if isinstance(lake, str):  # an object store, whose keys are in this process's environment
        return f"--lake {lake}"
    fixed = next((name for name, _ in arguments.conf if not name.startswith(RUNTIME)), None)
    return f"--conf {fixed}" if fixed else ""
