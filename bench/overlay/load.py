"""Compares propagation with flooding: 2,000 selective subscriptions at one site, ever more publishers at four others.

Source: section 5.2 of the paper, Figure 4. Each process contains a leaf and an inner broker of the tree node between.
"""

from __future__ import annotations

from contextlib import closing
from statistics import fmean

from bench.ground import EXCHANGE, consume_all, control, declare_bound, paced_source, sink
from bench.herd import BURST_S, Herd
from bench.overlay.plan import Plan
from bench.overlay.tree import Logical, Tree, leaf_of
from bench.run import Figures
from bench.stage import Stage
from broker.perf.sender import Sender

SCHEMES = ("propagation", "flooding")
PUBLISHING = ("pb1", "pb2", "pb3", "pb4")
SUBSCRIBING = "sb"
_MIDDLE = "n5"
_UNUSED = "unused"
_FIRST_LIMIT_S = 30.0
_KEPT_UP = 0.8  # of the due messages: with less the brokers are saturated, and the measurement ends


def measure(stage: Stage) -> None:
    """Measure each scheme and number of publishers. Raises: BrokerFailed, Fault, OSError."""
    for scheme in SCHEMES:
        with _tree(stage, scheme) as tree:
            tree.start()
            _measure_scheme(stage, tree, scheme)


def middle_of(name: str) -> str:
    """Return the name of a process's inner broker, chosen so that each stream crosses another publishing process."""
    return f"hop-{name}"


def _tree(stage: Stage, scheme: str) -> Tree:
    names = (*PUBLISHING, SUBSCRIBING)
    processes = {name: (*leaf_of(name), Logical(middle_of(name), _MIDDLE)) for name in names}
    return Tree(stage, [EXCHANGE], processes, [(name, _MIDDLE) for name in names], floods=scheme == "flooding")


def _measure_scheme(stage: Stage, tree: Tree, scheme: str) -> None:
    """Add publishers group by group, and measure each number of them."""
    plan = stage.plan
    for name in PUBLISHING:  # a site without any binding receives nothing, even with flooding
        peer = control(tree.address(name), durable=True)
        declare_bound(peer, [_UNUSED], [_UNUSED])
        peer.close()
    keys = [f"sensor.{number:05d}" for number in range(max(plan.publishers))]
    subscriber = control(tree.address(SUBSCRIBING), durable=True)
    queues = [f"subscriber-{number:05d}" for number in range(plan.subscriptions)]
    declare_bound(subscriber, queues, keys[: plan.subscriptions])
    consume_all(subscriber, queues)
    before = 0
    with closing(Herd([], [sink(subscriber)], burst_s=BURST_S)) as herd:
        for publishers in plan.publishers:
            for one in _publishers(tree, keys[before:publishers], plan.publisher_per_s):
                herd.add(one)
            before = publishers
            herd.reach(_FIRST_LIMIT_S, lambda: herd.delivered > 0, "no message reached the subscribers")
            herd.run(plan.settle_s)
            shares, rates = tree.run(herd, plan.seconds)
            publishing = fmean(shares[name] for name in PUBLISHING)
            figures = {"pb_cpu": publishing, "sb_cpu": shares[SUBSCRIBING], **rates}
            saturated = falls_behind(figures, publishers, plan)
            stage.add("load", figures | {"saturated": saturated}, scheme=scheme, publishers=publishers)
            if saturated:
                break


def falls_behind(figures: Figures, publishers: int, plan: Plan) -> bool:
    """Return whether clearly less was published or delivered than was due."""
    due_per_s, wanted_per_s = publishers * plan.publisher_per_s, plan.subscriptions * plan.publisher_per_s
    return figures["published_per_s"] < _KEPT_UP * due_per_s or figures["delivered_per_s"] < _KEPT_UP * wanted_per_s


def _publishers(tree: Tree, keys: list[str], per_s: float) -> list[Sender]:
    """Return a connection to each publishing broker, which publishes for its share of the keys."""
    shares = [keys[place :: len(PUBLISHING)] for place in range(len(PUBLISHING))]
    return [
        paced_source(tree.address(name), own, per_s * len(own))
        for name, own in zip(PUBLISHING, shares, strict=True)
        if own
    ]
