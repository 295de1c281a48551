"""The shared state of a run's processes, in memory: each client writes its own part."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from enum import IntEnum

# The low half of a cell counts the copies without the redelivered flag, the high half those with it.
FRESH_MASK = 0x0F
REDELIVERED_SHIFT = 4
MOST_COPIES = 15

SPAWN = multiprocessing.get_context("spawn")

# What a client counts. PUBLISHED includes RESENT; REFUSED is basic.nack, RETURNED is basic.return: there was no queue.
# DISTINCT are first copies, pairs of queue and flight; of an ALTERED one key or body differ from what was published.
Count = IntEnum("Count", "PUBLISHED RESENT CONFIRMED REFUSED RETURNED DELIVERED DISTINCT ALTERED", start=0)


class Failed(Exception):
    """A run failed; the text says why."""


class Ledger:
    """The shared memory of one run.

    Every cell has one writer: a flight has one publisher, a queue one consumer, a row of counts one client. So no lock
    is needed. A client receives the memory as an argument of its process, never through a pipe.
    Shapes: `checksums`, `attempts` (times published) and `confirmed` (0 or 1) have one item per flight.
    Cost: a byte for every queue and flight.
    """

    def __init__(self, rows: int, queues: int, clients: int, checksums: Sequence[int]) -> None:
        self.rows = rows
        self.clients = clients
        self.checksums = SPAWN.RawArray("I", checksums)
        self.attempts = SPAWN.RawArray("B", rows)
        self.confirmed = SPAWN.RawArray("B", rows)
        self._copies = SPAWN.RawArray("B", rows * queues)
        self._counts = SPAWN.RawArray("q", clients * len(Count))
        self._serving = SPAWN.RawValue("b", 0)
        self._stopping = SPAWN.RawValue("b", 0)
        self._generation = SPAWN.RawValue("q", 0)

    def counts(self, client: int) -> memoryview:
        """Return the counts of one client, indexed by Count."""
        return memoryview(self._counts).cast("B").cast("q")[client * len(Count) : (client + 1) * len(Count)]

    def total(self, count: Count) -> int:
        """Return one count summed over all clients."""
        return sum(self._counts[count :: len(Count)])

    def copies(self, queue: int) -> memoryview:
        """Return the cells of one queue, by row number."""
        return memoryview(self._copies).cast("B")[queue * self.rows : (queue + 1) * self.rows]

    @property
    def stopping(self) -> bool:
        """Return whether the run is over."""
        return bool(self._stopping.value)

    def stop(self) -> None:
        """Ask the clients to stop."""
        self._stopping.value = 1

    def broker_started(self) -> None:
        """Let the clients connect."""
        self._generation.value += 1
        self._serving.value = 1

    def broker_dying(self) -> None:
        """Announce to the clients, before the broker is killed, that they will lose it.

        They wait until the next broker listens before they connect: a client that repeatedly dials a free port of the
        ephemeral range may connect to itself, and the broker could not bind its port again.
        """
        self._serving.value = 0

    def await_broker(self) -> int | None:
        """Wait until there is a broker to connect to; return how many were started, or None when the run is over."""
        while not self.stopping:
            if self._serving.value:
                return int(self._generation.value)
            time.sleep(0.05)
        return None

    def lost(self, generation: int, error: object) -> None:
        """Raise Failed if a client lost its connection to a broker, of that generation, that should be alive."""
        if not self.stopping and self._serving.value and self._generation.value == generation:
            raise Failed(f"connection lost: {type(error).__name__}: {error}")
