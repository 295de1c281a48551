"""Two processes that measure the latency of single messages: one publishes at a steady rate, one consumes.

Invariant: both read the monotonic clock of one machine.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from bench.counters import Counters
from broker.perf import wire
from broker.perf.crew import CrewPipe
from broker.perf.faults import Refusal
from broker.perf.peer import Address, PeerConnection
from broker.perf.wire import CONSUME_CHANNEL, PUBLISH_CHANNEL

EXCHANGE = "bench"
QUEUE = "bench-latency"
TAG = "bench"
_STAMP = Struct(">q")
_KEYS = 1000
_LATE_S = 30.0


@dataclass(frozen=True, slots=True)
class Errand:
    """The task of the two processes. Shapes: `file` receives pairs in ns: when a message was due, when it arrived."""

    address: Address
    rate: int
    body_bytes: int
    file: Path


def publish(line: CrewPipe, errand: Errand, counters: Counters) -> None:
    """Run the publisher's process: send a message at each tick until `counters.total` is 0."""
    peer = PeerConnection(errand.address, PUBLISH_CHANNEL)
    padding = bytes(errand.body_bytes - _STAMP.size)
    line.tell("ready")
    line.await_word("go")
    step_ns = 1_000_000_000 // errand.rate
    due_ns = time.monotonic_ns()
    sent = 0
    while counters.total:
        wait_ns = due_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        # The tick, not the moment of sending: a broker that delays the publisher must not look faster.
        body = _STAMP.pack(due_ns) + padding
        peer.socket.sendall(wire.publish(PUBLISH_CHANNEL, EXCHANGE, f"probe.{sent % _KEYS}", body, persistent=True))
        sent += 1
        due_ns += step_ns
    counters.sent = sent
    line.tell("done", {"sent": sent})
    line.await_word("leave")
    peer.close()


def consume(line: CrewPipe, errand: Errand, counters: Counters) -> None:
    """Run the consumer's process: read until every sent message has arrived, and write the times into the file."""
    peer = PeerConnection(errand.address, CONSUME_CHANNEL)
    peer.consume(QUEUE, TAG, auto_ack=True, prefetch=0)
    line.tell("ready")
    line.await_word("go")
    times = array("q")
    buffer = bytearray(peer.received)
    peer.socket.settimeout(0.2)
    give_up_at = 0.0
    while counters.total or len(times) < 2 * counters.sent:
        if not counters.total:
            give_up_at = give_up_at or time.monotonic() + _LATE_S
            if time.monotonic() > give_up_at:
                break
        try:
            chunk = peer.socket.recv(1 << 18)
        except TimeoutError:
            continue
        if not chunk:
            raise Refusal("the broker closed the consumer's socket")
        now_ns = time.monotonic_ns()
        buffer += chunk
        del buffer[: _take(buffer, now_ns, times)]
    with errand.file.open("wb") as file:
        times.tofile(file)
    line.tell("done", {"delivered": len(times) // 2})
    line.await_word("leave")
    peer.close()


def _take(buffer: bytearray, now_ns: int, times: array[int]) -> int:
    """Record the messages whose frames are complete, and return the number of bytes processed."""
    at, end = 0, len(buffer)
    while end - at >= wire.FRAME_OVERHEAD_BYTES:
        kind, _, size = wire.FRAME_HEAD.unpack_from(buffer, at)
        after = at + size + wire.FRAME_OVERHEAD_BYTES
        if after > end:
            break
        if kind == wire.BODY:
            times.append(_STAMP.unpack_from(buffer, at + 7)[0])
            times.append(now_ns)
        at = after
    return at


def read_times(path: Path) -> list[tuple[int, int]]:
    """Return the consumer's times: pairs of when a message was due and when it arrived."""
    times = array("q")
    times.frombytes(path.read_bytes())
    return list(zip(times[::2], times[1::2], strict=True))
