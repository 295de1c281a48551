"""Postponement of a method until an answer from elsewhere has arrived. In a cluster a method may first need a decision
of all nodes, or messages or figures that another node has. A standalone broker postpones a bind that replays a history
from disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from broker.amqp.errors import ChannelError

NODE_LOST: Final = "this node was lost to its cluster"  # the refusal of a change that may have been made or not


class Postponed(Exception):
    """Raised by a method that has had no effect yet; it runs again when an answer has arrived. A subclass asks for one
    kind of answer and keeps it, so that the next run of the method finds it among the postponements of its connection.
    Shapes: ``refusal`` is the reason why there will never be an answer.
    """

    refusal = ""

    def check(self) -> None:
        """Raise ChannelError 406 if there will be no answer."""
        if self.refusal:
            raise ChannelError(406, f"the cluster's database refuses this: {self.refusal}")

    def begin(self, then: Callable[[], None]) -> None:
        """Ask, and call `then` once the answer has arrived, in a later step of the loop."""
        raise NotImplementedError

    def combine_with(self, other: Postponed) -> bool:
        """Ask for the answer of another postponement too, and return whether both can be asked together. The other one
        belongs to a later method of the same connection.
        """
        return False


class Awaited(Postponed):
    """A postponement answered by one part of the broker."""

    def __init__(self, ask: Callable[[Any], None]) -> None:
        """`ask` passes the postponement to that part, which calls `answered` once."""
        super().__init__()
        self._ask = ask
        self._then: Callable[[], None]

    def begin(self, then: Callable[[], None]) -> None:
        """Ask."""
        self._then = then
        self._ask(self)

    def answered(self, refusal: str = "") -> None:
        """Let the method run again; with a reason, refuse it."""
        self.refusal = refusal
        self._then()


def carry_out(act: Callable[[], object], done: Callable[[], None] = lambda: None) -> None:
    """Run work that is not a method, again after each postponement, and call `done` after the last run. Refused work is
    abandoned.
    Invariant: as with a method, a postponed run had no effect, and a later run finds the remaining work.
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
