"""Publishes a tape of always new or recurring routing keys to one topic exchange, and counts the arrivals."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from bench.brokers import Broker
from broker.perf import wire
from broker.perf.peer import PeerConnection

EXCHANGE, QUEUE = "bench-topics", "bench-topics"
CHANNEL = 1
BODY = bytes(16)
_CHUNK_MESSAGES = 2000
_LIMIT_S = 400.0


@dataclass(frozen=True, slots=True)
class Tape:
    """Encoded messages, concatenated. Shapes: `ends` has the end offset of each message."""

    buffer: bytes
    ends: list[int]


@dataclass(frozen=True, slots=True)
class Sent:
    """The counts of one run; `arrived` is the growth of the queue.

    Units: `cpu_s` is 0 for a broker whose processes we may not inspect.
    """

    messages: int
    seconds: float
    cpu_s: float
    arrived: int


def encode(keys: Sequence[str]) -> Tape:
    """Return transient messages with these routing keys."""
    pieces = [wire.publish(CHANNEL, EXCHANGE, key, BODY, persistent=False) for key in keys]
    return Tape(b"".join(pieces), list(accumulate(map(len, pieces))))


def open_peer(broker: Broker) -> PeerConnection:
    """Return a connection to a broker, with exchange and queue declared."""
    peer = PeerConnection(broker.address, CHANNEL)
    peer.socket.settimeout(_LIMIT_S)
    peer.declare_exchange(EXCHANGE, durable=False)
    peer.declare_queue(QUEUE, durable=False)
    return peer


def bind_all(peer: PeerConnection, patterns: Sequence[str]) -> float:
    """Bind the queue by every pattern, without waiting for each answer, and return the seconds until all exist."""
    begun = time.monotonic()
    names = b"\x00\x00" + wire.short_string(QUEUE) + wire.short_string(EXCHANGE)
    no_wait = b"\x01" + wire.long_string(b"")
    for at in range(0, len(patterns), 1000):
        arguments = (names + wire.short_string(text) + no_wait for text in patterns[at : at + 1000])
        peer.socket.sendall(b"".join(wire.method(CHANNEL, wire.QUEUE_BIND, one) for one in arguments))
        peer.settle()
    return time.monotonic() - begun


def publish(broker: Broker, peer: PeerConnection, tape: Tape, seconds: float) -> Sent:
    """Publish the tape, or as much of it as the time allows, and return when the broker has routed it.

    A round trip on the same channel follows the last message, and the queue's own count follows the round trip: the
    count excludes messages that are not routed by then.
    """
    view = memoryview(tape.buffer)
    sync = wire.basic_qos(CHANNEL, 0)
    held = peer.declare_queue(QUEUE, durable=False)
    before = _cpu_s(broker)
    begun = time.monotonic()
    at = messages = 0
    while messages < len(tape.ends) and time.monotonic() - begun < seconds:
        first = not messages
        messages = min(len(tape.ends), messages + _CHUNK_MESSAGES)
        stop = tape.ends[messages - 1]
        peer.socket.sendall(view[at:stop])
        at = stop
        if first:
            peer.socket.sendall(sync)
        else:
            peer.call(sync, wire.BASIC_QOS_OK)  # the answer is that of the previous chunk: one is always in flight
    peer.call(b"", wire.BASIC_QOS_OK)
    took_s = time.monotonic() - begun
    arrived = peer.declare_queue(QUEUE, durable=False) - held
    return Sent(messages, took_s, _cpu_s(broker) - before, arrived)


def _cpu_s(broker: Broker) -> float:
    return broker.processes.usage().cpu_s if broker.processes else 0.0


def ceiling(tape: Tape) -> float:
    """Return messages per second into a socket whose reader discards everything: the generator's own limit."""
    ours, theirs = socket.socketpair()
    reader = threading.Thread(target=_drain, args=(theirs,))
    reader.start()
    view = memoryview(tape.buffer)
    begun = time.monotonic()
    at = 0
    for last in range(_CHUNK_MESSAGES - 1, len(tape.ends), _CHUNK_MESSAGES):
        ours.sendall(view[at : tape.ends[last]])
        at = tape.ends[last]
    took_s = time.monotonic() - begun
    ours.close()
    reader.join()
    theirs.close()
    return len(tape.ends) // _CHUNK_MESSAGES * _CHUNK_MESSAGES / took_s


def _drain(end: socket.socket) -> None:
    buffer = bytearray(1 << 20)
    while end.recv_into(buffer):
        continue
