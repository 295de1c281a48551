"""Clients that reconnect when their broker is killed: a publisher with a steady rate, and subscribers.

Each runs in its own thread on a raw socket. They encode and decode messages without pamqp, which saves CPU time for the
six brokers.
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
STEP_S: Final = 0.005  # between two bursts of the publisher
PREFETCH: Final = 200
PERSISTENT: Final = commands.Basic.Properties(delivery_mode=2)
BODY_BYTES: Final = 100
KEYS: Final = 14
READ_BYTES: Final = 1 << 16
HEAD: Final = struct.Struct(">BHI")  # type, channel, payload size; the payload and an end octet follow
METHOD: Final = struct.Struct(">HH")
DELIVER: Final = (60, 60)
TAG: Final = struct.Struct(">Q?")  # after the consumer tag: delivery tag, redelivered


class SteadyClient(threading.Thread):
    """A client thread that reconnects when its connection breaks; `hang_up` raises any other exception."""

    def __init__(self, address: Callable[[], BrokerAddress]) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._client: RawClient | None = None
        self.ends = threading.Event()
        self.connections = 0
        self._fault: BaseException | None = None

    def run(self) -> None:
        """Connect and run `talk` until `ends` is set."""
        try:
            while not self.ends.is_set():
                with suppress(PeerGone, OSError):
                    self._connect()
                self.ends.wait(PAUSE_S)
        except BaseException as fault:  # noqa: BLE001 - raised by `hang_up`
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
        """Work on an open channel until `ends` is set. Raises: PeerGone, OSError."""

    def hang_up(self) -> None:
        """End at once, and raise the exception that ended the thread."""
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
    """Publishes increasing numbers at a rate, none twice; even ones with keys eu.*, odd ones with us.*.

    Units: ``published_s`` contains the time of each number.
    """

    def __init__(self, address: Callable[[], BrokerAddress], per_s: int) -> None:
        super().__init__(address)
        self._per_s = per_s
        self.published_s: list[float] = []
        self.confirmed: set[int] = set()
        self._first = 0  # the number published with delivery tag 1
        self._upto = 0  # the last tag confirmed with `multiple`
        self._stops = threading.Event()

    def talk(self, client: RawClient) -> None:
        """Publish at the rate, and read confirms."""
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
                self._confirmed_by(client.next())

    def finish(self) -> None:
        """Stop publishing, and wait until the messages of the current connection are confirmed."""
        self._stops.set()
        assert self.ends.wait(DEADLINE_S), "confirms are missing"
        self.hang_up()

    def _publish(self, client: RawClient, numbers: range) -> None:
        pieces = [FRONTS[number % KEYS] + b"%-100d\xce" % number for number in numbers]
        self.published_s += [time.monotonic()] * len(numbers)
        client.send(*pieces)

    def _confirmed_by(self, received: Received) -> None:
        ack = received.value
        assert isinstance(ack, commands.Basic.Ack), ack
        tag = ack.delivery_tag or 0
        tags = range(self._upto + 1, tag + 1) if ack.multiple else range(tag, tag + 1)
        self.confirmed.update(self._first + one - 1 for one in tags)
        if ack.multiple:
            self._upto = tag


def _front(key: str) -> bytes:
    """Return the bytes before the body in the frames of a message."""
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
            unread, tag = self._read(unread)
            if tag:
                client.method(1, commands.Basic.Ack(tag, multiple=True))
            data = client.socket.recv(READ_BYTES)
            if not data:
                raise PeerGone("end of file")
            unread += data

    def _read(self, unread: bytes) -> tuple[bytes, int]:
        """Record the complete deliveries, of three frames each; return the rest, and the last delivery tag or 0."""
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
        """Return the distinct numbers in order of first arrival."""
        return list(dict.fromkeys(arrival.number for arrival in self.arrivals))

    def repeated(self) -> list[int]:
        """Return the numbers that arrived again without the redelivered flag."""
        seen: set[int] = set()
        found: list[int] = []
        for arrival in self.arrivals:
            if arrival.number in seen and not arrival.redelivered:
                found.append(arrival.number)
            seen.add(arrival.number)
        return found
