"""Clients that continue whatever happens to their broker: a publisher with a steady rate, and subscribers that keep
count.

Each runs in a thread of its own on a raw socket, and connects again when its broker was killed. They read and write
messages without pamqp, so that they cost little beside six brokers.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.deadline import DEADLINE_S, PAUSE_S
from tests.raw_client import PeerGone, RawClient, Received, publish_frames

EXCHANGE: Final = "orders"
STEP_S: Final = 0.005  # between two slices of the publisher
PREFETCH: Final = 200
PERSISTENT: Final = commands.Basic.Properties(delivery_mode=2)
BODY_BYTES: Final = 100
KEYS: Final = 14
READ_BYTES: Final = 1 << 16
HEAD: Final = struct.Struct(">BHI")  # type, channel, size of the payload; an octet follows the payload
METHOD: Final = struct.Struct(">HH")
DELIVER: Final = (60, 60)
TAG: Final = struct.Struct(">Q?")  # after the consumer tag: delivery tag, redelivered


class SteadyClient(threading.Thread):
    """Holds a conversation, and begins a new one when the connection breaks.

    Invariant: anything else that goes wrong is raised by `stop`.
    """

    def __init__(self, address: Callable[[], BrokerAddress]) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._client: RawClient | None = None
        self.ends = threading.Event()
        self.connections = 0
        self._fault: BaseException | None = None

    def run(self) -> None:
        """Talk until told to stop."""
        try:
            while not self.ends.is_set():
                with suppress(PeerGone, OSError):
                    self._connect()
                self.ends.wait(PAUSE_S)
        except BaseException as fault:  # noqa: BLE001 - raised by `stop`
            self._fault = fault

    def _connect(self) -> None:
        address = self._address()
        with RawClient(address.host, address.port) as client:
            self._client = client
            client.open()
            client.open_channel(1)
            declare = commands.Exchange.Declare(exchange=EXCHANGE, exchange_type="topic", durable=True)
            client.call(1, declare, commands.Exchange.DeclareOk)
            self.connections += 1
            self.talk(client)

    @abstractmethod
    def talk(self, client: RawClient) -> None:
        """Talk on an open channel until `ends` is set. Raises: PeerGone, OSError."""

    def hang_up(self) -> None:
        """End at once, and raise what went wrong."""
        self.ends.set()
        if self._client is not None:
            with suppress(OSError):
                self._client.socket.shutdown(socket.SHUT_RDWR)
        if self.ident is not None:
            self.join(DEADLINE_S)
            assert not self.is_alive(), "the client does not end"
        if self._fault is not None:
            raise self._fault


class SteadyPublisher(SteadyClient):
    """Publishes rising numbers at a rate; no number is published twice. Even ones have keys eu.*, odd ones us.*.

    Units: `published_s` has the time of each number.
    """

    def __init__(self, address: Callable[[], BrokerAddress], per_s: int) -> None:
        super().__init__(address)
        self._per_s = per_s
        self.published_s: list[float] = []
        self.confirmed: set[int] = set()
        self._first = 0  # the number with tag 1
        self._upto = 0  # the highest tag that was confirmed with all before it
        self._stops = threading.Event()

    def talk(self, client: RawClient) -> None:
        """Publish what is due, and read confirms."""
        client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        self._first, self._upto = len(self.published_s), 0
        before = len(self.confirmed)
        begun_s = time.monotonic()
        while not self.ends.is_set():
            if self._stops.is_set():
                if len(self.confirmed) - before == len(self.published_s) - self._first:
                    self.ends.set()
                    return
            else:
                due = self._first + int((time.monotonic() - begun_s) * self._per_s)
                self._publish(client, range(len(self.published_s), due))
            self.ends.wait(STEP_S)
            while client.readable(0):
                self._heard(client.next())

    def finish(self) -> None:
        """Publish no more, and return when all that was published is confirmed, or lost with a connection."""
        self._stops.set()
        assert self.ends.wait(DEADLINE_S), "the publisher waits for confirms"
        self.hang_up()

    def _publish(self, client: RawClient, numbers: range) -> None:
        pieces = [FRONTS[number % KEYS] + b"%-100d\xce" % number for number in numbers]
        self.published_s += [time.monotonic()] * len(numbers)
        client.send(*pieces)

    def _heard(self, received: Received) -> None:
        ack = received.value
        assert isinstance(ack, commands.Basic.Ack), ack
        tag = ack.delivery_tag or 0
        tags = range(self._upto + 1, tag + 1) if ack.multiple else range(tag, tag + 1)
        self.confirmed.update(self._first + one - 1 for one in tags)
        if ack.multiple:
            self._upto = tag


def _front(key: str) -> bytes:
    """Return what comes before the body in the frames of a message."""
    whole = publish_frames(1, EXCHANGE, key, bytes(BODY_BYTES), properties=PERSISTENT)
    return whole[: -BODY_BYTES - 1]


FRONTS: Final = [_front(f"{'us' if number % 2 else 'eu'}.{number % 7}") for number in range(KEYS)]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One delivery."""

    number: int
    redelivered: bool
    at_s: float


class SteadySubscriber(SteadyClient):
    """Consumes the durable queue q with acks."""

    def __init__(self, address: Callable[[], BrokerAddress], pattern: str) -> None:
        super().__init__(address)
        self._pattern = pattern
        self.ready = threading.Event()
        self.arrivals: list[Arrival] = []
        self.numbers: set[int] = set()

    def talk(self, client: RawClient) -> None:
        """Bind and consume."""
        client.declare_queue(1, "q", durable=True)
        client.call(
            1, commands.Queue.Bind(queue="q", exchange=EXCHANGE, routing_key=self._pattern), commands.Queue.BindOk
        )
        client.call(1, commands.Basic.Qos(prefetch_count=PREFETCH), commands.Basic.QosOk)
        client.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        self.ready.set()
        unread = client.take_unread()
        while True:
            unread, tag = self._take(unread)
            if tag:
                client.method(1, commands.Basic.Ack(tag, multiple=True))
            data = client.socket.recv(READ_BYTES)
            if not data:
                raise PeerGone("end of file")
            unread += data

    def _take(self, unread: bytes) -> tuple[bytes, int]:
        """Take whole deliveries, each of three frames; return the rest, and the last delivery tag or 0."""
        at = tag = 0
        at_s = time.monotonic()
        while True:
            ends: list[int] = []
            end = at
            while len(ends) < 3 and end + HEAD.size <= len(unread):
                end += HEAD.size + HEAD.unpack_from(unread, end)[2] + 1
                ends.append(end)
            if len(ends) < 3 or end > len(unread):
                return unread[at:], tag
            method_at = at + HEAD.size
            assert METHOD.unpack_from(unread, method_at) == DELIVER, unread[at:end]
            tag, redelivered = TAG.unpack_from(unread, method_at + METHOD.size + 1 + unread[method_at + METHOD.size])
            number = int(unread[ends[1] + HEAD.size : end - 1])
            self.arrivals.append(Arrival(number, redelivered, at_s))
            self.numbers.add(number)
            at = end

    def first_arrivals(self) -> list[int]:
        """Return the numbers in the order in which each came first."""
        return list(dict.fromkeys(arrival.number for arrival in self.arrivals))

    def repeated(self) -> list[int]:
        """Return the numbers that came once more without being marked as redelivered."""
        seen: set[int] = set()
        found: list[int] = []
        for arrival in self.arrivals:
            if arrival.number in seen and not arrival.redelivered:
                found.append(arrival.number)
            seen.add(arrival.number)
        return found
