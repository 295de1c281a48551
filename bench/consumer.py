"""Consumes at full speed from one connection, counting by offset and acking `multiple`."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.counters import Counters
from broker.perf import wire
from broker.perf.faults import BrokenStream, Refusal, Stalled
from broker.perf.peer import PeerConnection
from broker.perf.scanner import Scanner

_BUFFER_BYTES = 1 << 20
_LOOK_UP_S = 0.05


@dataclass(frozen=True, slots=True)
class ConsumerPace:
    """The pace of a consumer; `ack_every` 0 means auto-ack, `tags` checks that delivery tags count up without a gap."""

    ack_every: int
    body_bytes: int
    stall_s: float
    tags: bool = True


class LoadConsumer:
    """Reads deliveries until the announced total has arrived."""

    def __init__(self, peer: PeerConnection, demand: ConsumerPace, counters: Counters) -> None:
        self._peer = peer
        self._demand = demand
        self._counters = counters
        self._scanner = Scanner()
        self._acked = 0

    @property
    def walked(self) -> int:
        """Return how many deliveries had to be counted frame by frame."""
        return self._scanner.walked

    def run(self) -> float:
        """Consume everything and return the time of the last delivery, after the broker has read the last ack.

        Units: seconds of the monotonic clock.
        Raises: Stalled, Refusal, BrokenStream.
        """
        scanner, counters, ack_every = self._scanner, self._counters, self._demand.ack_every
        buffer = bytearray(_BUFFER_BYTES)
        view = memoryview(buffer)
        fill = len(self._peer.received)
        buffer[:fill] = self._peer.received
        receive = self._peer.socket.recv_into
        self._peer.socket.settimeout(_LOOK_UP_S)
        last = started = time.monotonic()
        while not 0 <= counters.total <= scanner.deliveries:
            try:
                count = receive(view[fill:])
            except TimeoutError:
                if time.monotonic() - max(last, started) > self._demand.stall_s:
                    raise Stalled(f"consumer: {scanner.deliveries} of {counters.total} delivered") from None
                continue
            if not count:
                raise Refusal("the broker closed the consumer's socket")
            end = fill + count
            done = scanner.scan(buffer, end)
            fill = end - done
            view[:fill] = bytes(view[done:end])
            last = time.monotonic()
            counters.delivered = scanner.deliveries
            if ack_every and scanner.deliveries - self._acked >= ack_every:
                self._ack(scanner.deliveries // ack_every * ack_every)
        self._finish()
        return last

    def _ack(self, upto: int) -> None:
        """Ack in steps of the configured size, as a counting client would, all in one write."""
        step, channel = self._demand.ack_every, self._peer.channel
        tags = range(self._acked + step, upto + 1, step)
        self._peer.socket.sendall(b"".join(wire.basic_ack(channel, tag, multiple=True) for tag in tags))
        self._acked = upto

    def _finish(self) -> None:
        """Ack the remaining deliveries, wait until the broker has read the acks, and check the counts.

        Raises: BrokenStream.
        """
        scanner, peer = self._scanner, self._peer
        peer.received.clear()
        peer.socket.settimeout(self._demand.stall_s)
        if self._demand.ack_every and scanner.deliveries > self._acked:
            peer.socket.sendall(wire.basic_ack(peer.channel, scanner.deliveries, multiple=True))
        peer.settle()
        if self._demand.tags and scanner.deliveries and scanner.last_tag != scanner.deliveries:
            raise BrokenStream(f"{scanner.deliveries} deliveries counted, the last one's tag is {scanner.last_tag}")
        if scanner.body_bytes != scanner.deliveries * self._demand.body_bytes:
            raise BrokenStream(f"{scanner.body_bytes} body bytes in {scanner.deliveries} deliveries")
