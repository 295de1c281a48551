"""The errors of the pipeline, whose texts are for the user, and the exit codes of jobs."""

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
BAD_RECORDS: Final = 3  # the job is done, but some records could not be read or published
GAP: Final = 4  # messages were lost before they were read
NO_JAVA: Final = 5


class JobFailed(Exception):
    """A job cannot continue. The text is for the user, and `code` is the job's exit code."""

    code = ERROR

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code


class JobRefused(JobFailed):
    """A job cannot do what its arguments request."""

    code = USAGE


class PipelineFault(JobFailed):
    """An error of the pipeline, raised with or without a job; the text is one line for the user."""


class SourceRefused(PipelineFault):
    """A source cannot provide what was requested."""


class SlotGap(PipelineFault):
    """Messages were lost before the reader received them."""

    code = GAP


class SlotMissing(SlotGap):
    """A slot file that should be read no longer exists."""


class SlotDamaged(PipelineFault):
    """A slot file is damaged, or some of its rows cannot be read."""


class SinkRefused(PipelineFault):
    """Rows cannot be published as requested."""


class PublishFailed(PipelineFault):
    """Publishing cannot continue."""


class ServerRefused(PipelineFault):
    """The Spark server of this user cannot be used or started."""

    code = USAGE


class LakeRefused(PipelineFault):
    """A lake cannot do what was requested, or is not a lake."""


class TapTaken(LakeRefused):
    """Another archive has already written the tap into the lake."""


class SimulationFailed(PipelineFault):
    """A simulated overlay violated a guarantee of overlays."""


WORKER_VARIABLES: Final = ("PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_PATH")
_FAULT_LINE: Final = re.compile(rf"{re.escape(__name__)}\.(\w+): ([^\n]*)")


@contextmanager
def faults_fail_the_job() -> Iterator[None]:
    """Raise a fault of the pipeline instead of the exception in which Spark reports it."""
    try:
        yield
    except Exception as error:
        fault = fault_in(error)
        if fault is None or fault is error:
            raise
        raise fault from error


@contextmanager
def restated(kinds: Kinds, into: Callable[[str], Exception], before: str = "") -> Iterator[None]:
    """Replace exceptions of some types by `into`, whose text is `before` and the text of the original exception."""
    try:
        yield
    except kinds as error:
        raise into(f"{before}{error}") from None


def fault_in(error: BaseException) -> JobFailed | None:
    """Return the exception if it is a fault of the pipeline, else the fault that its text quotes, else None."""
    if isinstance(error, PipelineFault):
        return error
    for name, line in _FAULT_LINE.findall(str(error)):
        kind = globals().get(name)
        if isinstance(kind, type) and issubclass(kind, JobFailed):
            return kind(line)
    return None


@contextmanager
def without_worker_trace() -> Iterator[None]:
    """Suppress the worker's stack trace when a fault leaves this context, so that Spark's user sees only the fault.

    Spark's worker formats the exception when it catches it, so the trace must be switched off before that.
    """
    try:
        yield
    except PipelineFault:
        if not os.environ.keys().isdisjoint(WORKER_VARIABLES):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
