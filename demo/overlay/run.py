"""One run of the demo of the overlay: the flights cross six brokers, five of which are killed on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from demo.broker_process import BrokerFailed
from demo.clients import PUBLISHERS as PUBLISHING_CLIENTS
from demo.entries import Entries
from demo.ledger import Address, Count
from demo.options import Options, parse_options
from demo.overlay.gauges import Gauges
from demo.overlay.picture import draw
from demo.overlay.readiness import await_bindings
from demo.overlay.sites import PUBLISHERS, SUBSCRIBERS, Sites
from demo.overlay.table import live_table
from demo.progress import Progress, make_progress
from demo.run import Fault, Run, run_until_the_end
from demo.watch import Watch

AWAY_S = 3.0  # how long a broker in the middle stays away


class OverlayRun(Run):
    """The sites, the clients and the ledger of one run."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._sites = Sites(folder)
        self._gauges = Gauges(self._sites, self._delivered)
        self._threads: list[threading.Thread] = []
        self._failure: BrokerFailed | None = None
        super().__init__(options, folder)

    def perform(self) -> bool:
        """Publish and consume everything, and draw it; return whether the overlay kept its guarantees.

        Raises: BrokerFailed, ClientFailed, Stalled, NoPicture.
        """
        try:
            held = super().perform()
        finally:
            self._gauges.stop()
        plot = self._options.plot
        if plot is not None:
            draw(plot, self._gauges)
            print(f"written: {plot}")
        return held

    def _make_broker(self, folder: Path) -> Sites:
        return self._sites

    def _make_progress(self) -> Progress:
        options = self._options
        return make_progress(
            len(self._keys), self._deliveries, options.plain, above=lambda: live_table(self._gauges.now)
        )

    def _entries(self, address: Address) -> Entries:
        return Entries(address, tuple(self._sites.addresses[name] for name in SUBSCRIBERS))

    def _await_bindings(self, entries: Entries, homes: Sequence[Address], progress: Progress) -> None:
        probes = await_bindings(entries, self._plan, homes)
        progress.event(f"every binding counts at {PUBLISHERS}: known by {probes} probes to each site")
        self._gauges.start()

    def _faults(self) -> list[tuple[float, Fault]]:
        return [
            (0.15, self._lose("middle-1")),
            (0.35, self._lose("middle-2", "middle-3")),
            (0.6, self._restart_leaf(SUBSCRIBERS[1])),
            (0.8, self._restart_leaf(PUBLISHERS)),
        ]

    def _is_whole(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return not any(thread.is_alive() for thread in self._threads)

    def _shown_state(self) -> str:
        return self._gauges.summary()

    def _lose(self, *names: str) -> Fault:
        """Return the fault that brokers in the middle are killed, and come back after a while."""

        def lose(_watch: Watch, progress: Progress) -> None:
            for name in names:
                self._sites.kill_broker(name)
            self._tell(progress, f"{' and '.join(names)} killed with -9")

            def come_back() -> None:
                time.sleep(AWAY_S)
                for name in names:
                    self._sites.restart(name)
                self._tell(progress, f"{' and '.join(names)} started again, knowing nothing")

            self._later(come_back)

        return lose

    def _restart_leaf(self, name: str) -> Fault:
        """Return the fault that a leaf is killed and started again at once; its clients wait for it."""

        def restart(watch: Watch, progress: Progress) -> None:
            self._ledger.broker_dying()
            self._sites.kill_broker(name)
            self._tell(progress, f"{name} killed with -9, with its clients' messages in flight")
            took_s = self._sites.restart(name)
            watch.excuse(time.monotonic())
            self._ledger.broker_started()
            self._tell(progress, f"{name} started again, ready after {took_s:.2f} s")

        return restart

    def _tell(self, progress: Progress, text: str) -> None:
        self._gauges.note(text)
        progress.event(text)

    def _later(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BrokerFailed as error:
                self._failure = error

        self._threads.append(threading.Thread(target=guarded, daemon=True))
        self._threads[-1].start()

    def _delivered(self) -> dict[str, int]:
        """Return how many messages the consumers of each site have got."""
        counts = dict.fromkeys(SUBSCRIBERS, 0)
        for client in range(PUBLISHING_CLIENTS, self._ledger.clients):
            site = SUBSCRIBERS[(client - PUBLISHING_CLIENTS) % len(SUBSCRIBERS)]
            counts[site] += self._ledger.counts(client)[Count.DELIVERED]
        return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 when the overlay kept its guarantees, 1 when it did not, 2 when the demo cannot run."""
    return run_until_the_end(replace(parse_options(arguments, pictured=True), url=None), OverlayRun)
