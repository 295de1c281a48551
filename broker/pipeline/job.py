"""What all jobs share: arguments, progress, summary, and the choice of the Spark session.

A job is `run_<job>(options, progress) -> Summary` for Python and `add_<job>(commands)` for the command line, both in
broker/pipeline/jobs/<job>.py. The command's `run` checks its arguments and calls `carry_out`, which chooses the session
that `spark_of` returns.
"""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar, cast

from broker.cli.broker_folder import SettingsError
from broker.cli.control_client import Unanswered
from broker.cli.parser import BadUsage, add_list, add_switch, add_value, name_and_text
from broker.cli.table import cell, print_json
from broker.figures.numerals import many, size_text, span_text
from broker.pipeline.faults import OK, JobFailed, JobRefused, LakeRefused, ServerRefused, SourceRefused, restated
from broker.pipeline.lake.place import OPTION_PREFIX, LakePlace
from broker.pipeline.options import local_path
from broker.pipeline.source.http_catalog import HttpCatalog
from broker.pipeline.spark.log import SparkLog
from broker.pipeline.spark.server import connect, files, incompatibility, start
from broker.pipeline.spark.server_files import ServerRequest, ServerState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.pipeline.lake.lake import Lake
    from broker.slot_files.seal_view import Lag

ELSEWHERE_EVERY_S: Final = 5.0
REFRESHES_PER_S: Final = 4  # of the progress line on a terminal


class Progress:
    """The amount of work done by a job, and its display. Any thread may report work.

    Shapes: `lag` is the remaining work, or None if it is unknown.
    """

    def __init__(
        self,
        job: str,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self.slots = 0
        self.rows = 0
        self.lag: Lag | None = None
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._clock = clock
        self._began = self._shown_at = clock()
        self._step = ""
        self._lock = threading.Lock()
        self._status: Any = None  # the progress line on a terminal
        if not quiet and self._stream.isatty():
            from rich.console import Console

            console = Console(file=self._stream, markup=False, highlight=False)
            self._status = console.status(job, refresh_per_second=REFRESHES_PER_S)
            self._status.start()

    def add(self, *, slots: int = 0, rows: int = 0, lag: Lag | None = None) -> None:
        """Count work done, and show the total if an update is due."""
        with self._lock:
            self.slots += slots
            self.rows += rows
            if lag is not None:
                self.lag = lag
            self._show_progress()

    def step(self, name: str) -> None:
        with self._lock:
            self._step = name
            self._show_progress()

    def say(self, line: str) -> None:
        """Unless the job is quiet, print a line that later progress does not overwrite."""
        with self._lock:
            if self._status is not None:
                self._status.console.print(line, soft_wrap=True)
            elif not self._quiet:
                self._stream.write(f"{line}\n")
                self._stream.flush()

    def close(self) -> None:
        """Erase the progress line, so that the terminal is free for other output, and show no more progress."""
        with self._lock:
            self._quiet = True
            if self._status is not None:
                self._status.stop()
                self._status = None

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._began

    def line(self) -> str:
        parts = [self.job]
        if self._step:
            parts.append(self._step)
        if self.slots:
            parts.append(many(self.slots, "slot"))
        if self.rows:
            parts.append(many(self.rows, "row"))
            if self.elapsed_s > 0:
                parts.append(f"{self.rows / self.elapsed_s:,.0f} rows/s")
        if self.lag is not None:
            parts.append(f"{many(self.lag['lag_slots'], 'slot')} to go")
            if self.lag["lag_slots"]:
                parts += [size_text(self.lag["lag_bytes"]), f"{span_text(self.lag['lag_s'])} behind"]
        return "  ".join(parts)

    def _show_progress(self) -> None:
        if self._status is not None:
            self._status.update(self.line())
        elif not self._quiet and self._clock() - self._shown_at >= ELSEWHERE_EVERY_S:
            self._shown_at = self._clock()
            self._stream.write(f"{self.line()}\n")
            self._stream.flush()


Options = TypeVar("Options")
LOCAL: Final = "local[*]"
ALWAYS_WARM: Final = "SLOTMQ_PIPELINE_WARM"  # commands start the server if this environment variable is 1
RUNTIME: Final = "spark.sql."  # the prefix of settings that a session may change while Spark runs


@dataclass(frozen=True, slots=True)
class Summary:
    """The outcome of a job: JSON values and the exit code."""

    values: Mapping[str, Any]
    code: int = OK
    lines: tuple[str, ...] = ()  # printed instead of the values

    def show(self, *, as_json: bool) -> None:
        if as_json:
            print_json(dict(self.values))
            return
        for line in self.lines or tuple(
            f"{name.replace('_', ' ')}: {_value_text(value)}" for name, value in self.values.items()
        ):
            print(line)


def _value_text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return cell(value) or "-"


def add_spark(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every job that uses Spark."""
    group = parser.add_argument_group("Spark")
    add_value(group, "--master", "M", "Spark master; default the server, else local[*], all cores of this machine")
    add_list(group, "--conf", "K=V", "a setting of Spark", type=name_and_text)
    add_value(group, "--driver-memory", "SIZE", "memory of the JVM, such as 2g")
    where = group.add_mutually_exclusive_group()
    add_switch(where, "--warm", "use the Spark server, and start it if none runs")
    add_switch(where, "--cold", "do not use a running server")
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every job."""
    add_switch(parser, "--json", "print the summary as JSON")
    add_switch(parser, "--quiet", "show no progress")


def add_lake(parser: argparse._ActionsContainer, text: str, *, required: bool = True) -> None:
    """Add the arguments that name a lake, a folder or s3://bucket/prefix; `text` is the help text of --lake."""
    add_value(parser, "--lake", "DIR|URL", text, type=_lake_argument, required=required)
    text = "for a lake at s3://, such as aws_endpoint_url=http://host:9000; default the AWS_ variables"
    add_value(parser, "--storage-option", "K=V", text, type=_storage_option, action="append")


def add_broker(parser: argparse._ActionsContainer, data: str, server: str = "") -> None:
    """Add --path, the broker's data folder, and --url, its HTTP server; `data` and `server` extend their help texts."""
    add_value(parser, "--path", "DIR", f"the broker's data folder{data}")
    url = "http(s)://user:password@host:15672"
    add_value(parser, "--url", "URL", f"the broker's HTTP server, {url}{server}", type=_url)


def _url(text: str) -> str:
    with restated(SourceRefused, argparse.ArgumentTypeError):
        HttpCatalog(text)
    return text


def options_of(kind: Callable[..., Options], arguments: argparse.Namespace, **found: Any) -> Options:
    """Return a job's options, a dataclass `kind`: each field has its value in `found`, else the argument of its name.

    Shapes: by default, the field `spark` is a function that starts Spark.
    """
    for name in (each.name for each in fields(cast("Any", kind))):
        if name == "spark":
            found.setdefault(name, lambda: spark_of(arguments))
        elif name not in found and name in arguments:
            value = getattr(arguments, name)
            found[name] = tuple(value) if isinstance(value, list) else value
    return kind(**found)


def _lake_argument(text: str) -> Path | str:
    if not text:
        raise argparse.ArgumentTypeError("it names no folder")
    with restated(LakeRefused, argparse.ArgumentTypeError):
        folder = LakePlace.of(text).folder
    return text if folder is None else folder


def open_lake(place: Path | str, version: int | str | None = None) -> Lake:
    """Return a lake, optionally at a version. Raises: JobRefused if the lake or the version cannot be opened."""
    from broker.pipeline.lake.lake import Lake

    with restated(LakeRefused, JobRefused):
        return Lake(place, version=version)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file that appears only when it is complete. Raises: JobFailed."""
    writing = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write(writing)
        writing.replace(path)
    except OSError as error:
        raise JobFailed(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            writing.unlink()


def _storage_option(text: str) -> tuple[str, str]:
    """Set an object store option as an environment variable, which the JVM and the workers inherit."""
    name, value = name_and_text(text)
    if not name.upper().startswith(OPTION_PREFIX):
        raise argparse.ArgumentTypeError(f"{name!r} is not an option of an object store, such as aws_region")
    os.environ[name.upper()] = value
    return name, value


def path_argument(text: str) -> Path:
    """Return the path that an argument names. Raises: ArgumentTypeError for a URL."""
    with restated(LakeRefused, argparse.ArgumentTypeError):
        return local_path(text)


def spark_of(arguments: argparse.Namespace) -> SparkSession:
    """Return the session that `carry_out` chose; a session on a server ends with this process. Raises: JobFailed."""
    chosen: SessionChoice = arguments.session
    conf = dict(arguments.conf)
    if chosen.server is not None:
        (SparkLog.current or SparkLog.begin()).take_python_loggers()
        made = connect(chosen.server, conf)
        atexit.register(made.stop)
        return made
    from broker.pipeline.spark.session import session

    if arguments.driver_memory:
        conf["spark.driver.memory"] = arguments.driver_memory
    made = session(master=arguments.master or LOCAL, conf=conf, app=chosen.app, formats=False)
    if SparkLog.current is not None:
        SparkLog.current.take_root_logger()
    # Spark's own handler would call the JVM to cancel jobs, even during another call. The JVM ends with this process.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return made


def carry_out(
    arguments: argparse.Namespace, name: str, work: Callable[[Progress], Summary], *, engine: bool = True
) -> int:
    """Run a command's job, show progress and summary, and return the exit code; a failure is printed without a trace.

    Shapes: `engine` is False for a job that could use Spark, but does not.
    Raises: BadUsage, SettingsError, Unanswered, which the command line reports itself.
    """
    progress = Progress(name, quiet=arguments.quiet)
    try:
        if engine and "warm" in arguments:
            arguments.session = replace(choose_session(arguments), app=f"slotmq-{name}")
            progress.say(str(arguments.session))
        summary = work(progress)
    except (BadUsage, SettingsError, Unanswered):
        raise
    except Exception as error:  # noqa: BLE001 - users cannot do anything with a stack trace through two languages
        from broker.pipeline.spark.log import failure_of

        progress.close()
        failure = failure_of(error)
        print(f"slotmq: {failure}", file=sys.stderr)
        return failure.code
    finally:
        progress.close()
    summary.show(as_json=arguments.json)
    return summary.code


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """The Spark server that a job uses, or the reason why it starts a Spark of its own."""

    server: ServerState | None
    why: str = ""
    started: bool = False
    app: str = "slotmq"

    def __str__(self) -> str:
        if self.server is None:
            return f"session: Spark of its own ({self.why})"
        return f"session: {self.server}{', started now' if self.started else ''}"


def choose_session(arguments: argparse.Namespace) -> SessionChoice:
    """Choose the Spark of a job by the arguments of `add_spark`, and start the server if they request it.

    Raises: JobFailed; ServerRefused if --warm requests a server that cannot be used.
    """
    warm = arguments.warm or os.environ.get(ALWAYS_WARM, "") == "1"
    own = _own_session_reason(arguments)
    if own:
        if arguments.warm:
            raise ServerRefused(f"--warm and {own}: the server has its own; start it with them")
        return SessionChoice(None, own)
    place = files()
    try:
        state, started = start(ServerRequest(), place) if warm else (place.use(), False)
    except ServerRefused as refused:
        if arguments.warm:
            raise
        return SessionChoice(None, str(refused))
    if state is None:
        return SessionChoice(None, "no server runs: --warm starts one")
    if why := incompatibility(state):
        if arguments.warm:
            raise ServerRefused(f"{state} cannot be used: {why}; slotmq pipeline server stop")
        return SessionChoice(None, f"not {state}: {why}")
    return SessionChoice(state, started=started)


def _own_session_reason(arguments: argparse.Namespace) -> str:
    """Return an argument that a running server cannot satisfy, or "" if there is none."""
    if arguments.cold:
        return "--cold"
    if arguments.master is not None:
        return f"--master {arguments.master}"
    if arguments.driver_memory is not None:
        return f"--driver-memory {arguments.driver_memory}"
    lake = getattr(arguments, "lake", None)
    if isinstance(lake, str):  # an object store, whose credentials are in this process's environment
        return f"--lake {lake}"
    fixed = next((name for name, _ in arguments.conf if not name.startswith(RUNTIME)), None)
    return f"--conf {fixed}" if fixed else ""
