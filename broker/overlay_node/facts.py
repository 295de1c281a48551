"""The state of this process's overlay brokers as rows for an operator, and the routes of a message with reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

from broker.overlay.aggregation import pattern_of
from broker.overlay.packets import Space, StreamName, Vector
from broker.overlay.virtual_time import NO_VECTOR
from broker.routing.pattern import split_words, words_match

if TYPE_CHECKING:
    from broker.overlay.inner import Inner
    from broker.overlay.interest import Interest
    from broker.overlay_node.held_brokers import HeldBrokers
    from broker.overlay_node.leaf_driver import LeafDriver
    from broker.settings.overlay import Neighbour, OverlayBroker

PATTERNS_SHOWN: Final = 20

Row = dict[str, Any]


def overlay_facts(brokers: HeldBrokers) -> list[Row]:
    """Return a row for each overlay broker of this process."""
    return [_broker_row(brokers, held) for held in brokers.held]


def overlay_flows(brokers: HeldBrokers) -> list[Row]:
    """Return the links of each overlay broker of this process, and the streams of its leaf.

    Cost: O(links + streams * interested leaves), whatever the number of patterns.
    """
    return [
        {
            "broker": held.broker,
            "leaf": held.leaf,
            "links": [_link_row(brokers, held, neighbour) for neighbour in held.neighbours],
            **(_leaf_fields(brokers.driver) if held.leaf and brokers.driver is not None else {}),
        }
        for held in brokers.held
    ]


def _broker_row(brokers: HeldBrokers, held: OverlayBroker) -> Row:
    leaf = brokers.driver if held.leaf else None
    interest = brokers.interest_of(held.broker)
    nodes = dict.fromkeys(neighbour.node for neighbour in held.neighbours)
    return {
        "broker": held.broker,
        "node": held.node,
        "leaf": held.leaf,
        "links": [_link_row(brokers, held, neighbour) for neighbour in held.neighbours],
        "leaves": [
            {"leaf": name, "node": node, "time": interest.time(name), "durable": name in interest.durable(node)}
            for node in nodes
            for name in sorted(interest.leaves(node))
        ],
        "patterns": [_patterns_row(interest, node, space) for node in nodes for space in interest.spaces(node)],
        **(_inner_fields(brokers.inners[held.broker]) if leaf is None else _leaf_fields(leaf)),
    }


def _link_row(brokers: HeldBrokers, held: OverlayBroker, neighbour: Neighbour) -> Row:
    """Return the state of a link.

    Shapes: `session` is the neighbour's unique number, or 0. `announced` is the serial of the last sent update, or 0
        while changes are waiting; `applied` is the serial of the last applied one.
    """
    link = brokers.links.get((held.broker, neighbour.broker))
    interest = brokers.interest_of(held.broker)
    return {
        "peer": neighbour.broker,
        "node": neighbour.node,
        "state": "down" if link is None else "full" if link.full else "up",
        "subscriptions": neighbour.subscriptions,
        "session": 0 if link is None else link.session,
        "announced": interest.announced(neighbour.node, neighbour.broker),
        "applied": interest.applied(neighbour.node, neighbour.broker),
        "sent_bytes": 0 if link is None else link.sent_bytes,
        "received_bytes": 0 if link is None else link.received_bytes,
    }


def _patterns_row(interest: Interest, node: str, space: Space) -> Row:
    patterns = interest.roots(node, space)
    return {
        "node": node,
        "vhost": space.vhost,
        "exchange": space.exchange,
        "count": len(patterns),
        "patterns": nsmallest(PATTERNS_SHOWN, patterns),
        "vector": dict(interest.vector(node, space)),
    }


def _leaf_fields(driver: LeafDriver) -> Row:
    streams = []
    for space, source in sorted(driver.leaf.sources.items()):
        needed = source.needed_from()
        streams.append(
            {
                "vhost": space.vhost,
                "exchange": space.exchange,
                "last": source.last,
                "sent": source.sent,
                "acked": needed - 1,
                "lag": source.last - needed + 1,
                "vector": dict(source.vector),
            }
        )
    received = [
        {
            **_stream_fields(stream),
            "position": sink.position,
            "reached": sink.reached,
            "lag": max(0, sink.reached - (sink.position or 0)),
            "repairs": sink.repairs,
        }
        for stream, sink in sorted(driver.leaf.sinks.items())
    ]
    counts = {"delivered": driver.delivered, "gaps": driver.gaps, "forced_out": driver.forced_out}
    return {"streams": streams, "received": received, **counts}


def _stream_fields(stream: StreamName) -> Row:
    return {"leaf": stream.leaf, "vhost": stream.space.vhost, "exchange": stream.space.exchange}


def _inner_fields(inner: Inner) -> Row:
    passing = [
        {**_stream_fields(stream), "reached": forwarding.reached, "from": forwarding.source_node}
        for stream, forwarding in sorted(inner.forwardings.items())
    ]
    counts = inner.counts
    return {"passing": passing, "matched": counts.matched, "filtered": counts.filtered, "flooded": counts.flooded}


# -- explain ----------------------------------------------------------------------------------------------------------


def explain(brokers: HeldBrokers, vhost: str, exchange: str | None, key: str) -> list[Row]:
    """Return the routes of a message from each broker of this process, with reasons, for one exchange or for all.

    Shapes: a row has the exchange, the broker, the tree node (`here` for the leaf's own queues), whether the message is
        sent there, the reason, the interested leaves beyond the node, and some matching patterns.
    """
    spaces = [Space(vhost, exchange)] if exchange is not None else _all_spaces(brokers, vhost)
    return [{"exchange": space.exchange, **row} for space in spaces for row in _verdicts(brokers, space, key)]


def _all_spaces(brokers: HeldBrokers, vhost: str) -> list[Space]:
    """Return the spaces of a vhost that exist here, or in which a neighbour has announced interest."""
    driver = brokers.driver
    found = set() if driver is None else set(driver.leaf.sources)
    for held in brokers.held:
        interest = brokers.interest_of(held.broker)
        for neighbour in held.neighbours:
            found.update(interest.spaces(neighbour.node))
    return sorted(space for space in found if space.vhost == vhost)


def _verdicts(brokers: HeldBrokers, space: Space, key: str) -> Iterator[Row]:
    for held in brokers.held:
        nodes = dict.fromkeys(neighbour.node for neighbour in held.neighbours)
        driver = brokers.driver
        if held.leaf and driver is not None:
            yield _here(driver, held.broker, space, key)
            source = driver.leaf.sources.get(space)
            vectors: Iterable[Vector] = () if source is None else (source.vector,)
        else:
            vectors = [
                forwarding.vectors.get(forwarding.vector_at, NO_VECTOR)
                for stream, forwarding in brokers.inners[held.broker].forwardings.items()
                if stream.space == space
            ]
        for node in nodes:
            yield _verdict(brokers.interest_of(held.broker), held.broker, node, space, key, vectors)


def _verdict(interest: Interest, broker: str, node: str, space: Space, key: str, vectors: Iterable[Vector]) -> Row:
    words = split_words(key)
    found = [text for text in sorted(interest.roots(node, space)) if words_match(pattern_of(text).words, words)]
    unknown = [vector for vector in vectors if not interest.sufficient(node, space, vector)]
    if interest.matches(node, space, key):
        goes, reason = True, f"wanted: {found[0]}" if found else "wanted"
    elif unknown:
        late = sorted({leaf for vector in unknown for leaf, time in vector.items() if interest.time(leaf) < time})
        goes, reason = True, f"not known yet what {', '.join(late)} wants"
    else:
        goes, reason = False, "nobody there wants it"
    return {
        "broker": broker,
        "to": node,
        "goes": goes,
        "reason": reason,
        "leaves": sorted(interest.vector(node, space)),
        "patterns": found[:PATTERNS_SHOWN],
    }


def _here(driver: LeafDriver, broker: str, space: Space, key: str) -> Row:
    """Return the row with the queues of this process to which the key of a message routes it."""
    held = driver.vhosts.get(space.vhost)
    exchange = None if held is None else held.engine.vhost.exchanges.get(space.exchange)
    queues: list[str] = []
    if held is None or exchange is None:
        reason = "no such exchange here"
    elif space.exchange not in held.overlay.streams:
        reason = "the exchange takes no part in the overlay"
    else:
        router = held.engine.vhost.router
        if router.dynamic(exchange):
            reason = "its headers decide"
        else:
            found = router.route(exchange, key).destinations
            queues = sorted(queue.name for queue in found if not (queue.is_overlay or queue.is_tap))
            reason = f"queues: {', '.join(queues)}" if queues else "no queue here is bound"
    return {"broker": broker, "to": "here", "goes": bool(queues), "reason": reason, "leaves": [], "patterns": []}
