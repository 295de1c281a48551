"""The garbage collector of the broker's process: what stays for long is set aside, where it is not looked at."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.server import BrokerServer

__all__ = ["CLOSED_MAX", "GROWTH", "Collector"]

INTERVAL_S: Final = 1.0
GROWTH: Final = 10_000  # so many bindings and queues more, and they are set aside
CONNECTION: Final = 10  # a connection and its channel count as so many: it takes some forty objects
YOUNG: Final = 5000  # so many new objects, and the young are looked at: a turn's messages are mostly gone by then
ROUNDS: Final = 4  # so many looks at the young, and at those that survived one
NEVER: Final = 1 << 30
IDLE_TURNS: Final = 20  # of the loop in a second: heartbeats, and little else
IDLE_S: Final = 30  # so many such seconds in a row are the time to look at everything
OLD: Final = (
    20  # so many times the young have grown old: 400,000 objects more than there were, or as many gone unnoticed
)
CLOSED_MAX: Final = 1000  # so many connections closed that were there at a look, and everything is looked at once


class Collector:
    """Sets aside what the broker has, when it has grown.

    CPython's collector now and then looks at every object there is, in the middle of whatever runs; with 100,000
    bindings or 5,000 connections that takes longer than anybody should wait. What is set aside is not looked at, and
    still freed when nothing refers to it. Connections are circles, which the collector alone finds, and none that is
    old, set aside or not, is found by its looks at the young; channels and queues are such circles too. Everything is
    looked at once when too many connections that were there at a look have gone, when there is much less than there
    was, when very much has grown old, and when the broker has had nothing to do for a while: then nobody waits for it.
    Source: the gc module's freeze(), from Instagram's web servers.
    """

    def __init__(self, broker: BrokerServer, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self._alarm: asyncio.TimerHandle | None = None
        self._size = 0
        self._thresholds = gc.get_threshold()
        self._turns = 0
        self._idle_s = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Has nothing collected for a while: what a recovery makes stays, and is set aside unseen.

        The first client would wait for a look, and the megabyte that it finds after a start is found at leisure.
        """
        gc.disable()
        try:
            yield
            gc.freeze()  # all of it is young, and would be looked at as soon as anything is made
        finally:
            gc.enable()

    def start(self) -> None:
        """Set aside what the broker began with, and looks once a second from then on."""
        gc.set_threshold(YOUNG, ROUNDS, NEVER)
        gc.freeze()
        self._size = self._now
        self._wait()

    def close(self) -> None:
        """End the looks, and leave the collector as it was."""
        gc.set_threshold(*self._thresholds)
        if self._alarm is not None:
            self._alarm.cancel()
        gc.unfreeze()

    def look(self) -> None:
        """Set aside what the broker has if it has grown, or collects what has gone."""
        turns = self._broker.turn.count
        self._idle_s = self._idle_s + 1 if turns - self._turns < IDLE_TURNS else 0
        self._turns = turns
        grown = self._now - self._size
        gone = self._broker.listener.gone >= CLOSED_MAX or grown <= -GROWTH
        if gone or self._idle_s == IDLE_S or gc.get_count()[2] >= OLD:
            gc.unfreeze()
            gc.collect()
            self._set_aside()
            self._broker.listener.count_gone()
        elif grown >= GROWTH:
            self._set_aside()
        self._broker.listener.count_more()

    def _wait(self) -> None:
        self._alarm = self._loop.call_later(INTERVAL_S, self._ring)

    def _ring(self) -> None:
        self.look()
        self._wait()

    def _set_aside(self) -> None:
        gc.collect(1)  # what is young and gone already is not worth keeping
        gc.freeze()
        self._size = self._now

    @property
    def _now(self) -> int:
        grown = sum(vhost.bindings.count + len(vhost.queues) for vhost in self._broker.vhosts.values())
        return grown + CONNECTION * len(self._broker.listener.transports)
