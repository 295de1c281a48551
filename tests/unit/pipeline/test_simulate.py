"""Simulated overlays: small networks compared with counts by hand and by definition."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import asdict, replace
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from broker.overlay.aggregation import Aggregation
from broker.overlay.packets import Conjunction, Update, UpdateAck
from broker.overlay.simulation.network import SimulatedTree
from broker.overlay.wire import encode
from broker.pipeline.faults import SimulationFailed
from broker.pipeline.jobs import simulate as job
from broker.pipeline.simulate import levels
from broker.pipeline.simulate.interest_network import (
    DELAY_MS,
    LEAF_PATTERNS,
    SPACE,
    InterestNetwork,
    Workload,
    parents_of,
    sized_tree,
)
from broker.pipeline.simulate.levels import MessageSimulation
from broker.pipeline.simulate.plan import MESSAGES, SimulatedRow, SimulationPlan, default_plans, product_plans
from broker.pipeline.simulate.results import result_lines, result_sheet
from tests.property.topic_reference import matches

SMALL = SimulationPlan(brokers=7, fan_out=2, redundancy=1, subscriptions=20, patterns=40, messages=40)
"""A root, two inner brokers below it, and two leaves below each of these."""


def tabled(plan: SimulationPlan) -> SimulatedRow:
    """Return the row of a simulation of tables."""
    return levels.TableSimulation(plan).run()


def bound(redundancy: int, aggregation: Aggregation = Aggregation.COVERING, patterns_max: int = 100) -> InterestNetwork:
    """Return the small tree in which three leaves have subscribed: 0 to a.#, 2 to a.b, 3 to c."""
    brokers = 4 + 3 * redundancy
    network = InterestNetwork(sized_tree(brokers, 2, redundancy), aggregation, patterns_max)
    for leaf, patterns in (("leaf0", ["a.#"]), ("leaf1", []), ("leaf2", ["a.b"]), ("leaf3", ["c"])):
        network.change(leaf, [(pattern, pattern) for pattern in patterns], ())
    network.start()
    return network


def patterns(network: InterestNetwork, name: str, node: str) -> set[str]:
    """Return what a broker has for a direction."""
    return set(network.brokers[name].interest.roots(node, SPACE))


@pytest.mark.parametrize("fan_out", [2, 3, 10])
@pytest.mark.parametrize("redundancy", [1, 2, 3])
def test_a_tree_has_exactly_the_brokers_of_its_plan(fan_out: int, redundancy: int) -> None:
    """Each inner node has its brokers and two neighbours or more, each leaf one neighbour, and all are joined."""
    for brokers in (redundancy + 2, 7, 10, 50, 333):
        tree = sized_tree(max(brokers, redundancy + 2), fan_out, redundancy)
        assert sum(map(len, tree.brokers.values())) == max(brokers, redundancy + 2)
        assert len(parents_of(tree)) == len(tree.brokers) - 1
        for node, names in tree.brokers.items():
            if tree.is_leaf(node):
                assert (len(names), len(tree.neighbours[node])) == (1, 1)
            else:
                assert len(names) == redundancy
                assert len(tree.neighbours[node]) >= 2


def test_equal_subscriptions_are_counted_and_every_one_is_drawn() -> None:
    """A thousand million subscriptions at three leaves are all there, under few patterns at each."""
    workload = Workload(1_000, 10**9, ["x", "y", "z"], seed=3)
    assert sum(sum(counts.values()) for counts in workload.counts.values()) == 10**9
    assert all(len(counts) == LEAF_PATTERNS for counts in workload.counts.values())
    few = Workload(1_000, 5, ["x", "y", "z"], seed=3)
    assert [sum(counts.values()) for counts in few.counts.values()] == [2, 2, 1]
    assert len(set(workload.universe)) == 1_000


def test_a_client_subscribes_and_unsubscribes() -> None:
    """The counts follow each change, and the last subscription of a pattern takes it away."""
    workload = Workload(10, 6, ["x"], seed=1)
    for _ in range(300):
        kept = dict(workload.counts["x"])
        pattern, before, after = workload.change("x")
        assert kept.get(pattern, 0) == before
        assert abs(after - before) == 1
        assert workload.counts["x"] == {name: count for name, count in {**kept, pattern: after}.items() if count}


@pytest.mark.parametrize("redundancy", [1, 2])
def test_tables_and_routes_as_counted_by_hand(redundancy: int) -> None:
    """Each broker has the patterns of each direction, and a message crosses the edges to those that want it."""
    network = bound(redundancy)
    assert patterns(network, "inner0.0", "inner1") == {"a.#"}
    assert patterns(network, "inner0.0", "inner2") == {"a.b", "c"}
    assert patterns(network, "inner1.0", "inner0") == {"a.b", "c"}
    assert patterns(network, "inner2.0", "inner0") == {"a.#"}
    assert patterns(network, "leaf0", "inner1") == {"a.b", "c"}
    assert patterns(network, "leaf1", "inner1") == {"a.#", "c"}  # which covers a.b
    assert patterns(network, "leaf2", "inner2") == {"a.#", "c"}
    assert patterns(network, "leaf3", "inner2") == {"a.#"}
    assert network.route("leaf1", "a.b") == (5, {"leaf0", "leaf2"})
    assert network.route("leaf0", "c") == (4, {"leaf3"})
    assert network.route("leaf0", "a.x") == (0, set())
    assert network.route("leaf3", "a.x") == (4, {"leaf0"})
    assert network.route("leaf2", "x") == (0, set())


def test_aggregation_and_the_full_feed_as_counted_by_hand() -> None:
    """Without covering a leaf is told a.b too; above one pattern it is told everything."""
    assert patterns(bound(1, Aggregation.IDENTICAL), "leaf1", "inner1") == {"a.#", "a.b", "c"}
    network = bound(1, patterns_max=1)
    assert patterns(network, "leaf0", "inner1") == {"#"}
    assert patterns(network, "leaf3", "inner2") == {"a.#"}
    assert network.route("leaf0", "x") == (3, set())  # to inner2, whose index knows both leaves below


def test_the_bytes_of_one_update_as_counted_by_hand() -> None:
    """A new pattern of leaf 3 crosses each of the six edges once, with its acknowledgement."""
    network = bound(1)
    network.take_traffic()
    network.change("leaf3", [("new", "d")], ())
    network.settle()
    traffic = network.take_traffic()
    conjunction = Conjunction(SPACE, "d")
    update = Update(2, full=False, last=True, added=(conjunction,), slice={"leaf3": 2}, touched=(SPACE,))
    assert (traffic.packets, traffic.leaf_packets) == (2 * 3, 2 * 3)  # 3 edges up or between inner nodes, 3 to leaves
    assert traffic.bytes + traffic.leaf_bytes == 6 * (len(encode(update)) + len(encode(UpdateAck(2))))


@pytest.mark.parametrize("redundancy", [1, 2])
def test_a_crash_at_the_root_as_counted_by_hand(redundancy: int) -> None:
    """All know everything again after the neighbours told the new broker and it told them: two delays, or more."""
    network = bound(redundancy)
    before = network.knowledge()
    converged_ms = network.crash("inner0.0")
    assert network.knowledge() == before
    hops = {1: 3, 2: 2}[redundancy]  # alone it is the only way, and leaves hear that it is there again
    assert DELAY_MS * hops < converged_ms <= (DELAY_MS + 1) * (hops + 1)


def test_sites_that_are_not_observed_change_nothing_for_the_others() -> None:
    """With one of four sites complete, the brokers above the sites and those of the site know what they did before."""
    tree = sized_tree(15, 2, 1)
    networks = []
    for observed in (None, ["inner4"]):
        network = InterestNetwork(tree, Aggregation.COVERING, 100, observed)
        for place, leaf in enumerate(tree.leaves):
            network.change(leaf, [("one", f"a.{place}"), ("two", "a.#" if place == 6 else "b")], ())
        network.start()
        networks.append(network)
    whole, part = (network.knowledge() for network in networks)
    assert set(part) == {"inner0.0", "inner1.0", "inner2.0", "inner4.0", "leaf2", "leaf3"}
    assert part == {name: known for name, known in whole.items() if name in part}
    for key in ("a.0", "a.5", "b", "c"):
        assert networks[0].route("leaf2", key) == networks[1].route("leaf2", key)
    for network in networks:
        network.take_traffic()
        network.change("leaf2", [("new", "c")], ())
        network.settle()
    whole_traffic, part_traffic = (network.take_traffic() for network in networks)
    assert part_traffic.bytes == whole_traffic.bytes
    assert part_traffic.leaf_bytes * 7 == whole_traffic.leaf_bytes * 1  # of seven other leaves it is told one
    assert networks[0].crash("inner0.0") == networks[1].crash("inner0.0")


@pytest.mark.parametrize("aggregation", ["none", "identical", "covering"])
def test_the_row_of_a_small_network_is_what_the_definition_says(
    aggregation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crossings and patterns equal those counted from the paths to the leaves with a matching pattern."""
    published = record_messages(monkeypatch)
    simulation = levels.TableSimulation(replace(SMALL, aggregation=aggregation))
    wanted = {leaf: set(counts) for leaf, counts in simulation.workload.counts.items()}
    row = simulation.run()
    assert len(published) == SMALL.messages
    assert row.forwarded == row.needed == sum(crossings(simulation.tree, wanted, leaf, key) for leaf, key in published)
    assert row.flooded == 6 * SMALL.messages
    assert (row.leaves, row.tree_nodes, row.edges, row.links) == (4, 7, 6, 6)
    if aggregation != "covering":
        behind = {
            "inner0": (["leaf0", "leaf1"], ["leaf2", "leaf3"]),
            "inner1": (["leaf0"], ["leaf1"], ["leaf2", "leaf3"]),
            "inner2": (["leaf2"], ["leaf3"], ["leaf0", "leaf1"]),
        }
        sizes = [
            sum(len(set().union(*(wanted[leaf] for leaf in leaves))) for leaves in sides) for sides in behind.values()
        ]
        assert row.inner_patterns == pytest.approx(sum(sizes) / 3)
        assert row.inner_patterns_max == max(sizes)
        ends = [len(set().union(*(wanted[other] for other in wanted if other != leaf))) for leaf in wanted]
        assert row.leaf_patterns == pytest.approx(sum(ends) / 4)


def record_messages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return a list that gets each message that a simulation publishes."""
    found: list[tuple[str, str]] = []

    route = InterestNetwork.route

    def recorded(network: InterestNetwork, leaf: str, key: str) -> tuple[int, set[str]]:
        found.append((leaf, key))
        return route(network, leaf, key)

    monkeypatch.setattr(InterestNetwork, "route", recorded)
    return found


def crossings(tree: SimulatedTree, wanted: dict[str, set[str]], leaf: str, key: str) -> int:
    """Return the edges on the paths from a leaf to all others with a matching pattern, by definition."""

    def path(node: str, end: str, origin: str = "") -> list[tuple[str, str]] | None:
        if node == end:
            return []
        for other in tree.neighbours[node]:
            if other != origin and (rest := path(other, end, node)) is not None:
                return [(node, other), *rest]
        return None

    found: set[tuple[str, str]] = set()
    for end, texts in wanted.items():
        if end != leaf and any(matches(text.split("."), key.split(".")) for text in texts):
            found.update(path(leaf, end) or ())
    return len(found)


@pytest.mark.parametrize("aggregation", ["none", "covering"])
def test_a_change_among_many_equal_subscriptions_tells_only_its_start(aggregation: str) -> None:
    """Among a million no subscription is the first or last of its pattern: each link carries one short update."""
    row = tabled(replace(SMALL, subscriptions=1_000_000, aggregation=aggregation))
    assert row.told_changes == row.changes == levels.ANNOUNCED_CHANGES
    assert row.told_bytes is not None
    assert row.told_bytes <= row.changes * row.links * 96


def test_what_leaves_are_told_counts_for_those_that_are_not_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates that are alike for all leaves take as many bytes with one complete site of four as with all."""
    plan = replace(SMALL, brokers=15, subscriptions=1_000_000, aggregation="none")
    whole = tabled(plan)
    monkeypatch.setattr(levels, "OBSERVED_LEAVES", 2)
    part = tabled(plan)
    assert (whole.observed_leaves, part.observed_leaves) == (8, 2)
    assert part.told_bytes == whole.told_bytes
    assert part.inner_patterns == pytest.approx(whole.inner_patterns, rel=0.2)


def test_whole_brokers_forward_as_the_tables_say() -> None:
    """Each message crosses the links that it must, all are delivered through a crash, and the tables are the same."""
    plan = replace(SMALL, level=MESSAGES, redundancy=2, brokers=10)
    whole = MessageSimulation(plan).run()
    tables = tabled(plan)
    assert whole.forwarded == whole.needed > 0
    assert whole.delivered
    assert whole.converge_ms > 0
    assert whole.inner_patterns == pytest.approx(tables.inner_patterns)
    assert whole.leaf_patterns == tables.leaf_patterns


def test_a_subscription_that_gets_lost_fails_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that takes updates of patterns for their acknowledgement is noticed."""
    received = InterestNetwork._arrive

    def forgetful(self: InterestNetwork, sender: Any, receiver: Any, packet: Any, session: int) -> None:
        if isinstance(packet, Update) and sender.name == "leaf3":
            packet = replace(packet, added=())
        received(self, sender, receiver, packet, session)

    monkeypatch.setattr(InterestNetwork, "_arrive", forgetful)
    with pytest.raises(SimulationFailed, match=r"does not reach .*leaf3"):
        tabled(replace(SMALL, messages=400))


def test_plans_vary_one_field_at_a_time_or_combine_what_is_given() -> None:
    """The default plans differ from their base in one field, each once; given lists are combined."""
    base = SimulationPlan()
    plans = default_plans(base, full=False)
    assert len(set(plans)) == len(plans)
    for plan in plans:
        differing = [name for name, value in asdict(plan).items() if value != getattr(base, name)]
        assert len([name for name in differing if name != "level"]) <= 1
    assert max(plan.brokers for plan in default_plans(base, full=True)) == 10_000
    combined = product_plans(base, {"brokers": [10, 20], "aggregation": ["none", "covering"], "redundancy": [1]})
    assert [(plan.brokers, plan.aggregation) for plan in combined] == [
        (20, "none"), (20, "covering"), (10, "none"), (10, "covering"),
    ]  # fmt: skip


def rows_of(plans: Iterable[SimulationPlan]) -> list[dict[str, Any]]:
    """Return the rows of plans, all with the figures of the small one."""
    figures = tabled(SMALL)
    return [figures.to_json(plan) for plan in plans]


def test_progress_counts_the_tasks_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """While simulations run, the step of the job says how many of them are done."""
    monkeypatch.setattr(job, "POLL_S", 0.001)
    third, steps = Event(), []

    class Seen:
        def step(self, name: str) -> None:
            steps.append(name)
            if len(steps) == 3:
                third.set()

    stages = {1: SimpleNamespace(numCompletedTasks=4), 2: None}
    tracker = SimpleNamespace(getActiveStageIds=lambda: list(stages), getStageInfo=stages.get)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    seen: Any = Seen()
    with job._progress_shown(spark, seen, "of 9 simulations done"):
        assert third.wait(30)
    assert steps[:3] == ["0 of 9 simulations done", "4 of 9 simulations done", "4 of 9 simulations done"]


def test_results_are_lines_and_a_picture() -> None:
    """Each plan is a line of its level's table, and each figure that was varied has a chart in well-formed SVG."""
    rows = rows_of(default_plans(SimulationPlan(), full=False))
    lines = list(result_lines(rows))
    assert sum(line.startswith("  ") for line in lines) == len(rows) + 2
    root = ET.fromstring(result_sheet(rows))
    name = "{http://www.w3.org/2000/svg}"
    titles = {text.text for text in root.iter(f"{name}text") if text.get("class") == "title"}
    assert {"Links that a message crosses", "Whole brokers: memory of each"} <= titles
    assert len(list(root.iter(f"{name}polyline"))) >= len(titles)
    one = ET.fromstring(result_sheet(rows[:1]))
    assert not list(one.iter(f"{name}polyline"))
