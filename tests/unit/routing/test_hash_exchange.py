"""The consistent hash exchange."""

import subprocess
import sys
from collections import Counter

import pytest

from broker.routing.choosing_exchanges import BUCKETS, digest
from broker.routing.exchange import Exchange
from broker.routing.exchange_types import make_exchange
from broker.routing.headers_exchange import BindingArgumentError
from tests.unit.routing.message_fields import Fields, Queue

KEYS = [f"customer.{number}" for number in range(5_000)]


def make(weights: dict[str, str], **arguments: str) -> Exchange:
    """Return an exchange with queues of these names, bound with these weights."""
    exchange = make_exchange("x", "x-consistent-hash", arguments=arguments)
    for name, weight in weights.items():
        exchange.bind(Queue(name), weight, {})
    return exchange


def owners(exchange: Exchange) -> dict[str, str]:
    """Return the queue of each key, and check that it is exactly one."""
    found = {}
    for key in KEYS:
        (queue,) = exchange.route(key).destinations
        found[key] = queue.name
    return found


def test_shares_are_in_proportion_to_the_weights() -> None:
    """Queues of weights 1, 1, 2 and 6 get about a tenth, a tenth, a fifth and the rest of the keys."""
    shares = Counter(owners(make({"a": "1", "b": "1", "c": "2", "d": "6"})).values())
    for name, part in {"a": 0.1, "b": 0.1, "c": 0.2, "d": 0.6}.items():
        assert abs(shares[name] / len(KEYS) - part) < 0.05 * part + 0.01


def test_a_new_queue_takes_its_share_and_moves_nothing_else() -> None:
    """About a fifth of the keys move to the new queue and no others; removing it restores the old owners."""
    exchange = make(dict.fromkeys("abcd", "3"))
    before = owners(exchange)
    exchange.bind(new := Queue("e"), "3", {})
    after = owners(exchange)
    moved = {key for key in KEYS if before[key] != after[key]}
    assert {after[key] for key in moved} == {"e"}
    assert 0.18 < len(moved) / len(KEYS) < 0.22
    exchange.unbind(new, "3", {})
    assert owners(exchange) == before


def test_a_removed_queue_leaves_the_rest_where_it_was() -> None:
    """Only the keys of the removed queue move, to all other queues."""
    exchange = make({"a": "1", "b": "2", "c": "1", "d": "2"})
    before = owners(exchange)
    exchange.remove_bundle(next(bundle for bundle in exchange.bundles.values() if bundle.destination.name == "b"))
    after = owners(exchange)
    assert {key for key in KEYS if before[key] != after[key]} == {key for key in KEYS if before[key] == "b"}
    assert {after[key] for key in KEYS if before[key] == "b"} == {"a", "c", "d"}


def test_the_order_of_bindings_is_without_meaning() -> None:
    """A restart restores bindings in another order, and each key keeps its queue."""
    weights = {"a": "1", "b": "20", "c": "3"}
    assert owners(make(weights)) == owners(make(dict(reversed(weights.items()))))


def test_the_hash_is_the_same_in_every_process() -> None:
    """The hash does not depend on Python's hash seed or anything else of the process."""
    script = "from broker.routing.choosing_exchanges import digest; print(digest('customer.7'))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert printed == {str(digest("customer.7"))}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("0", "The binding key must be greater than 0"),
        ("-1", "The binding key must be greater than 0"),
        ("x", 'The binding key must be an integer: <<"x">>'),
        ("", "The binding key must be an integer: <<>>"),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        (" 1", 'The binding key must be an integer: <<" 1">>'),
        ("1\n", 'The binding key must be an integer: <<"1\n">>'),
        ("1_0", 'The binding key must be an integer: <<"1_0">>'),
        ("٣", 'The binding key must be an integer: <<"٣">>'),
    ],
)
def test_weights_are_integers_above_zero(key: str, text: str) -> None:
    """A wrong weight is refused with the plugin's text and leaves no binding."""
    exchange = make({"a": "1"})
    with pytest.raises(BindingArgumentError) as caught:
        exchange.bind(Queue("b"), key, {})
    assert str(caught.value) == text
    assert exchange.binding_count == 1
    assert set(owners(exchange).values()) == {"a"}


def test_any_weight_costs_the_same() -> None:
    """A weight of a million costs one entry; against it a weight of one gets almost nothing."""
    shares = Counter(owners(make({"a": "1000000", "b": "+1"})).values())
    assert shares["b"] < 20
    assert owners(make({"a": "9" * 250})).keys() == set(KEYS)


def test_no_destination() -> None:
    """Without bindings, at first or after the last unbind, a message is unroutable."""
    exchange = make({})
    assert exchange.route("k").destinations == ()
    exchange.bind(queue := Queue("a"), "1", {})
    exchange.unbind(queue, "1", {})
    assert exchange.route("k").destinations == ()
    assert exchange._buckets._draws == {}  # type: ignore[attr-defined]


def test_a_destination_bound_twice_has_its_greatest_weight() -> None:
    """A destination that is bound twice has its greatest weight, and removing one binding leaves the other."""
    exchange = make({"a": "4"})
    exchange.bind(queue := Queue("b"), "1", {})
    single = owners(exchange)
    exchange.bind(queue, "4", {})
    assert 0.45 < Counter(owners(exchange).values())["b"] / len(KEYS) < 0.55
    exchange.bind(queue, "1", {"again": True})
    exchange.unbind(queue, "4", {})
    assert owners(exchange) == single
    exchange.unbind(queue, "1", {})
    assert owners(exchange) == single
    exchange.unbind(queue, "1", {"again": True})
    assert set(owners(exchange).values()) == {"a"}


def test_a_change_of_shares_ends_the_routes() -> None:
    """A cached route of a key ends when a change of shares may move the key, and not otherwise."""
    exchange = make({"a": "2"})
    for _ in range(2):
        route = exchange.route("k")
    assert route.live
    (queue,) = route.destinations
    exchange.bind(queue, "1", {})
    assert route.live
    exchange.bind(Queue("b"), "1", {})
    assert not route.live


def test_by_header() -> None:
    """A header of any type replaces the key; messages without it all go to one queue."""
    exchange = make(dict.fromkeys("abcd", "1"), **{"hash-header": "customer"})
    assert exchange.by_headers
    chosen = {}
    for value in [*KEYS[:50], *range(50), None, True, 1.5]:
        (found,) = {exchange.match([key], Fields({"customer": value})) for key in ("k1", "k2")}
        assert len(found) == 1
        chosen[repr(value)] = found[0].name
    assert set(chosen.values()) == set("abcd")
    assert len({exchange.match([key], Fields(headers)) for key in KEYS[:9] for headers in ({}, {"other": key})}) == 1
    route = exchange.route("k")
    assert route.live
    assert route.destinations == ()
    exchange.bind(Queue("e"), "1", {})
    assert route.live
    exchange.end()
    assert not route.live


@pytest.mark.parametrize("name", ["message_id", "correlation_id", "timestamp"])
def test_by_property(name: str) -> None:
    """A property replaces the key; messages without it all go to one queue."""
    exchange = make(dict.fromkeys("abcd", "1"), **{"hash-property": name})
    assert exchange.by_headers
    found = [exchange.match(["k"], Fields(properties={name: key})) for key in KEYS[:50]]
    assert {queue.name for (queue,) in found} == set("abcd")
    assert len({exchange.match([key], Fields(properties={"other": key})) for key in KEYS[:9]}) == 1


def test_of_several_keys_the_first_counts() -> None:
    """A message has one destination, by its first key, also with CC."""
    exchange = make(dict.fromkeys("abcd", "1"))
    assert not exchange.by_headers
    for key in KEYS[:20]:
        assert exchange.match([key, *KEYS[:20]], Fields()) == exchange.route(key).destinations


def test_owners_are_bounded() -> None:
    """However many keys there are, at most one owner per bucket is cached."""
    exchange = make(dict.fromkeys("ab", "1"))
    owners(exchange)
    assert len(exchange._buckets._owners) <= min(len(KEYS), BUCKETS)  # type: ignore[attr-defined]
