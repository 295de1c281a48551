"""Which brokers of a tree node a stream goes to, and which one a request goes to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from hashlib import blake2b

from broker.overlay.packets import StreamName


@lru_cache(maxsize=65_536)
def weight(stream: StreamName, broker: str) -> int:
    """Return the weight of a broker for a stream: the same at every broker and after every restart.

    Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998: of the brokers that live
    the heaviest is taken, so the loss of one moves its own streams alone.
    """
    text = f"{stream.leaf}\0{stream.space.vhost}\0{stream.space.exchange}\0{broker}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def choose(
    stream: StreamName,
    reachable: Mapping[str, Collection[str]],
    wanted: Collection[str],
    avoided: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the brokers to send a stream to so that it arrives at all wanted leaves that any of them can reach.

    `reachable` has the leaves that each live broker of the tree node can reach. One broker is enough unless no broker
    reaches all; then each further one adds the most leaves. Brokers of `avoided` come last, for leaves that no other
    broker reaches.

    Cost: the brokers times the wanted leaves.
    """
    ranked = sorted(reachable, key=lambda broker: (broker in avoided, -weight(stream, broker)))
    if len(ranked) < 2:
        return tuple(ranked)
    preferred = [broker for broker in ranked if broker not in avoided]
    chosen: list[str] = []
    missing = set(wanted)
    for brokers in (preferred, ranked):
        left = {leaf for leaf in missing if any(leaf in reachable[broker] for broker in brokers)}
        missing -= left
        while left:
            best = max(brokers, key=lambda broker: sum(leaf in reachable[broker] for leaf in left))
            chosen.append(best)
            left.difference_update(reachable[best])
    return tuple(chosen) or (ranked[0],)
