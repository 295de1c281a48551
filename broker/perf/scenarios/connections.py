"""The scenarios without messages: open and hold connections, or create and delete objects on them."""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import count
from typing import Any, Final, cast

from broker.figures.numerals import rate_text
from broker.perf import flags, wire
from broker.perf.conductor import Stage, stage
from broker.perf.faults import BrokenStream, Fault, Refusal, Stalled
from broker.perf.histogram import Histogram
from broker.perf.machine import Stopwatch, raise_file_limit
from broker.perf.outcome import RunOutcome, cost_figures, time_figures
from broker.perf.peer import CALL_LIMIT_S, Address, Ask, Script, closing, is_answer, next_frame, opening
from broker.perf.progress import RunProgress
from broker.perf.result import Figure, Result
from broker.perf.scenarios import SCENARIOS
from broker.perf.topology import RunTopology

KINDS: Final = ("connections", "channels", "queues", "bindings", "consumers")  # what `churn` creates and deletes
_EXCHANGE: Final = "amq.topic"
_ON_A_QUEUE: Final = frozenset({"bindings", "consumers"})
_CHANNELS_MAX: Final = 65_535
_POLL_S: Final = 0.2
_BEAT: Final = wire.frame(wire.HEARTBEAT, 0, b"")
_NO_METHOD: Final = (0, 0)  # matches no method
_SILENT: Final = f"no answer from the broker for {CALL_LIMIT_S:.0f} s"


class Conversation(asyncio.Protocol):
    """One of thousands of connections on one event loop; it calls `ended` when it is no longer open.

    Invariant: `fault` is the reason why the connection ended; None while it is open, and if this client closed it.
    """

    def __init__(self, ended: Callable[[Conversation], None], heartbeat_s: float = 0) -> None:
        """Send heartbeats, twice per interval, and nothing else until a script runs."""
        self.fault: Fault | None = None
        self._beat_s = heartbeat_s / 2
        self._ended = ended
        self._open = True
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._awaited = _NO_METHOD
        self._waiting: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._beat_s:
            asyncio.get_running_loop().call_later(self._beat_s, self._beat)

    def data_received(self, data: bytes) -> None:
        """Pass the answer to the waiting script."""
        self._received += data
        try:
            while self._open and (found := next_frame(self._received)) is not None:
                self._handle_frame(*found)
        except Fault as fault:
            self.end(fault)

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"the connection was lost: {getattr(exc, 'strerror', None) or exc}"
        self.end(Refusal(why if exc else "the broker closed the socket"))

    async def follow(self, script: Script) -> bool:
        """Send a script's requests, each after the answer to the previous one; return whether all were answered."""
        loop = asyncio.get_running_loop()
        payload: Any = None  # None starts the script
        while self.fault is None:
            try:
                request, self._awaited = script.send(payload)
            except StopIteration:
                return True
            self._waiting = loop.create_future()
            self._transport.write(request)
            limit = loop.call_later(CALL_LIMIT_S, self.end, Stalled(_SILENT))
            payload = await self._waiting
            limit.cancel()
        return False

    def end(self, fault: Fault | None = None) -> None:
        """Close the socket without the closing handshake; a fault also ends the waiting script."""
        if not self._open:
            return
        self._open, self.fault = False, fault
        self._transport.abort()
        if fault is not None:
            self._wake(b"")
        self._ended(self)

    def _beat(self) -> None:
        """Send a heartbeat now and every `_beat_s`, while the connection is open."""
        if self._open:
            self._transport.write(_BEAT)
            asyncio.get_running_loop().call_later(self._beat_s, self._beat)

    def _handle_frame(self, kind: int, payload: bytes) -> None:
        """Pass an awaited answer to the script, and ignore heartbeats. Raises: Refusal, BrokenStream."""
        if kind not in (wire.METHOD, wire.HEARTBEAT):
            raise BrokenStream(f"an unexpected frame of type {kind}")
        if kind == wire.HEARTBEAT or not is_answer(payload, self._awaited):
            return
        if self._awaited == wire.CONNECTION_CLOSE_OK:
            self.end()
        self._awaited = _NO_METHOD
        self._wake(payload)

    def _wake(self, payload: bytes) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(payload)


class ScriptedRun:
    """The conversations of a run, and the resources used since its start.

    Invariant: `fault` is the first fault of any conversation, None if there was none; `lost` counts all faults.
    """

    def __init__(self, stage: Stage, heartbeat_s: float = 0) -> None:
        stage.control.close()  # it must not count towards the broker's limit and memory
        self.stage = stage
        self.options = stage.options
        self.address: Address = stage.options.uri
        self.open: set[Conversation] = set()
        self.fault: Fault | None = None
        self.lost = 0
        self._heartbeat_s = heartbeat_s
        if stage.processes:
            stage.processes.reset_peak()
        self._usage_before, self._stopwatch = stage.usage(), Stopwatch()

    @property
    def stopping(self) -> bool:
        return self.fault is not None or self.stage.interruption.requested

    async def repeat(
        self,
        works: Iterable[Callable[[], Awaitable[object]]],
        total: int | None,
        *,
        stage: str = "",
        per_s: float | None = None,
        until_s: float = math.inf,
        always: bool = False,
    ) -> None:
        """Run these works concurrently, over and over, `total` times in all; None for no limit.

        A fault, Ctrl-C or the time `until_s` ends the repetition, unless all work must `always` be done.
        """
        began_s, ends = time.monotonic(), count(1)
        numbers = count() if total is None else iter(range(total))

        async def worker(work: Callable[[], Awaitable[object]]) -> None:
            for number in numbers:
                due_s = began_s + number / per_s if per_s else 0.0
                while (early_s := due_s - time.monotonic()) > 0 and not self.stopping:  # noqa: ASYNC110  Ctrl-C is a flag
                    await asyncio.sleep(min(_POLL_S, early_s))
                if (self.stopping or time.monotonic() >= until_s) and not always:
                    return
                await work()
                if stage:
                    self.stage.progress.share(stage, next(ends), total or 0)

        await asyncio.gather(*map(worker, works))

    async def dial(self, script: Script) -> Conversation | None:
        """Return a new connection that has followed `script`, or None, after recording the fault, if it failed."""
        address, made = self.address, partial(Conversation, self._ended, self._heartbeat_s)
        connect = asyncio.get_running_loop().create_connection
        try:
            tls = address.tls_context() if address.tls else None
            async with asyncio.timeout(CALL_LIMIT_S):
                _, talk = await connect(made, address.host, address.port, ssl=tls, family=address.family)
        except OSError as error:
            self._record_fault(Refusal(f"no more connections: {error.strerror or error}"))
            return None
        self.open.add(talk)
        return talk if await talk.follow(script) else None

    def result(self, figures: dict[str, Figure], failures: list[str], busy_share: float) -> Result:
        """Close the remaining connections, and return the result document."""
        for talk in list(self.open):
            talk.end()
        outcome, stopwatch = RunOutcome(self.stage.progress, self.options.interval), self._stopwatch
        outcome.seconds, outcome.cpu_s, outcome.busy_share = stopwatch.seconds(), stopwatch.cpu_s(), busy_share
        outcome.before, outcome.after, outcome.failures = self._usage_before, self.stage.usage(), failures
        return self.stage.result(outcome, figures)

    def _ended(self, talk: Conversation) -> None:
        self.open.discard(talk)
        if talk.fault is not None:
            self._record_fault(talk.fault)

    def _record_fault(self, fault: Fault) -> None:
        self.fault = self.fault or fault
        self.lost += 1


def add_connections(commands: Any) -> None:
    """Add the parser of connections."""
    parser = flags.add_scenario(commands, "connections", SCENARIOS["connections"])
    load = parser.add_argument_group("connections")
    flags.add(load, "-n --connections", "N", flags.count, "number of connections", 1000)
    channels = flags.at_most(flags.count_or_none, _CHANNELS_MAX, "AMQP can number")
    flags.add(load, "-X --channels", "N", channels, "channels per connection", 1)
    flags.add(load, "-w --at-once", "N", flags.count, "simultaneous handshakes", 1)
    flags.add(load, "-r --rate", "R", flags.rate, "open at most R per second")
    flags.add(load, "-z --hold", "T", flags.duration, "hold them for T", "2s")
    flags.add(load, "--heartbeat", "T", flags.heartbeat, "heartbeat, 0 for none", "60s")


def run_connections(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Open, hold and close connections. Raises: Fault, OSError if no connection could be opened."""
    raise_file_limit(options.connections + 1)
    with stage(options, RunTopology(()), progress) as here:
        return asyncio.run(ConnectionHold(here, options.heartbeat).run())


class ConnectionHold(ScriptedRun):
    """The scenario `connections`. Invariant: every opened connection is closed, even after Ctrl-C, and counted."""

    async def run(self) -> Result:
        """Run the scenario. Raises: Fault if no connection could be opened."""
        options, opens, closes = self.options, Histogram(), Histogram()
        wanted = options.connections
        before, stopwatch = self.stage.usage(), Stopwatch()
        opening_all = [partial(self._open, opens)] * options.at_once
        await self.repeat(opening_all, wanted, stage="opening", per_s=options.rate)
        open_s, busy_share = stopwatch.seconds(), stopwatch.busy_share()
        opened, after_open = opens.count, self.stage.usage()
        if not opened and self.fault is not None:
            raise self.fault
        await self._hold()
        held, after_hold = len(self.open), self.stage.usage()
        stopwatch, talks = Stopwatch(), list(self.open)
        closing_all = [lambda: talks.pop().follow(timed(closes, closing()))] * options.at_once
        await self.repeat(closing_all, held, stage="closing", always=True)
        figures = {
            "opens": Figure(opened / open_s, "per_s"),
            **time_figures("open", opens),
            "open_mean": Figure(opens.mean_ns / 1e3, "us"),
            **cost_figures(before, after_hold, held, memory="memory_per_connection"),
            **cost_figures(before, after_open, opened, cpu="broker_cpu_per_open"),
            "closes": Figure(closes.count / stopwatch.seconds(), "per_s"),
            **time_figures("close", closes),
            "opened": Figure(opened, "connections"),
            "held": Figure(held, "connections"),
        }
        failures = [] if opened == wanted else [f"stopped by Ctrl-C after {opened:,} of {wanted:,} connections"]
        if self.fault is not None:
            failures = [f"{opened:,} of {wanted:,} connections opened, {self.lost:,} refused or lost: {self.fault}"]
        return self.result(figures, failures, busy_share)

    async def _open(self, times: Histogram) -> None:
        begun_ns = time.monotonic_ns()
        if await self.dial(opening(self.address, self.options.heartbeat, range(1, self.options.channels + 1))):
            times.record(time.monotonic_ns() - begun_ns)

    async def _hold(self) -> None:
        now_s = time.monotonic()
        until_s, show_s = now_s + self.options.hold, now_s + self.options.interval
        while (now_s := time.monotonic()) < until_s and not self.stage.interruption.requested and self.open:
            await asyncio.sleep(min(_POLL_S, until_s - now_s))
            if now_s >= show_s:
                show_s += self.options.interval
                self.stage.progress.show(f"holding {len(self.open):,} connections  {until_s - now_s:.0f} s to go")


def add_churn(commands: Any) -> None:
    """Add the parser of churn."""
    parser = flags.add_scenario(commands, "churn", SCENARIOS["churn"])
    load = parser.add_argument_group("churn")
    load.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    flags.add(load, "-w --workers", "N", flags.count, "number of workers with a connection each", 4)
    flags.add_time(load)
    flags.add(load, "-C --cycles", "N", flags.count, "make and remove N in total")
    flags.add_switch(load, "--durable", "use durable queues, which are written to disk")


def run_churn(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Create and delete objects until the run is over. Raises: Fault, OSError if not even one cycle was completed."""
    raise_file_limit(options.workers + 1)
    with stage(options, RunTopology(()), progress) as here:
        return asyncio.run(Churn(here).run())


class Churn(ScriptedRun):
    """The scenario `churn`. Invariant: a worker that is told to stop deletes what it created."""

    async def run(self) -> Result:
        """Run the scenario. Raises: Fault if not even one cycle was completed."""
        options, made, undone = self.options, Histogram(), Histogram()
        kind, numbers = options.kind, range(options.workers)
        workers = [CycleWorker(kind, self.address, options.durable, made, undone) for _ in numbers]
        talks: list[Conversation | None] = [None for _ in numbers]
        if kind != "connections":
            talks = await asyncio.gather(*(self.dial(worker.begin()) for worker in workers))
        pairs = list(zip(workers, talks, strict=True))
        before, stopwatch = self.stage.usage(), Stopwatch()
        until_s = time.monotonic() + (flags.seconds_of(options) or math.inf)
        async with asyncio.TaskGroup() as group:
            showing = group.create_task(self._show_rate(undone))
            await self.repeat([partial(self._cycle, *pair) for pair in pairs], options.cycles, until_s=until_s)
            took_s, busy_share, after = stopwatch.seconds(), stopwatch.busy_share(), self.stage.usage()
            showing.cancel()
        await asyncio.gather(*(talk.follow(worker.end()) for worker, talk in pairs if talk in self.open))
        cycles = undone.count
        if not cycles and self.fault is not None:
            raise self.fault
        figures = {
            "cycles_per_second": Figure(cycles / took_s, "per_s"),
            **time_figures("make", made),
            **time_figures("undo", undone),
            **cost_figures(before, after, cycles, cpu="broker_cpu_per_cycle"),
            "cycles": Figure(cycles, kind),
        }
        failures = [] if self.fault is None else [f"after {cycles:,} cycles: {self.fault}"]
        return self.result(figures, failures, busy_share)

    async def _cycle(self, worker: CycleWorker, talk: Conversation | None) -> None:
        """Run one cycle of a worker; cycles of `connections` open a new connection each."""
        await (talk.follow(worker.cycle()) if talk else self.dial(worker.cycle()))

    async def _show_rate(self, undone: Histogram) -> None:
        while True:
            cycles, begun_s = undone.count, time.monotonic()
            await asyncio.sleep(self.options.interval)
            per_s = (undone.count - cycles) / (time.monotonic() - begun_s)
            self.stage.progress.show(f"{self.options.kind} made and undone  {undone.count:,}  {rate_text(per_s)}")


class CycleWorker:
    """Create and delete one kind of object on its connection, with a queue of its own where one is needed."""

    def __init__(self, kind: str, address: Address, durable: bool, made: Histogram, undone: Histogram) -> None:
        self._kind = kind
        self._address = address
        self._times = made, undone
        self._queue = f"slotmq-perf-churn-{secrets.token_hex(8)}"
        self._declare: Ask = wire.queue_declare(1, self._queue, durable=durable), wire.QUEUE_DECLARE_OK
        self._delete: Ask = wire.queue_delete(1, self._queue), wire.QUEUE_DELETE_OK
        self._number = 0

    def begin(self) -> Script:
        """Open the connection and create what the cycles need."""
        yield from opening(self._address, channels=(1,))
        if self._kind in _ON_A_QUEUE:
            yield self._declare

    def end(self) -> Script:
        """Delete what `begin` created, and close the connection."""
        if self._kind in _ON_A_QUEUE:
            yield self._delete
        yield from closing()

    def cycle(self) -> Script:
        for times, script in zip(self._times, self._scripts(), strict=True):
            yield from timed(times, script)

    def _scripts(self) -> tuple[Script, Script]:
        """Return the two scripts of a cycle: one creates an object, the other deletes it."""
        self._number += 1
        match self._kind:
            case "connections":
                return opening(self._address), closing()
            case "channels":
                made: Ask = wire.method(2, wire.CHANNEL_OPEN, b"\x00"), wire.CHANNEL_OPEN_OK
                return _single(made), _single((wire.close(2, wire.CHANNEL_CLOSE), wire.CHANNEL_CLOSE_OK))
            case "queues":
                return _single(self._declare), _single(self._delete)
            case "bindings":
                key = f"perf.{self._number}.*.#"  # never repeated, as with short-lived clients
                binding = self._queue, _EXCHANGE, key
                made = wire.queue_bind(1, *binding), wire.QUEUE_BIND_OK
                return _single(made), _single((wire.queue_unbind(1, *binding), wire.QUEUE_UNBIND_OK))
        cancel = wire.method(1, wire.BASIC_CANCEL, wire.short_string("churn") + b"\x00")
        made = wire.basic_consume(1, self._queue, "churn", auto_ack=True), wire.BASIC_CONSUME_OK
        return _single(made), _single((cancel, wire.BASIC_CANCEL_OK))


def timed(times: Histogram, script: Script) -> Script:
    """Run a script to its end and record its duration."""
    begun_ns = time.monotonic_ns()
    yield from script
    times.record(time.monotonic_ns() - begun_ns)


def _single(ask: Ask) -> Script:
    yield ask
