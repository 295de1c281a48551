"""Bytes on every link with and without subscription forwarding: `python -m bench.overlay.traffic`.

Three sites subscribe to a few of the keys each, a fourth to none that is published. The same messages are published at
a fifth, once over links that carry subscriptions and once over links that carry none and so every message.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.brokers import PROJECT, Broker
from bench.overlay.tree import Logical, Tree
from bench.packages import compiled_package
from broker.cli.control_client import ask
from broker.perf import wire
from broker.perf.peer import PeerConnection

EXCHANGE: Final = "orders"
QUEUE: Final = "subscriber"
PUBLISHER: Final = "publisher"
MIDDLE: Final = ("west", "east")
SITES: Final = {"paris": "west", "rome": "west", "oslo": "east", "riga": "east"}
"""Each subscribing site with the inner broker that it is linked to; the inner brokers are linked to each other."""

KEYS: Final = 1000
SEED: Final = 1
BODY_BYTES: Final = 200
_CHANNEL: Final = 1
_AT_ONCE: Final = 500
_LIMIT_S: Final = 120.0
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """The bytes that one link carried in its two directions: away from the publisher, and towards it."""

    name: str
    down_bytes: int
    up_bytes: int


def published(messages: int) -> list[str]:
    """Return the keys of the messages, drawn evenly from all keys."""
    dice = Random(SEED)
    return [f"order.{dice.randrange(KEYS)}" for _ in range(messages)]


def subscriptions(share: float) -> dict[str, list[str]]:
    """Return the binding keys of each site: a share of the keys, and at the last site a key that nobody publishes."""
    dice = Random(SEED + 1)
    count = max(1, round(KEYS * share))
    *some, last = SITES
    wanted = {site: [f"order.{number}" for number in dice.sample(range(KEYS), count)] for site in some}
    return wanted | {last: ["nothing"]}


class TrafficRun:
    """One run: the sites of a tree, their subscriptions and what their links carried."""

    def __init__(self, folder: Path, package: Path, *, forwards: bool) -> None:
        processes = {
            "west": [Logical("west", "west")],
            "east": [Logical("east", "east")],
            PUBLISHER: [Logical(PUBLISHER, PUBLISHER, leaf=True)],
            **{site: [Logical(site, site, leaf=True)] for site in SITES},
        }
        self._edges = [("west", "east"), (PUBLISHER, "west"), *SITES.items()]
        self.tree = Tree(folder, package, [EXCHANGE], processes, self._edges, floods=not forwards)

    def subscribe(self, wanted: dict[str, list[str]]) -> None:
        """Declare the exchange everywhere, and a queue with its bindings at each subscribing site."""
        for site in (PUBLISHER, *SITES):
            peer = PeerConnection(self.tree.address(site), _CHANNEL)
            peer.declare_exchange(EXCHANGE, durable=True)
            if site in wanted:
                peer.declare_queue(QUEUE, durable=True)
                frames = (wire.queue_bind(_CHANNEL, QUEUE, EXCHANGE, key) for key in wanted[site])
                peer.call_all(frames, wire.QUEUE_BIND_OK)
            peer.close()
        _until(self._is_known)
        _until(self._quiet)

    def publish(self, keys: Sequence[str]) -> None:
        """Publish a message under each key, and wait until all sites have what they want."""
        peer = PeerConnection(self.tree.address(PUBLISHER), _CHANNEL)
        body = bytes(BODY_BYTES)
        for at in range(0, len(keys), _AT_ONCE):
            some = keys[at : at + _AT_ONCE]
            frames = (wire.publish(_CHANNEL, EXCHANGE, key, body, persistent=True) for key in some)
            peer.socket.sendall(b"".join(frames))
            peer.settle()
        peer.close()
        _until(self._quiet)

    def received(self) -> dict[str, int]:
        """Return how many messages the queue of each site has."""
        found = {}
        for site in SITES:
            peer = PeerConnection(self.tree.address(site), _CHANNEL)
            found[site] = peer.declare_queue(QUEUE, durable=True, passive=True)
            peer.close()
        return found

    def traffic(self) -> list[LinkTraffic]:
        """Return what each link has carried so far."""
        sent = {
            (name, link["peer"]): link["sent_bytes"]
            for name in self.tree.brokers
            for link in self._broker(name)["links"]
        }
        found = []
        for one, other in [(PUBLISHER, "west"), ("west", "east"), *((middle, site) for site, middle in SITES.items())]:
            found.append(LinkTraffic(f"{one} to {other}", sent[one, other], sent[other, one]))
        return found

    def _quiet(self) -> bool:
        """Return whether nothing was sent for a while, and nothing waits to be acknowledged."""
        (stream,) = self._broker(PUBLISHER)["streams"]
        if stream["lag"]:
            return False
        before = self.traffic()
        time.sleep(5 * _LOOK_S)
        return self.traffic() == before

    def _is_known(self) -> bool:
        """Return whether the publisher's broker has heard of all sites."""
        rows = self._broker(PUBLISHER)["patterns"]
        return any(row["exchange"] == EXCHANGE and set(row["vector"]) == set(SITES) for row in rows)

    def _broker(self, name: str) -> dict[str, Any]:
        broker: Broker = self.tree.brokers[name]
        assert broker.folder is not None
        (held,) = ask(broker.folder, "overlay")
        return dict(held)


def _until(done: Callable[[], bool]) -> None:
    """Wait until something has become true. Raises: TimeoutError."""
    deadline_s = time.monotonic() + _LIMIT_S
    while not done():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the sites did not come to rest")
        time.sleep(_LOOK_S)


@dataclass(frozen=True, slots=True)
class Found:
    """What one run found: traffic before the first message, traffic of the messages, and what each site received."""

    subscribing: list[LinkTraffic]
    publishing: list[LinkTraffic]
    received: dict[str, int]


def run(package: Path, messages: int, share: float, *, forwards: bool) -> Found:
    """Subscribe, publish, and return what the links carried."""
    with tempfile.TemporaryDirectory(prefix="slotmq-bench-") as folder:
        sites = TrafficRun(Path(folder), package, forwards=forwards)
        with sites.tree as tree:
            tree.start()
            sites.subscribe(subscriptions(share))
            before = sites.traffic()
            sites.publish(published(messages))
            after = sites.traffic()
            publishing = [
                LinkTraffic(late.name, late.down_bytes - early.down_bytes, late.up_bytes - early.up_bytes)
                for early, late in zip(before, after, strict=True)
            ]
            return Found(before, publishing, sites.received())


def main() -> None:
    """Measure both ways, check that the sites received the same, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--share", type=float, default=0.05, help="the part of the keys that a site wants")
    parser.add_argument("--interpreted", action="store_true", help="run the sources, not compiled modules")
    options = parser.parse_args()
    package = PROJECT if options.interpreted else compiled_package()
    forwarded = run(package, options.messages, options.share, forwards=True)
    flooded = run(package, options.messages, options.share, forwards=False)
    if forwarded.received != flooded.received:
        raise SystemExit(f"the sites received {forwarded.received} and {flooded.received}")
    print(f"{options.messages:,} messages of {BODY_BYTES} B; received: {forwarded.received}")
    print("KB on each link, with forwarding of subscriptions and without (messages down, acks up; subscriptions up)")
    print(f"{'link':<20} {'messages':>18} {'acks':>15} {'subscriptions':>15} {'share':>7}")
    parts = zip(forwarded.publishing, flooded.publishing, forwarded.subscribing, flooded.subscribing, strict=True)
    for few, many, told, untold in parts:
        messages = f"{few.down_bytes / 1000:,.1f} / {many.down_bytes / 1000:,.1f}"
        acks = f"{few.up_bytes / 1000:,.1f} / {many.up_bytes / 1000:,.1f}"
        subscribed = f"{told.up_bytes / 1000:,.1f} / {untold.up_bytes / 1000:,.1f}"
        share = f"{few.down_bytes / many.down_bytes:.1%}"
        print(f"{few.name:<20} {messages:>18} {acks:>15} {subscribed:>15} {share:>7}")


if __name__ == "__main__":
    main()
