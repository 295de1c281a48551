"""The curves: queues, messages behind a consumer, consumers of one queue, bindings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from bench.growth.curve import Curve
from bench.growth.ground import LEAD, WINDOW, bind_all, consume_all, control, declare_bound, shuffled, source
from bench.growth.herd import Herd, Sink
from bench.growth.plan import KEYS, Plan
from broker.perf.faults import Stalled
from broker.perf.peer import Address, PeerConnection
from broker.perf.spool import PASS_DIGITS
from broker.perf.wire import CONSUME_CHANNEL

PANELS = ("queues", "backlog", "consumers", "bindings")
ROW = 16

_QUEUE = "growth"
_PREFETCH = 1_000
_ACK_EVERY = 100
_CROWD_PREFETCH = 100  # of each consumer, with many consumers
_CROWD_ACK_EVERY = 10
_CROWD_BUFFER_BYTES = 1 << 16
_FILL_WINDOW = 10_000
_FILL_LIMIT_S = 400.0
_LOOK_S = 5.0
_HEAD = 400_000  # messages that a broker may hold in memory; later ones come from disk
_SEED = 7

Tell = Callable[[str], None]


def curves(plan: Plan) -> list[Curve]:
    """Return all curves of a plan; the one that takes longest is first, while there is time."""
    warm = 3 * KEYS
    return [
        Curve(
            "backlog", "backlog", "as many published as consumed, persistent", plan.backlog, _backlog,
            lambda size: max(warm, min(size, _HEAD)),
        ),
        Curve("queues", "queues, one by one", "one message to each in turn", plan.queues, _one_by_one, lambda _: warm),
        Curve("queues", "queues, in rows", f"{ROW} messages in a row to each", plan.queues, _in_rows, lambda _: warm),
        Curve(
            "consumers", "consumers, one connection", "all on one channel", plan.consumers, _on_one_connection,
            lambda _: warm,
        ),
        Curve(
            "consumers", "consumers, a connection each", "a connection each", plan.consumers, _on_many_connections,
            lambda _: warm,
        ),
        Curve(
            "bindings", "bindings, new keys", "keys that never come again", plan.bindings,
            partial(_bindings, renewed=True), lambda _: warm,
        ),
        Curve(
            "bindings", "bindings, known keys", f"{KEYS:,} keys", plan.bindings, partial(_bindings, renewed=False),
            lambda _: warm,
        ),
    ]  # fmt: skip


def _one_by_one(address: Address, count: int, _tell: Tell) -> Herd:
    """Set up queues that get one message each in turn: the worst case, because no queue receives a batch."""
    keys = shuffled(f"g.{number % count:05d}.{number:05d}" for number in range(KEYS))
    return _spread(address, count, keys)


def _in_rows(address: Address, count: int, _tell: Tell) -> Herd:
    """Set up queues that get several messages in a row, as from publishers that stay with a queue for a while."""
    mixed = Random(_SEED).sample(range(KEYS), KEYS)
    keys = [f"g.{number % count:05d}.{number:05d}" for number in mixed for _ in range(ROW)]
    return _spread(address, count, keys)


def _spread(address: Address, count: int, keys: list[str]) -> Herd:
    peer = control(address)
    names = [f"growth-{place:05d}" for place in range(count)]
    declare_bound(peer, names, [f"g.{place:05d}.#" for place in range(count)])
    consume_all(peer, names, _PREFETCH)
    return Herd([source(address, keys)], [Sink(peer, _ACK_EVERY)], lead=LEAD)


def _one_queue(address: Address, *, durable: bool = False) -> tuple[PeerConnection, list[str]]:
    """Return a connection that declared one queue for all messages, and the keys."""
    peer = control(address, durable=durable)
    declare_bound(peer, [_QUEUE], ["g.#"], durable=durable)
    return peer, shuffled(f"g.{number % 97:05d}.{number:05d}" for number in range(KEYS))


def _backlog(address: Address, count: int, tell: Tell) -> Herd:
    """Measure one queue with a backlog of this many messages while a consumer takes messages from another."""
    peer, keys = _one_queue(address, durable=True)
    if count:
        _fill(address, keys, count, tell)
    peer.consume(_QUEUE, "c", auto_ack=False, prefetch=_PREFETCH)
    return Herd([source(address, keys, persistent=True)], [Sink(peer, _ACK_EVERY)], lead=LEAD, paced=True)


def _fill(address: Address, keys: list[str], count: int, tell: Tell) -> None:
    herd = Herd([source(address, keys, window=_FILL_WINDOW, persistent=True)], [], lead=count)
    spent_s = 0.0
    try:
        while herd.confirmed < count:
            spent_s += herd.run(_LOOK_S, lambda: herd.confirmed >= count).seconds
            if spent_s >= _LOOK_S:
                tell(f"backlog: {herd.confirmed:,} of {count:,} queued, {herd.confirmed / spent_s:,.0f}/s")
            if spent_s > _FILL_LIMIT_S:
                raise Stalled(f"{herd.confirmed:,} of {count:,} messages queued after {spent_s:.0f} s")
    finally:
        herd.close()


def _on_one_connection(address: Address, count: int, _tell: Tell) -> Herd:
    """Set up consumers of one queue on one channel."""
    peer, keys = _one_queue(address)
    consume_all(peer, [_QUEUE] * count, _CROWD_PREFETCH)
    return Herd([source(address, keys)], [Sink(peer, _CROWD_ACK_EVERY)], lead=LEAD)


def _on_many_connections(address: Address, count: int, _tell: Tell) -> Herd:
    """Set up consumers of one queue with a connection each."""
    control_peer, keys = _one_queue(address)
    control_peer.close()
    sinks = []
    for _ in range(count):
        peer = PeerConnection(address, CONSUME_CHANNEL)
        peer.consume(_QUEUE, "c", auto_ack=False, prefetch=_CROWD_PREFETCH)
        sinks.append(Sink(peer, _CROWD_ACK_EVERY, buffer_bytes=_CROWD_BUFFER_BYTES))
    return Herd([source(address, keys)], sinks, lead=LEAD)


def _bindings(address: Address, count: int, _tell: Tell, *, renewed: bool) -> Herd:
    """Set up wildcard bindings of which one matches; the others share words with the keys, in their positions."""
    peer, keys = _one_queue(address)
    declare_bound(peer, ["growth-other"], ["other.*"])
    if renewed:
        keys = [f"{key}.{PASS_DIGITS}" for key in keys]
    bind_all(peer, "growth-other", (_misses(number) for number in range(count - 2)))
    peer.consume(_QUEUE, "c", auto_ack=False, prefetch=_PREFETCH)
    return Herd([source(address, keys, window=WINDOW, renewed=renewed)], [Sink(peer, _ACK_EVERY)], lead=LEAD)


def _misses(number: int) -> str:
    """Return a pattern that matches no routing key of the curves."""
    if number % 3 == 0:
        return f"g.{number % 97:05d}.*.x{number}"
    if number % 3 == 1:
        return f"*.*.x{number}.#"
    return f"x{number}.#"
