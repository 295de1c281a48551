"""A leaf that lags behind a stream is sent what it lacks once, as fast as its window allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from broker.overlay.aggregation import Aggregation
from broker.overlay.packets import Conjunction, Data, Packet, Space, StreamRun
from broker.overlay.progress import CatchUp, LaggingStream
from broker.overlay.simulation.network import SimulatedTree
from tests.overlay.faulty_leaf import SimulatedBinding
from tests.overlay.faulty_link import FaultyLink, LinkFaults
from tests.overlay.faulty_network import FaultyNetwork

SPACE = Space("/", "orders")
CONTENT = bytes(10_000)


def test_a_window_slides_on_with_each_question() -> None:
    """Repeated requests are answered again; continued ones only with new numbers."""
    window = CatchUp(5)
    window.sent(9, 100)
    window.sent(19, 200)
    assert (window.flight_bytes, window.next) == (300, 20)
    assert window.continues(12)
    assert (window.flight_bytes, window.next) == (200, 20)
    assert not window.continues(12)
    assert not window.continues(21)
    assert window.continues(20)
    assert window.flight_bytes == 0


def test_a_leaf_has_caught_up_when_it_has_what_the_link_left_out() -> None:
    """Over another broker it is enough that it had all of a second ago."""
    exact = LaggingStream(10)
    exact.requested = True
    exact.reached = 500
    assert not exact.has_caught_up(499)
    assert exact.has_caught_up(500)
    elsewhere = LaggingStream(10)
    elsewhere.reached = 500
    assert elsewhere.has_caught_up(10)


class Line:
    """A publishing leaf, an inner broker and a subscribing leaf, with 50 ms each way on both links."""

    def __init__(self) -> None:
        nodes = {"leaf0": ("leaf0",), "inner": ("m",), "leaf1": ("leaf1",)}
        links = {"leaf0": ("inner",), "inner": ("leaf0", "leaf1"), "leaf1": ("inner",)}
        tree = SimulatedTree(nodes, links)
        self.network = network = FaultyNetwork(tree, [SPACE], Random(1), lambda: Aggregation.COVERING)
        for link in network.links:
            link.faults = LinkFaults(least_delay_ms=50, most_delay_ms=50)
        self.crossed: Counter[tuple[str, str, int]] = Counter()
        for member in network.members():
            member.senders = {name: self._counting(name, send) for name, send in member.senders.items()}
        network.start()
        network.leaves["leaf1"].change_bindings({"b": SimulatedBinding(Conjunction(SPACE, "#"), durable=True)}, ())
        network.scheduler.run_until(2_000)
        self.published = 0

    def _counting(self, receiver: str, send: Callable[[str, Packet], None]) -> Callable[[str, Packet], None]:
        """Return a sender that counts how often each message crosses the link to a receiver."""

        def counted(sender: str, packet: Packet) -> None:
            if isinstance(packet, StreamRun) and self.link(sender, receiver).is_up:
                elements = (element for element in packet.elements if isinstance(element, Data))
                self.crossed.update((sender, receiver, element.number) for element in elements)
            send(sender, packet)

        return counted

    def link(self, one: str, other: str) -> FaultyLink:
        """Return the link between two brokers."""
        return next(link for link in self.network.links if {member.name for member in link.members} == {one, other})

    def run(self, ms: int, *, each_ms: int = 10) -> None:
        """Let time pass while a message is published every `each_ms`."""
        scheduler = self.network.scheduler
        end_ms = scheduler.now_ms + ms
        while scheduler.now_ms < end_ms:
            self.network.leaves["leaf0"].publish(SPACE, "key", CONTENT)
            self.published += 1
            scheduler.run_until(scheduler.now_ms + each_ms)

    @property
    def lag(self) -> int:
        """Return how many messages the subscriber lacks."""
        return self.published - len(self.network.leaves["leaf1"].arrived)


def test_a_leaf_catches_up_with_a_stream_that_goes_on_and_nothing_crosses_a_link_twice() -> None:
    """A megabyte each second, twelve seconds away, and questions that take a fifth of a second."""
    line = Line()
    line.run(1_000)
    line.network.cut(line.link("m", "leaf1"), 12_000)
    lost_upto = line.published + 1  # with the vector change, all that was on its way when the link was cut
    line.run(12_000)
    assert line.lag > 1_100
    line.run(5_000)
    assert line.lag < 60
    line.run(2_000)
    line.network.scheduler.run_until(line.network.scheduler.now_ms + 2_000)
    assert line.lag == 0
    assert max(number for (_, to, number), count in line.crossed.items() if to == "leaf1" and count > 1) <= lost_upto
    assert max(line.crossed.values()) == 2
