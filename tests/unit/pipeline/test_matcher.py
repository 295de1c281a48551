"""The queues that get a message by a topology, and the bindings that decide it."""

from __future__ import annotations

from typing import Any

import pytest

from broker.pipeline.routes import matcher as matcher_module
from broker.pipeline.routes.matcher import BadTopology, Match, Matcher, compiled
from broker.pipeline.routes.topology import Topology, read_definitions, read_text
from tests.unit.pipeline.encoded import properties

DOCUMENT = {
    "exchanges": [
        {"name": "top", "type": "topic", "arguments": {"alternate-exchange": "lost"}},
        {"name": "inner", "type": "direct"},
        {"name": "lost", "type": "fanout"},
        {"name": "wide", "type": "topic", "arguments": {"alternate-exchange": "nowhere"}},
        {"name": "by-header", "type": "headers"},
        {"name": "through", "type": "topic"},
        {"name": "spread", "type": "x-consistent-hash"},
        {"name": "slashes", "type": "topic", "arguments": {"x-topic-dialect": "mqtt"}},
    ],
    "queues": [{"name": "unbound"}],
    "bindings": [
        {"source": "top", "routing_key": "a.#", "destination": "q0"},
        {"source": "top", "routing_key": "a.b", "destination": "inner", "destination_type": "exchange"},
        {"source": "inner", "routing_key": "a.b", "destination": "q1"},
        {"source": "inner", "routing_key": "a.b", "destination": "q0"},
        {"source": "inner", "routing_key": "a.b", "destination": "top", "destination_type": "exchange"},
        {"source": "lost", "routing_key": "", "destination": "q2"},
        {"source": "by-header", "destination": "q3", "arguments": {"x-match": "all", "kind": 1}},
        {"source": "through", "routing_key": "#", "destination": "by-header", "destination_type": "exchange"},
        {"source": "spread", "routing_key": "1", "destination": "q4"},
        {"source": "spread", "routing_key": "3", "destination": "q4"},
        {"source": "spread", "routing_key": "2", "destination": "inner", "destination_type": "exchange"},
        {"source": "slashes", "routing_key": "a/+", "destination": "q5"},
    ],
}


@pytest.mark.parametrize(
    ("exchange", "key", "headers", "wanted"),
    [
        ("top", "a.c", None, Match(("q0",), (0,))),
        ("top", "a.b", None, Match(("q0", "q1"), (0, 1, 2, 3, 4))),
        ("top", "b", None, Match(("q2",), (5,))),
        ("top", "b", {"CC": ["a.c", "z"]}, Match(("q0",), (0,))),
        ("wide", "a", None, Match((), ())),
        ("", "unbound", None, Match(("unbound",), ())),
        ("", "q5", None, Match(("q5",), ())),
        ("", "missing", None, Match((), ())),
        ("", "missing", {"CC": ["q1"]}, Match(("q1",), ())),
        ("by-header", "", {"kind": 1}, Match(("q3",), (6,))),
        ("by-header", "", {"kind": 2}, Match((), ())),
        ("by-header", "", None, Match((), ())),
        ("through", "x", {"kind": 1}, Match(("q3",), (7, 6))),
        ("slashes", "a/b", None, Match(("q5",), (11,))),
        ("amq.topic", "a", None, Match((), ())),
        ("gone", "a", None, None),
    ],
)
def test_a_message_goes_the_brokers_way(
    exchange: str, key: str, headers: dict[str, Any] | None, wanted: Match | None
) -> None:
    """Exchange bindings, alternates, headers, CC, the default exchange and unknown exchanges route as in the broker."""
    tried = Matcher(read_definitions(DOCUMENT))
    assert tried.match("/", exchange, key, None if headers is None else properties(headers)) == wanted


def test_a_hash_exchange_draws_by_the_names_of_destinations() -> None:
    """A message has one destination, also a queue bound twice or an exchange; its first binding is reported."""
    tried = Matcher(read_definitions(DOCUMENT))
    found = {tried.match("/", "spread", f"k{n}") for n in range(200)}
    assert found == {Match(("q4",), (8,)), Match((), (10,))}


def test_only_exchanges_that_can_reach_headers_are_dynamic() -> None:
    """Exchanges that cannot reach a headers exchange route by the key alone."""
    assert Matcher(read_definitions(DOCUMENT)).dynamic == {("/", "by-header"), ("/", "through")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ex,a,q,x-strange\n", "unknown exchange type"),
        (f"ex,{'#.a.' * 16}#,q\n", "has 17 '#' words, the limit is 16"),
        ("ex,heavy,q,x-consistent-hash\n", "must be an integer"),
    ],
)
def test_what_no_broker_would_take_is_refused(text: str, said: str) -> None:
    """The refusal names the exchange or binding."""
    with pytest.raises(BadTopology, match=r"^(exchange 'ex'|binding ex).*") as caught:
        Matcher(read_text(text))
    assert said in str(caught.value)


def test_a_topology_is_compiled_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of a process share one compiled topology, within a cache limit."""
    made: list[Topology] = []

    def make(topology: Topology) -> object:
        made.append(topology)
        return object()

    monkeypatch.setattr(matcher_module, "_compiled", {})
    monkeypatch.setattr(matcher_module, "Matcher", make)
    topology = Topology((), (), ())
    assert len({id(compiled("one", topology)) for _ in range(5)}) == 1
    for name in ("two", "three", "four", "five"):
        compiled(name, topology)
    assert len(made) == 5
    compiled("one", topology)
    assert len(made) == 6
