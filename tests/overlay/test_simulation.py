"""Simulated networks with faults keep the promises of the overlay; in large ones a message crosses a link once."""

from __future__ import annotations

from random import Random

import pytest

from broker.overlay.aggregation import Aggregation
from broker.overlay.packets import Conjunction, Space
from broker.overlay.simulation.network import Network
from tests.overlay.faulty_link import Statistics
from tests.overlay.faulty_network import regular_tree
from tests.overlay.seeds import simulate

BATCH = 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, BATCH))
@pytest.mark.parametrize("remainder", range(3))
def test_random_scenarios(remainder: int, first: int) -> None:
    """No message is missing or comes twice, and everything settles."""
    simulate(range(first + remainder, first + BATCH, 3))


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(500, 20_500, 1_000))
def test_many_random_scenarios(first: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for many more seeds; what happened in all of them is printed."""
    total = simulate(range(first, first + 1_000))
    with capsys.disabled():
        print(f"\nseeds {first} to {first + 999}", *total.lines(), sep="\n  ")


SPACE = Space("/", "orders")
MESSAGES = 5


@pytest.mark.slow
@pytest.mark.parametrize("fan_out", [4, pytest.param(10, marks=[pytest.mark.torture, pytest.mark.timeout(0)])])
def test_a_message_crosses_only_links_that_lead_to_a_subscriber_and_each_once(fan_out: int) -> None:
    """85 or 1,111 brokers, one publisher, and subscribers of which half want what is published."""
    topology = regular_tree(fan_out, depth=2, siblings=1)
    publisher, *others = topology.leaves
    network = Network(topology, [SPACE], Random(1), lambda: Aggregation.COVERING, publishers={publisher})
    network.start()
    network.scheduler.run_until(500)
    subscribers = others[:: fan_out * fan_out // 2]
    for place, name in enumerate(subscribers):
        key = "wanted" if place % 2 else "other"
        network.leaves[name].bind({"binding": Conjunction(SPACE, f"{key}.#")})
    network.scheduler.run_until(1_500)
    statistics = Statistics()
    network.on_packet = statistics.count
    for _ in range(MESSAGES):
        network.leaves[publisher].publish(SPACE, "wanted.now")
    network.scheduler.run_until(2_000)
    wanting = {name for place, name in enumerate(subscribers) if place % 2}
    assert {name for name, leaf in network.leaves.items() if leaf.delivered} == wanting
    crossed = {lane: count for lane, count in statistics.elements.items() if count}
    assert set(crossed.values()) == {MESSAGES}
    assert set(crossed) == lanes(network, publisher, wanting)


def lanes(network: Network, publisher: str, wanting: set[str]) -> set[tuple[str, str]]:
    """Return the ways from one broker to others; each inner node has one broker."""
    found: set[tuple[str, str]] = set()
    topology = network.topology

    def walk(origin: str, here: str) -> bool:
        wanted = here in wanting
        for there in topology.neighbours[here]:
            if there != origin and walk(here, there):
                found.add((topology.brokers[here][0], topology.brokers[there][0]))
                wanted = True
        return wanted

    walk("", publisher)
    return found
