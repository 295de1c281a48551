"""Measures memory: millions of queued messages that nobody consumes, and connections that read nothing.

`python -m bench.memory` starts SlotMQ with an empty data folder; `--url` and `--pid` look at any other broker.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import brokers
from bench.counters import Counters
from bench.publisher import LoadPublisher, PublisherPace
from bench.results import keep, leave
from bench.tape import BINDING_KEY, EXCHANGE, publish_tape
from broker.perf import wire
from broker.perf.crew import Crew, CrewPipe, RunFailed
from broker.perf.peer import Address, PeerConnection
from broker.perf.process_tree import ProcessTree, TreeUsage
from broker.perf.wire import CONSUME_CHANNEL, PUBLISH_CHANNEL

_KEYS = 10_000
_WINDOW = 10_000
_STALL_S = 3600.0
_LOOK_S = 0.5
_LOOK_LOGGED_S = 5.0
_TERMINAL = sys.stdout.isatty()
_SETTLE_S = 3.0
_QUEUE = "bench-backlog"
_SILENT_RECEIVE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Backlog:
    """The cost of queueing without a consumer."""

    messages: int
    body_bytes: int
    persistent: bool
    seconds: float
    messages_per_s: float
    cpu_us_per_message: float
    rss_before_bytes: int
    rss_after_bytes: int
    peak_rss_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class Silence:
    """The cost of connections that read nothing; growth is that of the broker's resident memory."""

    connections: int
    taken: int  # messages that the queue delivered to them
    first_growth_bytes: int
    growth_bytes: int

    @property
    def each_bytes(self) -> float:
        """Return the growth per connection."""
        return self.growth_bytes / self.connections


@dataclass(frozen=True, slots=True)
class Load:
    """The messages that a publisher's process has to queue up."""

    address: Address
    messages: int
    body_bytes: int
    persistent: bool


def main() -> int:
    """Run the measurements that the command line asks for and return the exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, leave)
    try:
        with _broker(options) as broker:
            processes = broker.processes
            if not processes:
                print("--url needs --pid: memory is read from the broker's process", file=sys.stderr)
                return 2
            print(f"{broker.name}: {broker.product()}")
            load = Load(broker.address, options.messages, options.body, not options.transient)
            with _queue(broker, load) as control:
                backlog = _measure_backlog(broker, processes, load)
                silence = _measure_silence(broker, processes, control, load, options.connections)
    except (brokers.NotStarted, RunFailed) as error:
        print(error, file=sys.stderr)
        return 1
    print(_text(backlog, silence))
    content = {"broker": broker.name, "backlog": asdict(backlog), "silence": asdict(silence)}
    print(f"Kept in {keep(content, options.json, 'memory')}.")
    return 0


@contextmanager
def _broker(options: argparse.Namespace) -> Iterator[brokers.Broker]:
    if options.url:
        yield brokers.Broker(options.name, options.url, ProcessTree(options.pid) if options.pid else None)
        return
    with tempfile.TemporaryDirectory(prefix="slotmq-bench-", dir=options.dir) as folder:
        script = brokers.rabbitmq_script()
        if options.rabbitmq and not script:
            raise brokers.NotStarted("rabbitmq-server is not installed")
        starting = brokers.rabbitmq(Path(folder), script or "") if options.rabbitmq else brokers.slotmq(Path(folder))
        with starting as broker:
            yield broker


def _measure_backlog(broker: brokers.Broker, processes: ProcessTree, load: Load) -> Backlog:
    """Publish everything into one queue and measure the growth of memory."""
    processes.reset_peak()
    before = processes.usage()
    begun = time.monotonic()
    sent = _publish(load, processes)
    seconds = time.monotonic() - begun
    time.sleep(_SETTLE_S)
    after = processes.usage()
    return Backlog(
        messages=sent,
        body_bytes=load.body_bytes,
        persistent=load.persistent,
        seconds=seconds,
        messages_per_s=sent / seconds,
        cpu_us_per_message=(after.cpu_s - before.cpu_s) / sent * 1e6,
        rss_before_bytes=before.rss_bytes,
        rss_after_bytes=after.rss_bytes,
        peak_rss_bytes=after.peak_rss_bytes,
        disk_bytes=broker.disk_bytes(),
    )


def _measure_silence(
    broker: brokers.Broker, processes: ProcessTree, control: PeerConnection, load: Load, connections: int
) -> Silence:
    """Start consumers, auto-ack and without prefetch, on the backlog that read nothing: first one, then all of them."""
    ready = control.declare_queue(_QUEUE, durable=load.persistent)
    before = processes.usage().rss_bytes
    peers = [_silent_consumer(broker)]
    time.sleep(_SETTLE_S)
    first = processes.usage().rss_bytes - before
    peers += [_silent_consumer(broker) for _ in range(connections - 1)]
    time.sleep(_SETTLE_S)
    growth = processes.usage().rss_bytes - before
    taken = ready - control.declare_queue(_QUEUE, durable=load.persistent)
    for peer in peers:
        peer.socket.close()  # they do not read, so they would not receive close-ok
    return Silence(connections, taken, first, growth)


def _silent_consumer(broker: brokers.Broker) -> PeerConnection:
    peer = PeerConnection(broker.address, CONSUME_CHANNEL, receive_bytes=_SILENT_RECEIVE_BYTES)
    peer.socket.sendall(wire.basic_consume(CONSUME_CHANNEL, _QUEUE, "silent", auto_ack=True))
    return peer


@contextmanager
def _queue(broker: brokers.Broker, load: Load) -> Iterator[PeerConnection]:
    """Declare the queue and its exchange, and delete both at exit; yield the connection."""
    control = PeerConnection(broker.address, PUBLISH_CHANNEL)
    try:
        control.declare_exchange(EXCHANGE, durable=load.persistent)
        control.declare_queue(_QUEUE, durable=load.persistent)
        control.bind(_QUEUE, EXCHANGE, BINDING_KEY)
        yield control
        control.delete(_QUEUE, EXCHANGE)
    finally:
        control.close()


def _publish(load: Load, processes: ProcessTree) -> int:
    """Publish a load from a process of its own, showing progress, and return the number of confirms."""
    counters = Counters()
    with Crew({"publisher": publish}, load, counters) as crew:
        crew.gather("ready", _STALL_S)
        crew.tell("go")
        begun = time.monotonic()
        while not crew.said(_LOOK_S if _TERMINAL else _LOOK_LOGGED_S):
            _progress(counters.sent, load.messages, time.monotonic() - begun, processes.usage())
        crew.gather("done", _STALL_S)
    _progress(counters.sent, load.messages, time.monotonic() - begun, processes.usage())
    if _TERMINAL:
        print()
    return counters.sent


def publish(line: CrewPipe, load: Load, counters: Counters) -> None:
    """Run the publisher's process."""
    tape = publish_tape(_KEYS, load.body_bytes, persistent=load.persistent)
    peer = PeerConnection(load.address, PUBLISH_CHANNEL)
    peer.select_confirms()
    publisher = LoadPublisher(peer, tape, PublisherPace(_WINDOW, 0, _STALL_S), counters)
    line.tell("ready")
    line.await_word("go")
    publisher.run(load.messages, _STALL_S)
    peer.close()
    line.tell("done")


def _progress(sent: int, total: int, seconds: float, usage: TreeUsage) -> None:
    rate = sent / seconds if seconds else 0.0
    text = f"{sent:12,} of {total:,} published {rate:10,.0f}/s   RSS {usage.rss_bytes / 1e6:7.1f} MB"
    print(f"\r{text}" if _TERMINAL else f"{text}\n", end="", flush=True)


def _text(backlog: Backlog, silence: Silence) -> str:
    kind = "persistent" if backlog.persistent else "transient"
    before, after, peak = (
        f"{size / 1e6:.1f} MB" for size in (backlog.rss_before_bytes, backlog.rss_after_bytes, backlog.peak_rss_bytes)
    )
    disk = f"{backlog.disk_bytes / 1e6:,.1f} MB, {backlog.disk_bytes / backlog.messages:.0f} B per message"
    first, each = (f"{size / 1e6:+.2f} MB" for size in (silence.first_growth_bytes, silence.each_bytes))
    everything = "; that is all there were: more --messages say more" if silence.taken >= backlog.messages else ""
    said = (
        f"{backlog.messages:,} {kind} messages of {backlog.body_bytes} B queued, no consumer:",
        f"  published   {backlog.messages_per_s:,.0f}/s, {backlog.cpu_us_per_message:.2f} CPU-us per message",
        f"  RSS         {before} before, {after} after, peak {peak}",
        f"  disk        {disk}",
        "Consumers that read nothing at that queue, auto-ack, no prefetch:",
        f"  RSS         {first} by the first, {each} by each of {silence.connections}",
        f"  taken       {silence.taken:,} messages{everything}",
    )
    return "\n".join(said)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000, help="how many to queue (%(default)s)")
    parser.add_argument("--body", type=int, default=100, help="bytes of each (%(default)s)")
    parser.add_argument("--transient", action="store_true", help="transient messages in a transient queue")
    parser.add_argument("--connections", type=int, default=20, help="how many read nothing (%(default)s)")
    parser.add_argument("--rabbitmq", action="store_true", help="start RabbitMQ instead of SlotMQ")
    parser.add_argument(
        "--url", type=Address.parse, help="measure this running broker: amqp://user:password@host:port/vhost"
    )
    parser.add_argument("--pid", type=int, help="process of the broker at --url")
    parser.add_argument("--name", default="url", help="what to call the broker at --url")
    parser.add_argument("--dir", type=Path, help="where the broker's data folder goes")
    parser.add_argument("--json", type=Path, help="write the figures here instead of bench/results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
