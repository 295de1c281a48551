"""Measures how long other clients wait while one operation works on a large group of messages or queues.

Each operation runs on a new broker. A light client records its longest wait, from when a message was due until it
arrived, and the broker's CPU time in such a wait, which shows whether the broker or the machine was slow. The broker
records the CPU time of its loop's turns; a second broker, run from sources, names the function of the longest one.
"""

from __future__ import annotations

import json
import select
import struct
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import brokers
from bench.brokers import PROJECT, Broker, run_slotmq
from bench.ground import BODY_BYTES, EXCHANGE, control, declare_bound, fill, sink
from bench.growth.turn_sampler import prefix
from bench.herd import Herd
from bench.light import LightClient
from bench.stage import Stage
from broker.perf import wire
from broker.perf.faults import RunFailed
from broker.perf.peer import Address, PeerConnection
from broker.perf.process_group import ProcessGroup, ProcessPipe
from broker.perf.wire import CONSUME_CHANNEL

EVERY_S: Final = 0.001
_LIMIT_S: Final = 120.0
_POLL_S: Final = 0.02
_AFTER_S: Final = 1.0  # work that an operation leaves for later turns is part of it
_QUEUE: Final = "pauses"
_TARGET: Final = "pauses-target"
_TRANSACTION: Final = 100_000  # acks or publishes, which fit into the default of amqp.tx_max_bytes
_METHODS: Final = {
    "nack": (60, 120),
    "recover": (60, 110),
    "purge": (50, 30),
    "tx.select": (90, 10),
    "commit": (90, 20),
    "rollback": (90, 30),
    "cancel": (60, 30),
}


class Group:
    """A broker with `count` messages or `count // 20` queues, and the client that works on them."""

    def __init__(self, broker: Broker, package: Path, count: int, folder: Path) -> None:
        self.broker = broker
        self.count = count
        self.peer = control(broker.address)
        self.file = folder / "definitions.json"
        self._package = package

    def fill(self) -> None:
        """Publish the messages into one queue."""
        declare_bound(self.peer, [_QUEUE, _TARGET], ["g.#", "t.#"], durable=False)
        fill(self.broker.address, ["g.x"], self.count, _LIMIT_S)
        self.await_ready(self.count)

    def hold(self) -> None:
        """Publish the messages, and consume all of them without an ack."""
        self.fill()
        self.close()
        self.peer = PeerConnection(self.broker.address, CONSUME_CHANNEL)
        self.peer.consume(_QUEUE, "c", auto_ack=False, prefetch=0)
        herd = Herd([], [sink(self.peer, 0)])
        herd.reach(_LIMIT_S, lambda: herd.delivered >= self.count, f"fewer than {self.count:,} messages arrived")
        self.peer.received.clear()  # the herd has counted these deliveries
        self.peer.socket.setblocking(True)

    def transact(self) -> None:
        """Publish persistent messages in a transaction."""
        declare_bound(self.peer, [_QUEUE], ["g.#"], durable=True)
        self.call("tx.select")
        message = wire.publish(self.peer.channel, EXCHANGE, "g.x", bytes(BODY_BYTES), persistent=True)
        self.peer.socket.sendall(message * min(self.count, _TRANSACTION))
        self.peer.call(self.peer.round_trip, wire.BASIC_QOS_OK)

    def declare(self) -> None:
        """Import the queues, each with a binding."""
        self.write_definitions()
        self.slotmq("definitions", "import", str(self.file))

    def write_definitions(self) -> None:
        names = [f"pauses-{number:06d}" for number in range(self.count // 20)]
        common = {"vhost": "/", "arguments": {}}
        queues = [{"name": name, "durable": True, "auto_delete": False, **common} for name in names]
        bound = {"source": "amq.topic", "destination_type": "queue", **common}
        bindings = [{"destination": name, "routing_key": f"{name}.#", **bound} for name in names]
        self.file.write_text(json.dumps({"queues": queues, "bindings": bindings}))

    def send(self, method: str, arguments: bytes) -> None:
        self.peer.socket.sendall(wire.method(self.peer.channel, _METHODS[method], arguments))

    def call(self, method: str, arguments: bytes = b"") -> None:
        """Send a method, and read until its answer."""
        self.send(method, arguments)
        class_id, method_id = _METHODS[method]
        self.peer.await_method((class_id, method_id + 1))

    def slotmq(self, *words: str) -> None:
        """Run a `slotmq` command on the broker. Raises: RunFailed."""
        run_slotmq(self._package, *words, "--data-dir", str(self.broker.folder), limit_s=_LIMIT_S)

    def await_ready(self, ready: int) -> None:
        """Wait until the queue has this many ready messages. Raises: RunFailed."""
        stop_at = time.monotonic() + _LIMIT_S
        with closing(PeerConnection(self.broker.address, CONSUME_CHANNEL)) as peer:
            while (found := peer.queue_counts([_QUEUE])[0]) != ready:
                if time.monotonic() > stop_at:
                    raise RunFailed(f"{found:,} messages ready, not {ready:,}")
                time.sleep(_POLL_S)

    def close(self) -> None:
        self.peer.socket.close()


def _return_all(method: str, arguments: bytes, *, requeued: bool = True) -> Callable[[Group], None]:
    """Return an operation that cancels the consumer, so that nothing is redelivered, and returns all its messages."""

    def act(group: Group) -> None:
        group.call("cancel", wire.short_string("c") + b"\0")
        group.send(method, arguments)
        group.await_ready(group.count if requeued else 0)

    return act


def _roll_back(group: Group) -> None:
    group.call("tx.select")
    tag = min(group.count, _TRANSACTION)
    group.peer.socket.sendall(wire.basic_ack(group.peer.channel, tag, multiple=True))
    group.call("rollback")


def _close_channel(group: Group) -> None:
    group.peer.call(wire.close(group.peer.channel, wire.CHANNEL_CLOSE), wire.CHANNEL_CLOSE_OK)
    group.await_ready(group.count)


def _close_socket(group: Group) -> None:
    group.peer.socket.close()
    group.await_ready(group.count)


def _ack(group: Group) -> None:
    group.peer.socket.sendall(wire.basic_ack(group.peer.channel, 0, multiple=True))
    group.peer.call(group.peer.round_trip, wire.BASIC_QOS_OK)


def _delete(group: Group) -> None:
    group.peer.call(wire.queue_delete(group.peer.channel, _QUEUE), wire.QUEUE_DELETE_OK)


def _policy(definition: Mapping[str, int]) -> Callable[[Group], None]:
    def act(group: Group) -> None:
        group.slotmq("policy", "set", "pauses", f"^{_QUEUE}$", json.dumps(definition))
        group.await_ready(0)

    return act


Operation = tuple[Callable[[Group], None], Callable[[Group], None]]
"""An operation on a group: the first function creates the group, the second returns once the operation is complete."""

OPERATIONS: Final[Mapping[str, Operation]] = {
    "purge": (Group.fill, lambda group: group.call("purge", b"\0\0" + wire.short_string(_QUEUE) + b"\0")),
    "delete": (Group.fill, _delete),
    "delete, unacked": (Group.hold, _delete),
    "ack": (Group.hold, _ack),
    "nack, requeue": (Group.hold, _return_all("nack", struct.pack(">QB", 0, 3))),
    "nack": (Group.hold, _return_all("nack", struct.pack(">QB", 0, 1), requeued=False)),
    "recover": (Group.hold, _return_all("recover", b"\1")),
    "commit": (Group.transact, lambda group: group.call("commit")),
    "rollback": (Group.hold, _roll_back),
    "channel close": (Group.hold, _close_channel),
    "connection lost": (Group.hold, _close_socket),
    "max-length lowered": (Group.fill, _policy({"max-length": 0})),
    "message-ttl lowered": (Group.fill, _policy({"message-ttl": 1})),
    "move": (Group.fill, lambda group: group.slotmq("move", _QUEUE, "--to", _TARGET)),
    "import": (Group.write_definitions, lambda group: group.slotmq("definitions", "import", str(group.file))),
    "the same import": (Group.declare, lambda group: group.slotmq("definitions", "import", str(group.file))),
    "export": (Group.declare, lambda group: group.slotmq("definitions", "export", f"{group.file}.out")),
    "list": (Group.declare, lambda group: group.slotmq("list", "queues")),
    "policy": (Group.declare, lambda group: group.slotmq("policy", "set", "p", "^pauses", '{"max-length": 9}')),
}
"""The operations by their names in the table. The last five work on queues, all others on messages."""


def measure(stage: Stage) -> None:
    """Measure each operation on the product, and find the function of its longest turn on sources."""
    stage.in_turn({f"the pause of {name}": partial(_measure, stage, name) for name in OPERATIONS}, 1)


def _measure(stage: Stage, name: str, _number: int) -> None:
    (prepare, act), count = OPERATIONS[name], stage.plan.group
    turns = stage.folder / f"turns-{len(stage.run.rows('pauses'))}"
    with (
        brokers.slotmq(stage.new_folder(), package=stage.package, prefix=prefix(turns, names=False)) as broker,
        closing(Group(broker, stage.package, count, stage.folder)) as group,
    ):
        figures = paused(group, OPERATIONS[name], turns)
    stage.add("pauses", figures, title=name)
    named = turns.with_suffix(".named")
    with (
        brokers.slotmq(stage.new_folder(), package=PROJECT, prefix=prefix(named, names=True)) as broker,
        closing(Group(broker, PROJECT, count // 4, stage.folder)) as group,
    ):
        prepare(group)
        begun = time.monotonic()
        act(group)
        time.sleep(_AFTER_S)
    stage.run.add("turns", {"function": _longest_named(named, begun)}, title=name)


def _turns(file: Path, begun: float) -> list[tuple[float, str | None]]:
    """Return the turns since a time of the monotonic clock: their seconds, and the function if that is known."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [(float(took_s), name) for ended, took_s, name in lines if ended >= begun]


def _longest_named(file: Path, begun: float) -> str:
    named = [turn for turn in _turns(file, begun) if turn[1] is not None]
    return f"{max(named)[1]}" if named else "none over 10 ms"


def paused(group: Group, operation: Operation, turns: Path) -> dict[str, Any]:
    """Return the waits of a light client during an operation, the longest turn, and the time that it took."""
    prepare, act = operation
    prepare(group)
    with ProcessGroup({"light": watch}, group.broker.address, group.broker.service.processes.root) as workers:
        workers.gather("ready", _LIMIT_S)
        begun = time.monotonic()
        act(group)
        took_ms = (time.monotonic() - begun) * 1000
        time.sleep(_AFTER_S)
        workers.send("stop")
        longest_ms = 1000 * max([took_s for took_s, _ in _turns(turns, begun)], default=0.0)
        return {**workers.gather("done", _LIMIT_S)["light"], "turn_ms": longest_ms, "took_ms": took_ms}


def watch(line: ProcessPipe, address: Address, pid: int) -> None:
    """Run a light client in its own process, for a broker with this pid, until told to stop."""
    clock = ~pid << 3 | 2  # clock_getcpuclockid(3) on Linux: the CPU time of all threads of a process
    light = LightClient(address, EXCHANGE, every_s=EVERY_S)
    light.await_route()
    poller = select.poll()
    poller.register(line, select.POLLIN)
    line.report("ready")
    times = light.run(sys.maxsize, lambda: bool(poller.poll(0)), lambda: time.clock_gettime_ns(clock))
    figures = {"p50_ms": times.percentile(50) / 1e6, "max_ms": times.percentile(100) / 1e6}
    line.report("done", {**figures, "cpu_ms": light.spent.percentile(100) / 1e6})
    light.close()
