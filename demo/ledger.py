"""The shared state of a run's processes, in memory: each client writes its own part."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing.context import SpawnContext

# The low half of a cell counts the copies without the redelivered flag, the high half those with it.
FRESH_MASK = 0x0F
REDELIVERED_SHIFT = 4
MOST_COPIES = 15

SPAWN: SpawnContext = multiprocessing.get_context("spawn")


class Count(IntEnum):
    """The counts of a client."""

    PUBLISHED = 0  # basic.publish sent, including repeated ones
    RESENT = 1
    CONFIRMED = 2
    REFUSED = 3  # basic.nack by the broker
    RETURNED = 4  # basic.return: no queue
    DELIVERED = 5
    DISTINCT = 6  # first copies: (queue, flight) pairs seen
    ALTERED = 7  # key or body differ from what was published
    CONNECTED = 8


class _Control(IntEnum):
    SERVING = 0
    STOPPING = 1
    GENERATION = 2


@dataclass(frozen=True, slots=True)
class Address:
    """The broker's address, and the clients' credentials."""

    host: str
    port: int
    user: str
    password: str
    vhost: str


class ConnectionUnexpectedlyLost(Exception):
    """A client lost its connection although the broker was not killed."""


class Ledger:
    """The shared memory of one run.

    Every cell has one writer: a flight has one publisher, a queue one consumer, a row of counts one client. So no lock
    is needed. A client receives the memory as an argument of its process, never through a pipe.
    Cost: a byte for every queue and flight.
    """

    def __init__(self, rows: int, queues: int, clients: int, checksums: list[int]) -> None:
        self.rows = rows
        self.queues = queues
        self.clients = clients
        self._control = SPAWN.RawArray("q", len(_Control))
        self._counts = SPAWN.RawArray("q", clients * len(Count))
        self._checksums = SPAWN.RawArray("I", checksums)
        self._attempts = SPAWN.RawArray("B", rows)
        self._confirmed = SPAWN.RawArray("B", rows)
        self._copies = SPAWN.RawArray("B", rows * queues)

    def counts(self, client: int) -> memoryview:
        """Return the counts of one client, indexed by Count."""
        return memoryview(self._counts).cast("B").cast("q")[client * len(Count) : (client + 1) * len(Count)]

    def total(self, count: Count) -> int:
        """Return one count summed over all clients."""
        return sum(self._counts[client * len(Count) + count] for client in range(self.clients))

    @property
    def attempts(self) -> memoryview:
        """Return how often each flight was published."""
        return memoryview(self._attempts).cast("B")

    @property
    def confirmed(self) -> memoryview:
        """Return 1 for each flight that was confirmed."""
        return memoryview(self._confirmed).cast("B")

    @property
    def checksums(self) -> memoryview:
        """Return the checksum of each flight's key and body."""
        return memoryview(self._checksums).cast("B").cast("I")

    def copies(self, queue: int) -> memoryview:
        """Return the cells of one queue, by row number."""
        return memoryview(self._copies).cast("B")[queue * self.rows : (queue + 1) * self.rows]

    @property
    def stopping(self) -> bool:
        """Return whether the run is over."""
        return bool(self._control[_Control.STOPPING])

    def stop(self) -> None:
        """Ask the clients to stop."""
        self._control[_Control.STOPPING] = 1

    @property
    def generation(self) -> int:
        """Return how many brokers have been started."""
        return int(self._control[_Control.GENERATION])

    def broker_started(self) -> None:
        """Let the clients connect."""
        self._control[_Control.GENERATION] += 1
        self._control[_Control.SERVING] = 1

    def broker_dying(self) -> None:
        """Announce to the clients, before the broker is killed, that they will lose it.

        They wait until the next broker listens before they connect: a client that repeatedly dials a free port of the
        ephemeral range may connect to itself, and the broker could not bind its port again.
        """
        self._control[_Control.SERVING] = 0

    def await_broker(self) -> int | None:
        """Wait until there is a broker to connect to; return its generation, or None when the run is over."""
        while not self.stopping:
            if self._control[_Control.SERVING]:
                return self.generation
            time.sleep(0.05)
        return None

    def lost(self, generation: int, error: object) -> None:
        """Record that a client lost its connection to the broker of that generation.

        Raises: ConnectionUnexpectedlyLost when that broker should be alive.
        """
        if not self.stopping and self._control[_Control.SERVING] and self.generation == generation:
            raise ConnectionUnexpectedlyLost(f"{type(error).__name__}: {error}")
