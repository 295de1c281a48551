"""`slotmq pipeline archive`: copy the messages of taps into a lake, each once, and release their slots."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from broker.cli.parser import BadUsage, add_command, add_list, add_switch, add_value
from broker.pipeline.faults import (
    BAD_RECORDS,
    OK,
    JobRefused,
    LakeRefused,
    SourceRefused,
    TapTaken,
    fault_in,
    faults_fail_the_job,
    restated,
)
from broker.pipeline.job import Progress, Summary, add_broker, add_lake, add_spark, carry_out, options_of
from broker.pipeline.lake.archive_run import ArchiveRun, bad_limit
from broker.pipeline.lake.lake import Lake
from broker.pipeline.options import local_path
from broker.pipeline.source.catalog import open_catalog
from broker.pipeline.source.options import given_options
from broker.pipeline.source.seal_stream import SealStream
from broker.pipeline.source.slot_source import SlotSource
from broker.pipeline.spark.tasks import run_tasks

CURSOR: Final = "archive"
CURSOR_MAX_BYTES: Final = 242  # a file name has at most 255 bytes, and the archive's files add a suffix
BATCH_BYTES: Final = 1 << 30
BATCH_SLOTS: Final = 10_000  # limits the lists of slots in the memory of the driver and the tasks


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The source and the target of an archive.

    Shapes: either `path`, a data folder, or `url`, http(s)://user:password@host:15672, is set; `taps` are names or
    globs, or () for all; setting `stop` ends the archive after the current batch.
    """

    spark: Callable[[], SparkSession]
    lake: Path | str
    path: str | None = None
    url: str | None = None
    vhost: str | None = None
    taps: tuple[str, ...] = ()
    cursor: str = CURSOR
    follow: bool = False
    every_s: float = 5.0
    max_bad: str = "0.1%"
    allow_gap: bool = False
    accept_restored: bool = False
    take_over: bool = False
    seal: bool = True
    batch_bytes: int = BATCH_BYTES
    stop: threading.Event | None = None


def add_archive(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "archive", "copy the messages of taps into a lake, each once")
    add_broker(command, "")
    add_lake(command, "the lake; created if missing")
    add_list(command, "--tap", "T", "a tap or a glob; default all", dest="taps")
    add_value(command, "--vhost", "V", "default all")
    add_value(command, "--cursor", "NAME", f"name of the archive and its cursors; default {CURSOR}", default=CURSOR)
    mode = command.add_mutually_exclusive_group()
    add_switch(mode, "--once", "end when everything that exists now is archived; the default")
    add_switch(mode, "--follow", "continue until it is stopped")
    add_value(command, "--every", "S", "seconds between batches; default 5", dest="every_s", type=float, default=5.0)
    add_value(command, "--max-bad", "N|P%", "fail if more messages of a batch cannot be read", default="0.1%")
    add_switch(command, "--allow-gap", "continue if messages were removed before they were archived")
    add_switch(
        command, "--accept-restored", "continue if a copy of the data folder was restored, and keep both histories"
    )
    add_switch(command, "--take-over", "continue after the slots that an archive with another cursor has archived")
    command.add_argument(
        "--no-seal", dest="seal", action="store_false", help="leave out messages not yet in slot files"
    )
    add_spark(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if (arguments.path is None) == (arguments.url is None):
        raise BadUsage("name the broker with either --path DIR or --url URL")
    if not 0 < arguments.every_s <= 86_400:
        raise BadUsage(f"--every {arguments.every_s:g} is not between 0 and 86,400 seconds")
    _check_cursor(arguments.cursor)
    with restated(LakeRefused, BadUsage, "--max-bad: "):
        bad_limit(arguments.max_bad)
    if arguments.path is not None:
        with restated((SourceRefused, OSError), BadUsage, "--path: "):
            found = local_path(arguments.path, SourceRefused).is_dir()
        if not found:
            raise BadUsage(f"--path {arguments.path!r} is not a folder")
    options = options_of(ArchiveOptions, arguments)
    return carry_out(arguments, "archive", lambda progress: run_archive(options, progress))


def _check_cursor(name: str) -> None:
    """Check that the lake and the broker accept a name for a cursor. Raises: BadUsage."""
    if "/" in name or name.startswith("."):
        raise BadUsage(f"--cursor {name!r} cannot be the name of a folder")
    if not name.isprintable() or not 1 <= len(name.encode()) <= CURSOR_MAX_BYTES:
        raise BadUsage(f"--cursor has 1 to {CURSOR_MAX_BYTES} bytes, all of them printable")


def run_archive(options: ArchiveOptions, progress: Progress) -> Summary:
    """Archive the messages, and return the summary. Raises: JobFailed, with the code GAP if messages are lost."""
    with faults_fail_the_job():
        catalog = open_catalog(options.path, options.url)
        catalog.view()  # fail before a lake is created if the broker cannot be reached
        with restated((LakeRefused, SourceRefused), JobRefused):
            _check_taps(options)
            lake = Lake(options.lake, create=True)
        choice: dict[str, Any] = {"vhost": options.vhost, "taps": options.taps, "max_bad": options.max_bad}
        run = ArchiveRun(lake, catalog, options.cursor, **choice, say=progress.say)
        try:
            run.begin(allow_gap=options.allow_gap, accept_restored=options.accept_restored, take_over=options.take_over)
            if options.seal and not options.follow:
                run.cursors.seal_now()
            progress.step("starting Spark")
            spark = options.spark()
            progress.step("archiving")
            _copy_batches(spark, options, run, progress)
        except Exception as error:
            if isinstance(fault_in(error), TapTaken):
                run.withdraw()
            raise
        finally:
            run.end()
            catalog.close()
    elapsed_s = progress.elapsed_s
    values = run.values() | {
        "elapsed_s": round(elapsed_s, 3),
        "rows_per_s": round(run.totals.rows / elapsed_s) if elapsed_s > 0 else 0,
    }
    return Summary(values, BAD_RECORDS if run.totals.bad else OK)


def _check_taps(options: ArchiveOptions) -> None:
    """Check that the named taps exist, because an archive cannot be resumed with other names. Raises: SourceRefused."""
    source = SlotSource(_slot_options(options))
    with closing(source.catalog):
        source.check_taps(source.catalog.view())


def _slot_options(options: ArchiveOptions) -> dict[str, str]:
    """Return the source options that select slots."""
    return given_options({"path": options.path, "url": options.url, "vhost": options.vhost, "tap": options.taps})


def _copy_batches(spark: SparkSession, options: ArchiveOptions, run: ArchiveRun, progress: Progress) -> None:
    """Copy batches until all slots that exist now are in the lake or, with `follow`, until stopped."""
    stop = options.stop or threading.Event()
    limits = {"maxBytesPerTrigger": str(options.batch_bytes), "maxSlotsPerTrigger": str(BATCH_SLOTS)}
    stream = SealStream({**_slot_options(options), **limits, "failOnGap": str(not options.allow_gap)})
    try:
        if not options.follow:
            stream.prepareForTriggerAvailableNow()
        with _stop_on_signal(stop, options.follow):
            copy_next = partial(run.copy_batch, stream, run.target(options.url), partial(run_tasks, spark))
            while not stop.is_set():
                began_s = time.monotonic()
                was_copied = copy_next()
                totals = run.release_slots()
                progress.add(slots=totals.slots - progress.slots, rows=totals.rows - progress.rows, lag=totals.lag)
                if options.follow:
                    run.maintain()
                    stop.wait(options.every_s - (time.monotonic() - began_s))
                elif not was_copied:
                    break
    finally:
        stream.stop()


@contextmanager
def _stop_on_signal(stop: threading.Event, follow: bool) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end an archive with `follow` after its current batch.

    Otherwise they could interrupt a call to the JVM.
    """
    if not follow or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
