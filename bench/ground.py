"""Sets up loads: queues, bindings and consumers by the thousand, and spools of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from random import Random

from bench.herd import Herd
from broker.perf import wire
from broker.perf.histogram import Histogram
from broker.perf.peer import Address, PeerConnection
from broker.perf.receiver import DeliveryQuota, LatencyRecorder, Receiver, ReceiverPace
from broker.perf.sender import Sender, SenderPace
from broker.perf.spool import Material, Spool
from broker.perf.wire import CONSUME_CHANNEL, PUBLISH_CHANNEL

EXCHANGE = "growth"
BODY_BYTES = 16
WINDOW = 1_000
LEAD = 2_000
PREFETCH = 1_000
ACK_EVERY = 100
_SPOOL_MAX_BYTES = 64 << 20
_CHUNK_BYTES = 65_536
_PACED_WINDOW = 20_000
_FILL_WINDOW = 10_000
_PACED_BODY_BYTES = 64
_UNTIMED = LatencyRecorder(0)
_SEED = 20_240_229


def control(address: Address, exchange: str = EXCHANGE, *, durable: bool = False) -> PeerConnection:
    """Return a connection to declare and consume with, after declaring the exchange."""
    peer = PeerConnection(address, CONSUME_CHANNEL)
    peer.declare_exchange(exchange, durable=durable)
    return peer


def declare_bound(
    peer: PeerConnection,
    names: Sequence[str],
    binding_keys: Sequence[str],
    exchange: str = EXCHANGE,
    *,
    durable: bool = False,
) -> None:
    """Declare queues and bind each by one key."""
    channel = peer.channel
    peer.call_all([wire.queue_declare(channel, name, durable=durable) for name in names], wire.QUEUE_DECLARE_OK)
    pairs = zip(names, binding_keys, strict=True)
    peer.call_all([wire.queue_bind(channel, name, exchange, key) for name, key in pairs], wire.QUEUE_BIND_OK)


def bind_all(peer: PeerConnection, name: str, binding_keys: Iterable[str]) -> None:
    """Bind one queue by many keys."""
    peer.call_all((wire.queue_bind(peer.channel, name, EXCHANGE, key) for key in binding_keys), wire.QUEUE_BIND_OK)


def consume_all(peer: PeerConnection, names: Sequence[str], prefetch: int = PREFETCH) -> None:
    """Start a consumer on each queue, all on one channel; tags of equal length make deliveries of equal length."""
    peer.call(wire.basic_qos(peer.channel, prefetch), wire.BASIC_QOS_OK)
    requests = [
        wire.basic_consume(peer.channel, name, f"c{place:06d}", auto_ack=False) for place, name in enumerate(names)
    ]
    peer.call_all(requests, wire.BASIC_CONSUME_OK)


def source(
    address: Address,
    keys: Sequence[str],
    *,
    exchange: str = EXCHANGE,
    window: int = WINDOW,
    messages: int | None = None,
    per_s: float | None = None,
    body_bytes: int = BODY_BYTES,
    persistent: bool = False,
    renewed: bool = False,
    confirms: bool = True,
) -> Sender:
    """Return a publisher that repeats these keys in order; `window` 0 means no limit of unconfirmed messages.

    Raises: Refusal, OSError.
    """
    peer = PeerConnection(address, PUBLISH_CHANNEL)
    if confirms:
        peer.select_confirms()
    material = Material(exchange, tuple(keys), body_bytes, persistent=persistent, renewed=renewed)
    pace = SenderPace(window, messages, per_s)
    return Sender(peer, Spool(material, 0, _SPOOL_MAX_BYTES), pace, Histogram(), _CHUNK_BYTES)


def paced_source(address: Address, keys: Sequence[str], per_s: float, exchange: str = EXCHANGE) -> Sender:
    """Return a publisher with a schedule: each message contains the time at which it was due."""
    return source(address, keys, exchange=exchange, window=_PACED_WINDOW, per_s=per_s, body_bytes=_PACED_BODY_BYTES)


def fill(address: Address, keys: Sequence[str], count: int, limit_s: float, *, persistent: bool = False) -> None:
    """Publish `count` messages with these keys in turn, and wait for their confirms. Raises: Stalled."""
    with closing(Herd([source(address, keys, window=_FILL_WINDOW, messages=count, persistent=persistent)], [])) as herd:
        herd.reach(limit_s, lambda: herd.confirmed >= count, f"fewer than {count:,} messages were confirmed")


def sink(peer: PeerConnection, ack_every: int = ACK_EVERY, latencies: LatencyRecorder = _UNTIMED) -> Receiver:
    """Return a consumer that sends one ack for every `ack_every` deliveries; 0 means auto-ack."""
    return Receiver(peer, ReceiverPace(ack_every, BODY_BYTES), latencies, DeliveryQuota(None))


def shuffled(keys: Iterable[str]) -> list[str]:
    """Return the keys in an order that no cache can predict, the same in every run."""
    mixed = list(keys)
    Random(_SEED).shuffle(mixed)
    return mixed
