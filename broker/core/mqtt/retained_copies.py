"""Copies of retained messages for the new subscriptions of one client, a portion at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Final

from broker.core.message.message import Envelope, Message
from broker.core.mqtt.retained import RetainedMessages
from broker.core.queue.kinds import RETAINED_NAME
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost

PORTION: Final = 64  # messages copied at once
WAITING_MAX: Final = 512  # length of the session's queue from which on the next portion waits
WAIT_MS: Final = 1000  # at most, until the queue is checked again
VISITS_MAX: Final = 4096  # nodes of the index visited for one portion
VISITS_PER_UNIT: Final = 16  # ... in a unit of the turn's share
COPY_SHARE: Final = 4  # units that one copy takes


class RetainedCopies:
    """Put copies of the retained messages that filters match into the queues of one session. A copy has the exchange
    `amq.retained`, which marks its delivery. It is delivered, acknowledged, stored and expired like other messages of
    the queue, and follows earlier publishes on its topic.
    Cost: the session's queue gets `PORTION` messages at once, when fewer than `WAITING_MAX` wait there.
    """

    def __init__(self, vhost: Vhost, retained: RetainedMessages) -> None:
        self._vhost = vhost
        self._retained = retained
        self._searches: deque[tuple[str, Iterator[str | None]]] = deque()
        self._reading = False
        self._closed = False

    def begin(self, queue_name: str, binding_key: str) -> None:
        """Copy the messages that a binding key matches, after all earlier requests."""
        self._searches.append((queue_name, self._retained.search(binding_key)))
        self.go_on()

    def close(self) -> None:
        """Stop copying."""
        self._closed = True
        self._searches.clear()
        self._vhost.ports.deadlines.cancel(self)

    def output_taken(self) -> bool:
        """Continue in the next turn, because messages have left the queue, and return whether there is more to copy."""
        if self._searches and not self._reading:
            ports = self._vhost.ports
            ports.deadlines.set(self, ports.clock.now_ms, self.go_on)
        return self._reading or len(self._searches) > 0

    def go_on(self) -> None:
        """Copy portions, within the turn's share and the room of the queue."""
        ports = self._vhost.ports
        deadlines = ports.deadlines
        while self._searches and not self._reading and not self._closed:
            name, search = self._searches[0]
            queue = self._vhost.queues.get(name)
            if queue is None:
                self._searches.popleft()
                continue
            if queue.ready >= WAITING_MAX:
                deadlines.set(self, ports.clock.now_ms + WAIT_MS, self.go_on)
                return
            if deadlines.left <= 0:
                deadlines.set(self, ports.clock.now_ms, self.go_on)
                return
            keys = self._next_keys(search)
            self._reading = True
            self._retained.read(keys, partial(self._copy, queue), self._was_read)

    def _next_keys(self, search: Iterator[str | None]) -> list[str]:
        """Return the next keys of the first search, which ends with the last of them."""
        keys: list[str] = []
        visits = 0
        more = False
        for key in search:
            visits += 1
            if key is not None:
                keys.append(key)
            if len(keys) >= PORTION or visits >= VISITS_MAX:
                more = True
                break
        if not more:
            self._searches.popleft()
        self._vhost.ports.deadlines.spend(1 + COPY_SHARE * len(keys) + visits // VISITS_PER_UNIT)
        return keys

    def _copy(self, queue: Queue, message: Message) -> None:
        if not self._closed and not queue.deleted:
            envelope = Envelope(RETAINED_NAME, message.envelope.key)
            facts, timestamp_ms = message.facts, message.timestamp_ms
            copy = Message(envelope, message.header, message.body, message.charge, facts, timestamp_ms)
            self._vhost.poster.post(copy, (queue,))

    def _was_read(self) -> None:
        self._reading = False
        self.output_taken()
