"""What watches a broker that is operated: Prometheus each second, and the event stream of one open page."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from base64 import b64encode
from types import TracebackType
from typing import Final, Self

from bench.brokers import NotStarted

__all__ = ["Ports", "Watchers"]

SCRAPE_S: Final = 1.0
LIMIT_S: Final = 10.0
SCRAPED: Final = (
    "/metrics",
    "/metrics/detailed?family=queue_coarse_metrics&family=queue_consumer_count&family=queue_delivery_metrics",
)
"""What a Prometheus with alerts for single queues asks for."""
STREAM: Final = "/api/live?topics=overview"
GUEST: Final = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}


class Ports:
    """Two free ports, and the settings that have a broker use them."""

    def __init__(self) -> None:
        self.http, self.metrics = _free_port(), _free_port()

    @property
    def variables(self) -> dict[str, str]:
        """The settings as variables of the environment."""
        return {
            "SLOTMQ_HTTP__ENABLED": "true",
            "SLOTMQ_HTTP__PORT": str(self.http),
            "SLOTMQ_METRICS__ENABLED": "true",
            "SLOTMQ_METRICS__PORT": str(self.metrics),
        }


class Watchers:
    """Watches a broker while the block runs. Shapes: ``scrapes`` and ``events`` count what was received.

    Raises: NotStarted at the end if a watcher failed, or got nothing: the run would measure an idle broker.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._scrape, self._stream)]
        self._failure: Exception | None = None
        self._live: http.client.HTTPConnection | None = None
        self.scrapes = 0
        self.events = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + LIMIT_S
        while not (self.scrapes and self.events) and self._failure is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        live = self._live
        if live is not None and live.sock is not None:
            live.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_S)
        if kind is None and (self._failure is not None or not self.scrapes or not self.events):
            raise NotStarted(f"the broker was not watched: {self._failure or 'nothing came'}")

    def _scrape(self) -> None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self._ports.metrics, timeout=LIMIT_S)
            while not self._stopped.is_set():
                for path in SCRAPED:
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    if not answer.read() or answer.status != http.HTTPStatus.OK:
                        raise NotStarted(f"{path}: {answer.status}")
                self.scrapes += 1
                self._stopped.wait(SCRAPE_S)
            connection.close()
        except (OSError, http.client.HTTPException, NotStarted) as error:
            self._failed(error)

    def _stream(self) -> None:
        try:
            live = self._live = http.client.HTTPConnection("127.0.0.1", self._ports.http, timeout=LIMIT_S)
            live.request("GET", STREAM, headers=GUEST)
            answer = live.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise NotStarted(f"{STREAM}: {answer.status}")
            while answer.readline():
                self.events += 1
            if not self._stopped.is_set():
                raise NotStarted(f"{STREAM}: the stream ended")
        except (OSError, http.client.HTTPException, NotStarted) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if not self._stopped.is_set():  # the stream of a stopped watcher is cut off
            self._failure = error


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])
