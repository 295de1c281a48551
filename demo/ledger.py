"""The state in memory that a run's processes share: each client writes its own part, through an outbox or an inbox."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from itertools import takewhile
from pathlib import Path

from demo.flights import checksum, read_flights

Flight = tuple[int, str, bytes]  # row number, routing key, body
SPAWN = multiprocessing.get_context("spawn")

# What a client counts. PUBLISHED includes RESENT; REFUSED is basic.nack, RETURNED is basic.return: there was no queue.
# DISTINCT counts first copies of a flight in a queue, ALTERED copies whose key or body differs from the published one.
Count = IntEnum("Count", "PUBLISHED RESENT CONFIRMED REFUSED RETURNED DELIVERED DISTINCT ALTERED CONNECTED", start=0)


class Failed(Exception):
    """A run failed; the text says why."""


class Ledger:
    """The shared memory of one run.

    Every cell has one writer: a flight has one publisher, a queue one consumer, a row of counts one client. So it needs
    no lock. A client receives the memory as an argument of its process, never through a pipe.
    Shapes: `checksums`, `attempts` (times published) and `confirmed` (0 or 1) have one item per flight.
    Cost: two bytes for every queue and flight.
    """

    def __init__(self, rows: int, queues: int, clients: int, checksums: Sequence[int]) -> None:
        self.rows = rows
        self.clients = clients
        self.checksums = SPAWN.RawArray("I", checksums)
        self.attempts = SPAWN.RawArray("B", rows)
        self.confirmed = SPAWN.RawArray("B", rows)
        self._copies = [SPAWN.RawArray("B", rows * queues) for _ in (False, True)]
        self._counts = SPAWN.RawArray("q", clients * len(Count))
        self._serving = SPAWN.RawValue("b", 0)
        self._stopping = SPAWN.RawValue("b", 0)
        self._generation = SPAWN.RawValue("q", 0)

    def counts(self, client: int) -> memoryview:
        """Return the counts of one client, indexed by Count."""
        return memoryview(self._counts).cast("B").cast("q")[client * len(Count) : (client + 1) * len(Count)]

    def total(self, count: Count) -> int:
        return sum(self._counts[count :: len(Count)])

    def copies(self, queue: int, redelivered: bool) -> memoryview:
        """Return how often a queue delivered each flight, with the redelivered flag or without; 255 is 255 or more."""
        return memoryview(self._copies[redelivered]).cast("B")[queue * self.rows : (queue + 1) * self.rows]

    @property
    def stopping(self) -> bool:
        return bool(self._stopping.value)

    def stop(self) -> None:
        self._stopping.value = 1

    def broker_started(self) -> None:
        """Let the clients connect."""
        self._generation.value += 1
        self._serving.value = 1

    def broker_dying(self) -> None:
        """Announce to the clients, before the broker is killed, that they will lose their connections.

        They connect again only when the next broker listens: a client that repeatedly dials a free port of the
        ephemeral range may connect to itself, and the broker could not bind its port again.
        """
        self._serving.value = 0

    def await_broker(self) -> int | None:
        """Wait until there is a broker; return its generation, or None when the run is over."""
        while not self.stopping:
            if self._serving.value:
                return int(self._generation.value)
            time.sleep(0.05)
        return None

    def lost(self, generation: int, error: object) -> None:
        """Raise Failed if a client lost its connection to a broker of this generation that should be alive."""
        if not self.stopping and self._serving.value and self._generation.value == generation:
            raise Failed(f"connection lost: {type(error).__name__}: {error}")


class Outbox:
    """The flights of one publisher: those to resend, the unsent ones in order, and the unconfirmed ones.

    Invariant: the delivery tags of the unconfirmed flights ascend, because a channel numbers its publishes one by one.
    """

    def __init__(self, ledger: Ledger, client: int, flights: Path, first: int, end: int) -> None:
        self._rest = read_flights(flights, first, end)
        self._unsettled = end - first
        self._again: deque[Flight] = deque()
        self._unconfirmed: dict[int, Flight] = {}
        self._last_tag = 0
        self._ledger = ledger
        self._counts = ledger.counts(client)

    def __len__(self) -> int:
        return len(self._unconfirmed)

    @property
    def finished(self) -> bool:
        return not self._unsettled

    def window(self, limit: int) -> int:
        """Return the limit of unconfirmed messages: lower in a small run, so that the kill happens during it."""
        return max(10, min(limit, self._ledger.rows // 50))

    def connected(self) -> None:
        """Start with a new channel: resend the unconfirmed flights of the last one first, in their order."""
        self._again.extendleft(reversed(self._unconfirmed.values()))
        self._unconfirmed.clear()
        self._last_tag = 0
        self._counts[Count.CONNECTED] += 1

    def take(self) -> tuple[int, Flight] | None:
        """Return the delivery tag of the next publish and its flight, None when there are no more."""
        flight = self._again.popleft() if self._again else next(self._rest, None)
        if flight is None:
            return None
        attempts = self._ledger.attempts[flight[0]]
        self._counts[Count.RESENT] += attempts > 0
        self._ledger.attempts[flight[0]] = min(attempts + 1, 255)
        self._counts[Count.PUBLISHED] += 1
        self._last_tag += 1
        self._unconfirmed[self._last_tag] = flight
        return self._last_tag, flight

    def confirmed(self, tag: int, multiple: bool = False) -> None:
        """Record that the broker has confirmed the flight of a tag, or all up to it."""
        for row, _, _ in self._settle(tag, multiple):
            self._ledger.confirmed[row] = 1
            self._counts[Count.CONFIRMED] += 1
            self._unsettled -= 1

    def refused(self, tag: int, multiple: bool = False) -> None:
        """Queue the flights that the broker nacked for another publish."""
        flights = self._settle(tag, multiple)
        self._counts[Count.REFUSED] += len(flights)
        self._again.extend(flights)

    def returned(self) -> None:
        self._counts[Count.RETURNED] += 1

    def _settle(self, tag: int, multiple: bool) -> list[Flight]:
        tags = list(takewhile(lambda sent: sent <= tag, self._unconfirmed)) if multiple else [tag]
        return [self._unconfirmed.pop(sent) for sent in tags if sent in self._unconfirmed]


class Inbox:
    """The queues of one consumer, by index in the plan and name, and its unacked deliveries.

    One channel carries all its queues, so one `basic.ack` with multiple settles them all. The acked tag is that of the
    last delivery: deliveries of a channel are processed in the order of their tags.
    """

    def __init__(self, ledger: Ledger, client: int, queues: Sequence[tuple[int, str]], prefetch: int) -> None:
        self.queues = queues
        self.prefetch = prefetch
        self.unacked = 0
        self.last_tag = 0
        self._copies = {index: [ledger.copies(index, flag) for flag in (False, True)] for index, _ in queues}
        self.ledger = ledger
        self._counts = ledger.counts(client)

    def connected(self) -> None:
        """Start with a new channel: unacked messages will be redelivered."""
        self.unacked = self.last_tag = 0
        self._counts[Count.CONNECTED] += 1

    def record(self, queue: int, tag: int, redelivered: bool, message_id: str | None, key: str, body: bytes) -> bool:
        """Record one delivery; return whether it is time to ack."""
        counts, ledger = self._counts, self.ledger
        counts[Count.DELIVERED] += 1
        row = int(message_id) if message_id and message_id.isdecimal() else ledger.rows
        if row >= ledger.rows or ledger.checksums[row] != checksum(key.encode(), body):
            counts[Count.ALTERED] += 1
        else:
            copies = self._copies[queue]
            counts[Count.DISTINCT] += not (copies[0][row] or copies[1][row])
            copies[redelivered][row] = min(copies[redelivered][row] + 1, 255)
        self.last_tag = tag
        self.unacked += 1
        return self.unacked >= (self.prefetch // 2 or 1)
