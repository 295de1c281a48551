"""The choice of the broker of a tree node that gets a stream."""

from __future__ import annotations

from broker.overlay.packets import Space, StreamName
from broker.overlay.peers import choose

STREAMS = [StreamName(f"leaf{number}", Space("/", "orders")) for number in range(300)]


def test_streams_are_spread_and_stay_when_another_broker_dies() -> None:
    """The loss of a broker moves its own streams, and no others."""
    leaves = frozenset({"x"})
    before = {stream: choose(stream, {"b1": leaves, "b2": leaves, "b3": leaves}, leaves) for stream in STREAMS}
    after = {stream: choose(stream, {"b1": leaves, "b3": leaves}, leaves) for stream in STREAMS}
    counts = [sum(chosen == (broker,) for chosen in before.values()) for broker in ("b1", "b2", "b3")]
    assert min(counts) > 60
    assert all(after[stream] == before[stream] for stream in STREAMS if before[stream] != ("b2",))


def test_a_broker_that_cannot_reach_a_wanted_leaf_is_avoided() -> None:
    """Its link to the leaf is cut, while another broker has one."""
    reachable = {"b1": frozenset({"y"}), "b2": frozenset({"x", "y"})}
    assert all(choose(stream, reachable, {"x", "y"}) == ("b2",) for stream in STREAMS)
    assert {choose(stream, reachable, {"y"}) for stream in STREAMS} == {("b1",), ("b2",)}


def test_several_brokers_are_taken_if_none_reaches_all() -> None:
    """Together they reach all that any of them reaches."""
    reachable = {"b1": frozenset({"x"}), "b2": frozenset({"y"}), "b3": frozenset()}
    assert set(choose(STREAMS[0], reachable, {"x", "y", "nowhere"})) == {"b1", "b2"}


def test_there_is_always_one_if_any_lives() -> None:
    """A leaf that no broker reaches is served by the first broker for the stream."""
    assert len(choose(STREAMS[0], {"b1": frozenset(), "b2": frozenset()}, {"x"})) == 1
    assert choose(STREAMS[0], {}, {"x"}) == ()


def test_avoided_brokers_come_last() -> None:
    """They are taken only for leaves that no other broker reaches, or if there is no other."""
    reachable = {"b1": frozenset({"x", "y"}), "b2": frozenset({"x"}), "b3": frozenset({"x"})}
    for stream in STREAMS:
        assert choose(stream, reachable, {"x"}, {"b1", "b2"}) == ("b3",)
        assert choose(stream, reachable, {"x", "y"}, {"b1", "b2"}) == ("b3", "b1")
        assert choose(stream, reachable, {"x", "y"}, {"b3"}) == ("b1",)
        assert choose(stream, reachable, {"x"}, set(reachable)) == choose(stream, reachable, {"x"})
