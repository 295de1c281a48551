"""Creates and deletes one kind of object repeatedly: the scripts of a worker, and the quota of its cycles."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Final

from broker.perf import wire
from broker.perf.conversation import Ask, Script, closing, opening
from broker.perf.histogram import Histogram
from broker.perf.interruption import Interruption
from broker.perf.peer import Address

KINDS: Final = ("connections", "channels", "queues", "bindings", "consumers")

_EXCHANGE: Final = "amq.topic"
_ON_A_QUEUE: Final = frozenset({"bindings", "consumers"})
_BASIC_CANCEL_OK: Final = (60, 31)


@dataclass(slots=True)
class CycleQuota:
    """The cycles that may still begin, and the times of those that completed."""

    left: int | None
    until_s: float
    interruption: Interruption
    made: Histogram
    undone: Histogram
    cycles: int = 0

    def take(self) -> bool:
        """Return whether another cycle may begin, and count it."""
        if self.interruption.asked or time.monotonic() >= self.until_s or self.left == 0:
            return False
        if self.left is not None:
            self.left -= 1
        return True

    def cycle(self, make: Script, undo: Script) -> Script:
        """Run both scripts and record their times."""
        begun_ns = time.monotonic_ns()
        yield from make
        made_ns = time.monotonic_ns()
        yield from undo
        self.made.record(made_ns - begun_ns)
        self.undone.record(time.monotonic_ns() - made_ns)
        self.cycles += 1


class CycleWorker:
    """Creates and deletes one kind of object on a connection; a queue that this needs belongs to the worker alone."""

    def __init__(self, kind: str, address: Address, durable: bool) -> None:
        self._kind = kind
        self._address = address
        self._durable = durable
        self._queue = f"slotmq-perf-churn-{secrets.token_hex(8)}"
        self._number = 0

    def begin(self) -> Script:
        """Open the connection and create what the first cycle requires."""
        yield from opening(self._address, channels=1)
        if self._kind in _ON_A_QUEUE:
            yield from _said(self._declare())

    def cycles(self, quota: CycleQuota) -> Script:
        """Create and delete until the quota is used up."""
        while quota.take():
            make, undo = self._pair()
            yield from quota.cycle(_said(make), _said(undo))

    def connection(self, quota: CycleQuota) -> Script:
        """Open a connection and close it: one cycle."""
        yield from quota.cycle(opening(self._address), closing())

    def end(self) -> Script:
        """Delete what `begin` created, and close the connection."""
        if self._kind in _ON_A_QUEUE:
            yield wire.queue_delete(1, self._queue), wire.QUEUE_DELETE_OK
        yield from closing()

    def _pair(self) -> tuple[Ask, Ask]:
        self._number += 1
        match self._kind:
            case "channels":
                return (
                    (wire.method(2, wire.CHANNEL_OPEN, b"\x00"), wire.CHANNEL_OPEN_OK),
                    (wire.close(2, wire.CHANNEL_CLOSE), wire.CHANNEL_CLOSE_OK),
                )
            case "queues":
                return self._declare(), (wire.queue_delete(1, self._queue), wire.QUEUE_DELETE_OK)
            case "bindings":
                key = f"perf.{self._number}.*.#"  # always new keys, like those of short-lived clients
                return (
                    (wire.queue_bind(1, self._queue, _EXCHANGE, key), wire.QUEUE_BIND_OK),
                    (wire.queue_unbind(1, self._queue, _EXCHANGE, key), wire.QUEUE_UNBIND_OK),
                )
        tag = wire.short_string("churn")
        return (
            (wire.basic_consume(1, self._queue, "churn", auto_ack=True), wire.BASIC_CONSUME_OK),
            (wire.method(1, wire.BASIC_CANCEL, tag + b"\x00"), _BASIC_CANCEL_OK),
        )

    def _declare(self) -> Ask:
        return wire.queue_declare(1, self._queue, durable=self._durable), wire.QUEUE_DECLARE_OK


def _said(ask: Ask) -> Script:
    yield ask
