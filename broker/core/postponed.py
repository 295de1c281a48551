"""A method that has to wait for an answer from elsewhere before it may have any effect.

In a cluster a method may first need a decision of all nodes, or needs messages or figures that another node has. A
standalone broker postpones a bind that gets a history, while that is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from broker.amqp.errors import ChannelError


class Postponed(Exception):
    """Says that a method has had no effect yet, and runs once more when an answer has arrived.

    A subclass asks for one kind of answer and keeps it, so that the next run of the method finds it among the
    postponements of its connection.
    Shapes: ``refusal`` says why there will never be an answer.
    """

    refusal = ""

    def check(self) -> None:
        """Raise ChannelError 406 when there will be no answer."""
        if self.refusal:
            raise ChannelError(406, f"the cluster's database refuses this: {self.refusal}")

    def begin(self, then: Callable[[], None]) -> None:
        """Ask, and call `then` once when the answer has arrived, in a later step of the loop."""
        raise NotImplementedError

    def take_along(self, other: Postponed) -> bool:
        """Ask for the answer of another postponement too, and return whether both can be asked together.

        The other one belongs to a method of the same connection that comes next.
        """
        return False


class Awaited(Postponed):
    """A postponement that one part of the broker answers."""

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
        """Let the method run again; with a reason it is refused."""
        self.refusal = refusal
        self._then()


def carry_out(act: Callable[[], object], done: Callable[[], None] = lambda: None) -> None:
    """Carry out something that is not a method, again after each postponement, and call `done` after the last run.

    Refused work is left undone.
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
