"""The client processes of a run: publishers and consumers, which start together and are monitored."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from itertools import cycle
from multiprocessing import connection
from pathlib import Path
from typing import Any

from demo.aio_pika_client import consume_with_aio_pika, publish_with_aio_pika
from demo.boxes import Inbox, Outbox
from demo.ledger import SPAWN, Failed, Ledger
from demo.pika_client import consume_with_pika, publish_with_pika

PUBLISHERS = 2
AIO_PUBLISH_PART = 0.2  # a message costs aio-pika about six times pika's processor time; so both end at the same time

# Queues of a consumer, each an index in the plan and a name.
Queues = Sequence[tuple[int, str]]


class ClientFailed(Failed):
    """A client process ended with an error."""


def _live(work: Callable[..., object], urls: Sequence[str], make_box: Any, ledger: Ledger, *rest: Any) -> None:
    """Run one client until it ends; with each connection that it loses it goes on to its next URL."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process ends the others
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # the kill is expected; any other loss ends the client
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        box = make_box(ledger, *rest)
        for url in cycle(urls):
            generation = ledger.await_broker()
            if generation is None or (error := work(url, box)) is None:
                return
            ledger.lost(generation, error)
    except BaseException:  # noqa: BLE001  any error ends this client and is shown
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # without the wait for threads and loops that may hang on a dead connection


def _end_with_parent() -> None:
    """End this process when the first one has ended without stopping it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


class Clients:
    """The processes of one run: two publishers, and consumers of each library.

    Shapes: client n connects to `urls(n)`; the publishers are clients 0 and 1, pika's consumers follow.
    """

    def __init__(
        self, ledger: Ledger, urls: Callable[[int], Sequence[str]], flights: Path,
        pika_queues: Sequence[Queues] = (), aio_queues: Sequence[Queues] = (), prefetch: int = 0,
    ) -> None:  # fmt: skip
        cut = ledger.rows - int(ledger.rows * AIO_PUBLISH_PART)
        works: list[tuple[str, Callable[..., object], type, tuple[Any, ...]]] = [
            ("publisher (pika)", publish_with_pika, Outbox, (flights, 0, cut)),
            ("publisher (aio-pika)", publish_with_aio_pika, Outbox, (flights, cut, ledger.rows)),
            *(("consumer (pika)", consume_with_pika, Inbox, (queues, prefetch)) for queues in pika_queues),
            *(("consumer (aio-pika)", consume_with_aio_pika, Inbox, (queues, prefetch)) for queues in aio_queues),
        ]
        self._processes = [
            SPAWN.Process(name=name, target=_live, args=(work, urls(n), box, ledger, n, *rest), daemon=True)
            for n, (name, work, box, rest) in enumerate(works)
        ]

    def start(self) -> None:
        """Start every process."""
        for process in self._processes:
            process.start()

    def check(self) -> None:
        """Raise ClientFailed with the name of a client that has failed."""
        for process in self._processes:
            if process.exitcode:
                raise ClientFailed(f"the {process.name} ended with exit code {process.exitcode}; its error is above")

    def join(self, seconds: float) -> bool:
        """Return whether every client has ended in so many seconds. Raises: ClientFailed when one has failed."""
        deadline_s = time.monotonic() + seconds
        for process in self._processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
        self.check()
        return all(process.exitcode is not None for process in self._processes)

    def kill(self) -> None:
        """Kill every process that is still running."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            if process.pid is not None:
                process.join()
