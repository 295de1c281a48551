"""Postponement of a method until an answer from elsewhere has arrived. In a cluster, a method may need the agreement of
all nodes, or messages or counts of another node. A standalone broker postpones a bind that replays a history from disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from broker.amqp.errors import ChannelError

NODE_LOST: Final = "this node was lost to its cluster"  # a refusal: the change may or may not have been made


class Postponed(Exception):
    """Raised by a method that has had no effect yet and has to run again when an answer has arrived. A subclass
    requests one kind of answer and stores it: the next run of the method finds it among the postponements of its
    connection. Shapes: ``refusal`` is the reason why there will be no answer, or empty.
    """

    refusal = ""

    def check(self) -> None:
        """Raise ChannelError 406 if there will be no answer."""
        if self.refusal:
            raise ChannelError(406, f"the cluster's database refuses this: {self.refusal}")

    def begin(self, then: Callable[[], None]) -> None:
        """Request the answer, and call `then` later, when it has arrived."""
        raise NotImplementedError

    def combine_with(self, other: Postponed) -> bool:
        """Also request the answer that a later method of the connection needs; return whether that is possible."""
        return False


class Awaited(Postponed):
    """A postponement answered by one part of the broker."""

    def __init__(self, ask: Callable[[Any], None]) -> None:
        """`ask` passes the postponement to the part of the broker, which calls `answered` once."""
        super().__init__()
        self._ask = ask
        self._then: Callable[[], None]

    def begin(self, then: Callable[[], None]) -> None:
        self._then = then
        self._ask(self)

    def answered(self, refusal: str = "") -> None:
        """Run the method again, or refuse it with a reason."""
        self.refusal = refusal
        self._then()


def carry_out(act: Callable[[], object], done: Callable[[], None] = lambda: None) -> None:
    """Run work that is not a method; run it again after each postponement, and call `done` after the last run or when
    the work is refused.
    Invariant: as with a method, a run that was postponed had no effect.
    """
    try:
        act()
    except Postponed as postponed:
        postponed.begin(partial(_carry_on, postponed, act, done))
    else:
        done()


def _carry_on(postponed: Postponed, act: Callable[[], object], done: Callable[[], None]) -> None:
    if postponed.refusal:
        done()
    else:
        carry_out(act, done)
