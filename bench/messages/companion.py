"""Runs a second user's light load in its own vhost while the first user's load is measured."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from bench.brokers import Broker
from broker.perf import wire
from broker.perf.crew import RunFailed
from broker.perf.faults import Fault
from broker.perf.peer import Address, PeerConnection
from broker.perf.scanner import Scanner

PER_S = 20
_CHANNEL = 1
_EXCHANGE = _QUEUE = "bench-light"
_LATE_S = 30.0
_LOOK_S = 1 / PER_S


class Companion:
    """Publishes and consumes a few messages a second, each of which must arrive; does nothing for a broker without a
    second user.

    Raises: RunFailed at the end, when a message was lost or the broker refused.
    """

    def __init__(self, broker: Broker) -> None:
        self.published = self.delivered = 0
        self._address = broker.other
        self._stopped = threading.Event()
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._connected = threading.Event()

    def __enter__(self) -> Self:
        if self._address:
            self._thread.start()
            self._connected.wait(_LATE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._address:
            return
        self._stopped.set()
        self._thread.join()
        if error is None and self._fault:
            raise RunFailed(f"the second user: {self._fault}")
        if error is None and self.delivered != self.published:
            raise RunFailed(f"the second user got {self.delivered} of {self.published} messages")

    def _guarded(self) -> None:
        assert self._address is not None
        try:
            self._run(self._address)
        except (Fault, OSError) as error:
            self._fault = error
        finally:
            self._connected.set()

    def _run(self, address: Address) -> None:
        peer = PeerConnection(address, _CHANNEL)
        try:
            peer.delete(_QUEUE, _EXCHANGE)  # left by an earlier run; its consumer ended with its connection
            peer.declare_exchange(_EXCHANGE, durable=False)
            peer.declare_queue(_QUEUE, durable=False)
            peer.bind(_QUEUE, _EXCHANGE, "light.#")
            peer.consume(_QUEUE, "light", auto_ack=True, prefetch=0)
            self._connected.set()
            self._exchange(peer)
        finally:
            peer.close()

    def _exchange(self, peer: PeerConnection) -> None:
        """Publish at the rate and count deliveries, until told to stop and every message has arrived."""
        scanner, buffer = Scanner(), bytearray(65_536)
        fill, late_at = 0, 0.0
        while True:
            now = time.monotonic()
            if not self._stopped.is_set():
                key = f"light.{self.published}"
                peer.socket.sendall(wire.publish(_CHANNEL, _EXCHANGE, key, b"light", persistent=False))
                self.published += 1
                late_at = now + _LATE_S
            elif scanner.deliveries >= self.published or now > late_at:
                break
            next_at = now + _LOOK_S
            while (left_s := next_at - time.monotonic()) > 0:
                peer.socket.settimeout(left_s)
                try:
                    count = peer.socket.recv_into(memoryview(buffer)[fill:])
                except TimeoutError:
                    break
                if not count:
                    raise Fault("the broker closed the socket")
                done = scanner.scan(buffer, fill + count)
                fill = fill + count - done
                buffer[:fill] = buffer[done : done + fill]
            self.delivered = scanner.deliveries
