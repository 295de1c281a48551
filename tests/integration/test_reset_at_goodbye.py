"""A client resets its connection at the moment when the broker ends it: the broker keeps running."""

from __future__ import annotations

import errno
from typing import Any

from broker.testing import Broker
from tests.raw_client import RawClient


class ResetSocket:
    """A connection whose peer has reset it, which only the kernel knows, when its output is to be ended."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def write_eof(self) -> None:
        """Fail as a shutdown after a reset does."""
        self.asked += 1
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")


def test_the_broker_goes_on() -> None:
    """A client that resets its own connection ends neither the event-loop turn nor the broker."""
    with Broker() as broker:
        with RawClient("127.0.0.1", broker.port) as client:
            broker.wait_idle()
            transports: list[Any] = broker._call(lambda: list(broker.server.listener.transports))
            (transport,) = transports
            reset = transport._socket = ResetSocket(transport._socket)
            client.send(b"GET / HTTP/1.1\r\n")
            client.skip_to_end()
        assert reset.asked == 1
        with RawClient("127.0.0.1", broker.port) as other:
            other.open()
