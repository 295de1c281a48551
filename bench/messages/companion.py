"""Runs a second user's light load in its own vhost while the first user's load is measured."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Self

from bench.brokers import Broker
from bench.light import QUEUE, LightClient
from broker.perf.faults import Fault, RunFailed
from broker.perf.peer import Address, PeerConnection

_EVERY_S = 0.05
_EXCHANGE = "bench-light"


class Companion:
    """Publishes and consumes a few messages a second, each of which must arrive; does nothing for a broker without a
    second user.

    Raises: RunFailed at the end, when a message was lost or the broker refused.
    """

    def __init__(self, broker: Broker) -> None:
        self.delivered = 0
        self._address = broker.other
        self._stopped = threading.Event()
        self._connected = threading.Event()
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(broker.other,), daemon=True)

    def __enter__(self) -> Self:
        if self._address:
            self._thread.start()
            self._connected.wait()
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

    def _run(self, address: Address) -> None:
        try:
            control = PeerConnection(address, 1)
            control.delete(QUEUE, _EXCHANGE)  # left by an earlier run; its consumer ended with its connection
            control.declare_exchange(_EXCHANGE, durable=False)
            control.close()
            client = LightClient(address, _EXCHANGE, every_s=_EVERY_S)
            self._connected.set()
            try:
                self.delivered = client.exchange(sys.maxsize, self._stopped.is_set).count
            finally:
                client.close()
        except (Fault, OSError) as error:
            self._fault = error
        finally:
            self._connected.set()
