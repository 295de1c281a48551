"""A lone client, which waits for each answer before its next call, as blocking clients do."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass
from statistics import median, quantiles

from bench.brokers import Broker
from bench.light import companion
from bench.messages.limits import Limits
from bench.meter import threads_s
from bench.run import Figures
from broker.perf import wire
from broker.perf.machine import ProcessTree
from broker.perf.peer import Address, PeerConnection

_QUEUE = "bench-lone"
_BODY = bytes(16)
_CHANNEL = 1
_BASIC_GET, _BASIC_GET_OK = (60, 70), (60, 71)

Call = Callable[[], None]


class NagleAddress(Address):
    """The address of a broker for a client that leaves Nagle's algorithm on, as Node's amqplib does."""

    def connect(self, limit_s: float, receive_bytes: int = 0, unsent_bytes: int = 0) -> socket.socket:
        """Return a connected socket that holds a small segment back while another is unacknowledged.

        Raises: OSError.
        """
        connected = super().connect(limit_s, receive_bytes, unsent_bytes)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        return connected


@dataclass(frozen=True, slots=True)
class LoneCall:
    """A call that a client repeats on one connection, with nothing else in flight."""

    kind: str
    stage: str = "flow"
    rounds: int = 2
    relayed: bool = False

    @property
    def name(self) -> str:
        return f"lone-{self.kind}"

    @property
    def title(self) -> str:
        return KINDS[self.kind][0]

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError.

        Units: times are medians of the calls as the client sees them; `cpu_us` is the broker's CPU time per call, to
        the nanosecond where the kernel keeps it.
        """
        with companion(broker), KINDS[self.kind][1](broker.address, limits.lone_calls) as call:
            call()  # the first one may fill a cache
            used_s = _used_s(broker)
            times = _timed(call, limits)
            used_s = _used_s(broker) - used_s
        figures = {
            "messages": len(times),
            "p50_us": median(times) * 1e6,
            "p99_us": quantiles(times, n=100, method="inclusive")[-1] * 1e6,
        }
        return figures | ({"cpu_us": used_s / len(times) * 1e6} if used_s else {})


def _timed(call: Call, limits: Limits) -> list[float]:
    times: list[float] = []
    ends_at = time.monotonic() + limits.lone_seconds
    while len(times) < 2 or (len(times) < limits.lone_calls - 1 and time.monotonic() < ends_at):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times


def _used_s(broker: Broker) -> float:
    if not broker.processes:
        return 0.0
    return sum(threads_s(ProcessTree(pid)) for pid in broker.processes.pids())


@contextmanager
def _connecting(address: Address, _calls: int) -> Iterator[Call]:
    """Connect, log in and open a channel; closing is not timed, but its CPU time counts."""
    opened: list[PeerConnection] = []
    try:
        yield lambda: opened.append(PeerConnection(address, _CHANNEL))
    finally:
        for peer in opened:
            peer.close()


@contextmanager
def _at_queue(address: Address, stock: int = 0) -> Iterator[PeerConnection]:
    """Provide a connection and a queue with `stock` messages; delete the queue afterwards."""
    peer = PeerConnection(address, _CHANNEL)
    try:
        peer.call(wire.queue_delete(_CHANNEL, _QUEUE), wire.QUEUE_DELETE_OK)  # left by a failed run
        peer.declare_queue(_QUEUE, durable=False)
        peer.socket.sendall(_publish() * stock)
        peer.call(peer.round_trip, wire.BASIC_QOS_OK)
        yield peer
        peer.call(wire.queue_delete(_CHANNEL, _QUEUE), wire.QUEUE_DELETE_OK)
    finally:
        peer.close()


@contextmanager
def _confirming(address: Address, _calls: int) -> Iterator[Call]:
    with _at_queue(address) as peer:
        peer.select_confirms()
        yield lambda: _called(peer, wire.BASIC_ACK, _publish())


@contextmanager
def _getting(address: Address, calls: int) -> Iterator[Call]:
    with _at_queue(address, calls) as peer:
        yield lambda: _called(peer, _BASIC_GET_OK, _get())


@contextmanager
def _publishing_and_getting(address: Address, _calls: int) -> Iterator[Call]:
    """Publish, then get that message; the publish goes out in two writes, its method with the header, and its body."""
    with _at_queue(address) as peer:
        body = wire.frame(wire.BODY, _CHANNEL, _BODY)
        head = _publish().removesuffix(body)
        yield lambda: _called(peer, _BASIC_GET_OK, head, body, _get())


@contextmanager
def _acking(address: Address, calls: int) -> Iterator[Call]:
    with _at_queue(address, calls + 1) as peer:
        peer.consume(_QUEUE, "lone", auto_ack=False, prefetch=1)
        peer.await_method(wire.BASIC_DELIVER)
        tags = iter(range(1, calls + 1))
        yield lambda: _called(peer, wire.BASIC_DELIVER, wire.basic_ack(_CHANNEL, next(tags), multiple=False))


def _with_nagle(
    kind: Callable[[Address, int], AbstractContextManager[Call]],
) -> Callable[[Address, int], AbstractContextManager[Call]]:
    return lambda address, calls: kind(NagleAddress(*astuple(address)), calls)


def _called(peer: PeerConnection, answer: tuple[int, int], *writes: bytes) -> None:
    for octets in writes:
        peer.socket.sendall(octets)
    peer.await_method(answer)


def _publish() -> bytes:
    return wire.publish(_CHANNEL, "", _QUEUE, _BODY, persistent=False)


def _get() -> bytes:
    return wire.method(_CHANNEL, _BASIC_GET, b"\x00\x00" + wire.short_string(_QUEUE) + b"\x01")


KINDS: Mapping[str, tuple[str, Callable[[Address, int], AbstractContextManager[Call]]]] = {
    "connect": ("connect, log in and open a channel", _connecting),
    "confirm": ("publish a transient message, wait for its confirm", _confirming),
    "get": ("get a message", _getting),
    "publish-get": ("publish a message and get it", _publishing_and_getting),
    "ack": ("ack a delivery, wait for the next (prefetch 1)", _acking),
    "nagle-connect": ("connect, with Nagle's algorithm on", _with_nagle(_connecting)),
    "nagle-get": (
        "publish a message in two writes and get it, with Nagle's algorithm on",
        _with_nagle(_publishing_and_getting),
    ),
}
"""The kinds of calls: the title, and a context manager that connects and provides the call."""
