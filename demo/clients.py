"""The client processes of a run: publishers and consumers, which start together and are monitored."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from typing import Any

from demo.aio_pika_client import consume_with_aio_pika, publish_with_aio_pika
from demo.entries import Entries
from demo.flights import FlightsFile
from demo.ledger import SPAWN, Address, Ledger
from demo.pika_client import consume_with_pika, publish_with_pika
from demo.plan import QueuePlan, Shares

END_TIMEOUT_S = 15.0
PUBLISHERS = 2


class ClientFailed(Exception):
    """A client process ended with an error."""


def publish_cut(rows: int, aio_part: float) -> int:
    """Return the first row of the aio-pika publisher; pika's publisher sends the rows before it."""
    return rows - int(rows * aio_part)


def _live(work: Callable[..., None], *arguments: Any) -> None:
    """Run one client until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process ends the others
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # the kill is expected; any other loss ends the client
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(*arguments)
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
    """The processes of one run."""

    def __init__(
        self,
        ledger: Ledger,
        entries: Entries,
        flights: FlightsFile,
        plan: Sequence[QueuePlan],
        shares: Shares,
        *,
        prefetch: int,
        aio_publish_part: float,
    ) -> None:
        cut = publish_cut(flights.rows, aio_publish_part)
        works: list[tuple[str, Callable[..., None], Address, tuple[Any, ...]]] = [
            ("publisher (pika)", publish_with_pika, entries.publish, (flights, 0, cut)),
            ("publisher (aio-pika)", publish_with_aio_pika, entries.publish, (flights, cut, flights.rows)),
        ]
        for name, consume, groups in (
            ("consumer (pika)", consume_with_pika, shares.pika),
            ("consumer (aio-pika)", consume_with_aio_pika, shares.aio),
        ):
            for group in groups:
                address = entries.of_consumer(len(works) - PUBLISHERS)
                works.append((name, consume, address, ([(index, plan[index].name) for index in group], prefetch)))
        self._processes: list[SpawnProcess] = [
            SPAWN.Process(name=name, target=_live, args=(work, ledger, client, address, *arguments), daemon=True)
            for client, (name, work, address, arguments) in enumerate(works)
        ]

    def start(self) -> None:
        """Start every process."""
        for process in self._processes:
            process.start()

    def check(self) -> None:
        """Check that no client has failed.

        Raises: ClientFailed with the name of the failed one.
        """
        for process in self._processes:
            if process.exitcode:
                raise ClientFailed(f"the {process.name} ended with exit code {process.exitcode}; its error is above")

    def join(self) -> None:
        """Wait until every client has ended, once the run is over.

        Raises: ClientFailed when one fails or does not end.
        """
        for process in self._processes:
            process.join(END_TIMEOUT_S)
            if process.exitcode is None:
                raise ClientFailed(f"the {process.name} did not end within {END_TIMEOUT_S:.0f} s")
        self.check()

    def kill(self) -> None:
        """Kill every process that is still running."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            if process.pid is not None:
                process.join()


def client_count(pika_consumers: int, aio_consumers: int) -> int:
    """Return how many clients write counts: two publishers and the consumers."""
    return PUBLISHERS + pika_consumers + aio_consumers
