"""Measures CPU over the number of leaf brokers whose subscriptions change once a second, propagating and flooding.

Source: section 5.2 of the paper, Figure 6. One broker for publishers, one between, 1 to 7 leaves. Each leaf has steady
subscribers and others that subscribe and unsubscribe.
"""

from __future__ import annotations

import time
from functools import partial
from statistics import fmean

from bench.ground import EXCHANGE, bind_all, consume_all, control, paced_source, sink
from bench.herd import BURST_S, Herd
from bench.overlay.load import SCHEMES
from bench.overlay.tree import Logical, Tree, leaf_of
from bench.run import Figures
from bench.stage import Stage
from broker.perf import wire
from broker.perf.peer import Address, PeerConnection

TOPICS = 100
COPIES = 2  # subscribers of each topic at each leaf
_CHANGE_EVERY_S = 1.0
_FIRST_LIMIT_S = 30.0


def measure(stage: Stage) -> None:
    """Measure each scheme and number of leaves. Raises: BrokerFailed, Fault, OSError."""
    plan = stage.plan
    for scheme in SCHEMES:
        with _star(stage, scheme) as tree:
            tree.start("pb", "ib")
            control(tree.address("pb"), durable=True).close()
            herd = Herd([paced_source(tree.address("pb"), _topics(), plan.leaves_per_s)], [], burst_s=BURST_S)
            leaves: list[LeafSubscribers] = []
            try:
                for count in plan.leaves:
                    while len(leaves) < count:
                        name = f"sb{len(leaves) + 1}"
                        tree.start(name)
                        leaves.append(LeafSubscribers(tree.address(name), herd))
                    herd.reach(_FIRST_LIMIT_S, partial(_reached, leaves), "no message reached one of the leaves")
                    herd.run(plan.settle_s)
                    stage.add("leaves", _cell(tree, herd, leaves, plan.seconds), scheme=scheme, leaves=count)
            finally:
                herd.close()
                for leaf in leaves:
                    leaf.close()


def _star(stage: Stage, scheme: str) -> Tree:
    leaves = ("pb", *(f"sb{number}" for number in range(1, max(stage.plan.leaves) + 1)))
    processes = {name: leaf_of(name) for name in leaves} | {"ib": (Logical("ib", "ib"),)}
    return Tree(stage, [EXCHANGE], processes, [(name, "ib") for name in leaves], floods=scheme == "flooding")


def _topics() -> list[str]:
    return [f"topic.{number:02d}" for number in range(TOPICS)]


class LeafSubscribers:
    """The subscribers of one leaf: to the first half of the topics, and to most of the second half, in turn."""

    def __init__(self, address: Address, herd: Herd) -> None:
        """Subscribe, and add the consumer to the herd. Raises: Refusal, OSError."""
        peer = control(address, durable=True)
        keys = _topics()
        steady, self._dynamic = ([f"{kind}-{number}" for number in range(COPIES)] for kind in ("steady", "dynamic"))
        for names, own in ((steady, keys[: TOPICS // 2]), (self._dynamic, keys[TOPICS // 2 :])):
            for name in names:
                peer.declare_queue(name, durable=False)
                bind_all(peer, name, own)
        consume_all(peer, [*steady, *self._dynamic])
        self.sink = sink(peer)
        herd.add(self.sink)
        self._changer = PeerConnection(address, wire.CONSUME_CHANNEL)
        self._keys = keys[TOPICS // 2 :]
        self._changes = 0
        self._next_s = time.monotonic() + _CHANGE_EVERY_S

    def change(self, now_s: float) -> None:
        """Once a second, unsubscribe from the next topic or, the time after, subscribe to it again.

        An overlay broker propagates nothing if both happen at once.
        """
        if now_s < self._next_s:
            return
        self._next_s += _CHANGE_EVERY_S
        key = self._keys[self._changes // 2 % len(self._keys)]
        make = wire.queue_bind if self._changes % 2 else wire.queue_unbind
        self._changes += 1
        frames = [make(self._changer.channel, name, EXCHANGE, key) for name in self._dynamic]
        self._changer.socket.sendall(b"".join(frames))  # the few answers fit into the socket buffer unread

    def close(self) -> None:
        self._changer.close()


def _reached(leaves: list[LeafSubscribers]) -> bool:
    return all(leaf.sink.delivered for leaf in leaves)


def _cell(tree: Tree, herd: Herd, leaves: list[LeafSubscribers], seconds: float) -> Figures:
    def change() -> bool:
        now_s = time.monotonic()
        for leaf in leaves:
            leaf.change(now_s)
        return False

    shares, rates = tree.run(herd, seconds, change)
    subscribing = [share for name, share in shares.items() if name not in ("pb", "ib")]
    return {"pb": shares["pb"], "ib": shares["ib"], "sb": fmean(subscribing), **rates}
