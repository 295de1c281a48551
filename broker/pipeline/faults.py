"""What the sources refuse, each in one line for the user."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = [
    "LakeRefused",
    "PipelineFault",
    "PublishFailed",
    "ServerRefused",
    "SinkRefused",
    "SlotDamaged",
    "SlotGap",
    "SlotMissing",
    "SourceRefused",
    "fault_in",
    "said_plainly",
]


class PipelineFault(Exception):
    """Something that a user can understand and mend; the text is one line."""


class SourceRefused(PipelineFault):
    """What was asked for cannot be had: a wrong option, store or checkpoint, no broker, no rights."""


class SlotGap(PipelineFault):
    """Messages that the reader has not had are gone."""


class SlotMissing(SlotGap):
    """A slot file that was to be read went before it was."""


class SlotDamaged(PipelineFault):
    """A slot file, or rows of it, that are not what was sealed."""


class SinkRefused(PipelineFault):
    """Rows cannot be published as they were asked to: a wrong option, column or address."""


class PublishFailed(PipelineFault):
    """Publishing cannot go on, and trying again would not help."""


class ServerRefused(PipelineFault):
    """The Spark server of this user cannot be used or started."""


class LakeRefused(PipelineFault):
    """A lake cannot do what it was asked for, or is none."""


_KINDS: Final = {
    kind.__name__: kind
    for kind in (
        PipelineFault, SourceRefused, SlotGap, SlotMissing, SlotDamaged, SinkRefused, PublishFailed, LakeRefused,
        ServerRefused,
    )
}  # fmt: skip
_SAID: Final = re.compile(rf"{re.escape(__name__)}\.({'|'.join(_KINDS)}): ([^\n]*)")


def fault_in(error: BaseException) -> PipelineFault | None:
    """Return the fault that an exception is, or that one of Spark's tells of; None when there is none in it."""
    if isinstance(error, PipelineFault):
        return error
    found = _SAID.search(str(error))
    return _KINDS[found[1]](found[2]) if found else None


@contextmanager
def said_plainly() -> Iterator[None]:
    """Let a fault inside reach the user of Spark without the stack of the worker in front of it.

    Spark's worker sends what it caught and ends; the last chance to say how it should write that is before it catches.
    """
    try:
        yield
    except PipelineFault:
        if _in_worker():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _in_worker() -> bool:
    return any(name in os.environ for name in ("PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_PATH"))
