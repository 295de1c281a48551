"""The errors that the pipeline reports, each in one line for the user, and the exit codes of jobs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

Kinds = type[Exception] | tuple[type[Exception], ...]

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
BAD_RECORDS: Final = 3  # done, except for unreadable records
GAP: Final = 4  # messages to read are lost
NO_JAVA: Final = 5


class JobFailed(Exception):
    """A job cannot continue; the text is for the user: one line, or the screen that lists the supported Java versions.

    Shapes: `code` is the job's exit code; a subclass has its own, so that an exception raised in a worker sets it, too.
    """

    code = ERROR

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code


class JobRefused(JobFailed):
    """A job cannot do what its arguments request."""

    code = USAGE


class PipelineFault(JobFailed):
    """An error that a user can understand and fix, also where no job runs; the text is one line."""


class SourceRefused(PipelineFault):
    """A source cannot provide what was requested: a wrong option, store or checkpoint, no broker, no rights."""


class SlotGap(PipelineFault):
    """Messages that the reader has not received are lost."""

    code = GAP


class SlotMissing(SlotGap):
    """A slot file was removed before it was read."""


class SlotDamaged(PipelineFault):
    """A slot file, or rows of it, differ from what was sealed."""


class SinkRefused(PipelineFault):
    """Rows cannot be published as requested: a wrong option, column or address."""


class PublishFailed(PipelineFault):
    """Publishing cannot continue, and a retry would not help."""


class ServerRefused(PipelineFault):
    """The Spark server of this user cannot be used or started."""

    code = USAGE


class LakeRefused(PipelineFault):
    """A lake cannot do what was requested, or is not a lake."""


class TapTaken(LakeRefused):
    """Another archive writes a tap into the lake."""


class SimulationFailed(PipelineFault):
    """A simulated overlay did not do what overlays promise."""


OF_WORKERS: Final = ("PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_PATH")
_SAID: Final = re.compile(rf"{re.escape(__name__)}\.(\w+): ([^\n]*)")


@contextmanager
def faults_fail_the_job() -> Iterator[None]:
    """Raise faults of the pipeline that Spark wraps as themselves."""
    try:
        yield
    except Exception as error:
        fault = fault_in(error)
        if fault is None or fault is error:
            raise
        raise fault from error


@contextmanager
def restated(kinds: Kinds, into: Callable[[str], Exception], before: str = "") -> Iterator[None]:
    """Raise exceptions of some kinds as another one, with their line after `before`."""
    try:
        yield
    except kinds as error:
        raise into(f"{before}{error}") from None


def fault_in(error: BaseException) -> JobFailed | None:
    """Return the fault that an exception is, or the failure that one of Spark's reports; None if there is none."""
    if isinstance(error, PipelineFault):
        return error
    for name, line in _SAID.findall(str(error)):
        kind = globals().get(name)
        if isinstance(kind, type) and issubclass(kind, JobFailed):
            return kind(line)
    return None


@contextmanager
def said_plainly() -> Iterator[None]:
    """Let a fault inside reach the user of Spark without the worker's stack trace before it.

    Spark's worker formats the exception that it catches, so the stack trace must be switched off before that.
    """
    try:
        yield
    except PipelineFault:
        if not os.environ.keys().isdisjoint(OF_WORKERS):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
