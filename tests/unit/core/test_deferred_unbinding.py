"""Bindings of deleted queues and exchanges: invisible at once, removed from the indexes in chunks."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from broker.core.deadlines import TURN_SHARE
from broker.core.durable_topology import TopologySnapshot, restore
from broker.core.topology.deferred_unbinding import CHUNK_BINDINGS
from broker.core.vhost import Vhost
from broker.routing.exchange import Exchange
from broker.routing.route import Route
from tests.unit.core.room import Room

MANY = 3 * CHUNK_BINDINGS + 1
TYPES = ("direct", "fanout", "topic", "headers", "x-consistent-hash")


def keys(kind: str = "topic", count: int = MANY) -> list[str]:
    """Return binding keys that are valid for a type of exchange."""
    return [f"{number + 1}" if kind == "x-consistent-hash" else f"k.{number}.*" for number in range(count)]


def bind(vhost: Vhost, queue: str, exchange: str, count: int = MANY) -> None:
    """Bind a queue with many keys."""
    for key in keys(vhost.exchanges[exchange].type, count):
        vhost.bindings.bind(queue, exchange, key)


def turn(room: Room) -> int:
    """Run what is due in one turn and return how many bindings the indexes lost."""
    before = room.vhost.bindings.live.deferred.shed
    room.turn()
    return room.vhost.bindings.live.deferred.shed - before


def finish(room: Room) -> None:
    """Run turns until the indexes lose nothing more."""
    room.deadlines.begin_turn()
    while turn(room):
        pass


def cached(vhost: Vhost, exchange: str, key: str) -> Route:
    """Return the route of a key that was used often enough to be cached."""
    for _ in range(2):
        vhost.router.route(vhost.exchanges[exchange], key)
    route = vhost.router.route(vhost.exchanges[exchange], key)
    assert route.live
    return route


def reached(exchange: Exchange, key: str) -> list[str]:
    """Return the names of the queues that a key reaches."""
    found = exchange.match_headers({}) if exchange.by_headers else exchange.route(key).destinations
    return sorted(queue.name for queue in found)


@pytest.mark.parametrize("kind", TYPES)
def test_a_queue_of_many_bindings_goes_at_once_and_leaves_the_index_in_chunks(
    kind: str, room: Room, vhost: Vhost
) -> None:
    """No turn removes more than one chunk, and the expected number of turns removes all."""
    exchange = vhost.exchanges.declare("x", kind)
    vhost.queues.declare("other")
    bind(vhost, vhost.queues.declare("q").name, "x")
    vhost.bindings.bind("other", "x", keys(kind)[7])
    assert vhost.queues.delete("q", None) == 0
    assert vhost.bindings.live.count == exchange.binding_count == 1
    assert reached(exchange, "k.7.*") == ["other"]
    room.deadlines.begin_turn()
    assert [turn(room) for _ in range(5)] == [CHUNK_BINDINGS, CHUNK_BINDINGS, CHUNK_BINDINGS, 1, 0]
    assert len(vhost.bindings.live.deferred) == 0
    assert room.deadlines.next_ms is None
    assert reached(exchange, "k.7.*") == ["other"]
    vhost.bindings.unbind("other", "x", keys(kind)[7])
    for attribute in ("bundles", "_unrouted", "_keys", "_predicates"):
        assert not getattr(exchange, attribute, ()), attribute
    index, buckets = getattr(exchange, "_index", None), getattr(exchange, "_buckets", None)
    assert (index is None or index.size == 0) and (buckets is None or buckets.pick("k") is None)


def test_the_routes_to_a_deleted_queue_end_and_no_others(vhost: Vhost) -> None:
    """Cached routes to the deleted queue end at once; routes to other queues stay valid."""
    vhost.exchanges.declare("x", "topic")
    vhost.queues.declare("other")
    bind(vhost, vhost.queues.declare("q").name, "x")
    vhost.bindings.bind("other", "x", "z.#")
    vhost.bindings.bind("other", "x", "k.2.#")
    touched, shared, untouched = (cached(vhost, "x", key) for key in ("k.1.a", "k.2.a", "z.a"))
    assert len(shared.destinations) == 2
    vhost.queues.delete("q", None)
    assert not touched.live
    assert not shared.live
    assert untouched.live
    assert [queue.name for queue in cached(vhost, "x", "k.2.a").destinations] == ["other"]


def test_a_queue_of_few_bindings_is_gone_at_once(room: Room, vhost: Vhost) -> None:
    """Small bundles share one turn's budget; those above it wait for later turns."""
    exchange = vhost.exchanges.declare("x", "topic")
    names = [f"q{number}" for number in range(2 * TURN_SHARE // CHUNK_BINDINGS)]
    for name in names:
        vhost.queues.declare(name)
        bind(vhost, name, "x", CHUNK_BINDINGS)
    for number, name in enumerate(names, 1):
        vhost.queues.delete(name, None)
        at_once = min(number * CHUNK_BINDINGS, TURN_SHARE)
        assert len(vhost.bindings.live.deferred) == number * CHUNK_BINDINGS - at_once
        assert room.deadlines.units_left == TURN_SHARE - at_once
    assert not exchange.route("k.1.a").destinations
    turns = 0
    while turn(room):
        turns += 1
    assert turns == TURN_SHARE // CHUNK_BINDINGS


def test_a_namesake_may_be_bound_at_once_by_the_same_keys(room: Room, vhost: Vhost) -> None:
    """Leftover entries of the deleted queue remove neither routes nor bindings of the new queue of that name."""
    exchange = vhost.exchanges.declare("x", "topic")
    bind(vhost, vhost.queues.declare("q").name, "x")
    vhost.queues.delete("q", None)
    again = vhost.queues.declare("q")
    bind(vhost, "q", "x", 9)
    while True:
        assert exchange.route("k.3.a").destinations == (again,)
        assert not exchange.route("k.9.a").destinations
        assert len(list(again.incoming_bindings)) == exchange.binding_count == vhost.bindings.live.count == 9
        if not turn(room):
            break
    for key in keys(count=9):
        vhost.bindings.unbind("q", "x", key)
    assert not exchange.bundles
    assert not again.incoming
    assert not exchange._index.size  # type: ignore[attr-defined]


def test_a_deleted_exchange_leaves_its_destinations_at_once(room: Room, vhost: Vhost) -> None:
    """A new exchange of that name, bound to the same queue by the same keys, keeps its bindings."""
    old = vhost.exchanges.declare("x", "topic")
    queue = vhost.queues.declare("q")
    bind(vhost, "q", "x")
    route = cached(vhost, "x", "k.1.a")
    vhost.exchanges.delete("x")
    assert not route.live
    assert not list(queue.incoming_bindings)
    assert vhost.bindings.live.count == 0
    new = vhost.exchanges.declare("x", "topic")
    bind(vhost, "q", "x", 2)
    assert [turn(room) for _ in range(5)] == [CHUNK_BINDINGS, CHUNK_BINDINGS, CHUNK_BINDINGS, 1, 0]
    assert [(binding.key, source) for binding, source in queue.incoming_bindings] == [
        (key, new) for key in keys(count=2)
    ]
    assert list(queue.incoming) == [new]
    assert not old._index.size  # type: ignore[attr-defined]
    assert new.route("k.1.a").destinations == (queue,)


def delete_exchange_first(vhost: Vhost) -> None:
    """Delete the exchange, then the queue."""
    vhost.exchanges.delete("x")
    vhost.queues.delete("q", None)


def delete_queue_first(vhost: Vhost) -> None:
    """Delete the queue, then the exchange."""
    vhost.queues.delete("q", None)
    vhost.exchanges.delete("x")


@pytest.mark.parametrize("delete", [delete_exchange_first, delete_queue_first])
def test_both_ends_may_go_before_the_index_is_empty(delete: Callable[[Vhost], None], room: Room, vhost: Vhost) -> None:
    """Each binding is removed once, whichever end was deleted first."""
    exchange = vhost.exchanges.declare("x", "topic")
    bind(vhost, vhost.queues.declare("q").name, "x")
    delete(vhost)
    assert vhost.bindings.live.count == 0
    finish(room)
    assert vhost.bindings.live.deferred.shed == MANY
    assert not exchange._index.size  # type: ignore[attr-defined]


def test_an_exchange_that_led_to_thousands_of_queues_takes_its_chunks_too(room: Room, vhost: Vhost) -> None:
    """Each of the queues loses its binding at once, and the indexes lose it in a later turn."""
    vhost.exchanges.declare("x", "topic")
    queues = [vhost.queues.declare(f"q{number}") for number in range(MANY)]
    for queue in queues:
        vhost.bindings.bind(queue.name, "x", "same.*")
    vhost.exchanges.delete("x")
    assert not any(list(queue.incoming_bindings) for queue in queues)
    assert [turn(room) for _ in range(5)] == [CHUNK_BINDINGS, CHUNK_BINDINGS, CHUNK_BINDINGS, 1, 0]
    assert not any(queue.incoming for queue in queues)


def test_a_deleted_destination_exchange_leaves_its_source_in_chunks(room: Room, vhost: Vhost) -> None:
    """The source routes nowhere at once, though its index keeps the keys for some turns."""
    source = vhost.exchanges.declare("x", "topic")
    vhost.exchanges.declare("y", "fanout")
    vhost.queues.declare("q")
    vhost.bindings.bind("q", "y", "")
    for key in keys():
        vhost.bindings.bind_exchange("y", "x", key)
    route = cached(vhost, "x", "k.1.a")
    vhost.exchanges.delete("y")
    assert not route.live
    assert not source.onward
    assert not vhost.router.route(source, "k.1.a").destinations
    finish(room)
    assert not source._index.size  # type: ignore[attr-defined]


def drop(vhost: Vhost) -> None:
    """Delete the queue as a client does."""
    vhost.queues.delete("q", None)


def expire(vhost: Vhost) -> None:
    """Let the queue expire unused."""
    vhost.queues.unused(vhost.queues["q"])


def disconnect(vhost: Vhost) -> None:
    """End the connection of the exclusive queue."""
    vhost.queues.owner_gone("owner")


@pytest.mark.parametrize("delete", [drop, expire, disconnect])
def test_auto_delete_exchanges_go_at_once_one_after_the_other(
    delete: Callable[[Vhost], None], room: Room, vhost: Vhost
) -> None:
    """However the queue is deleted, the auto-delete exchanges that lead to it lose all their bindings."""
    for name in ("a", "b"):
        vhost.exchanges.declare(name, "topic", auto_delete=True, durable=True)
    owner = "owner" if delete is disconnect else None
    vhost.queues.declare("q", exclusive=owner is not None, owner=owner)
    for key in keys():
        vhost.bindings.bind("q", "b", key, owner=owner)
        vhost.bindings.bind_exchange("b", "a", key)
    journal = len(room.journal)
    delete(vhost)
    assert [change["name"] for change in room.journal[journal:]] == ["b", "a"]
    assert not {"a", "b"} & set(vhost.exchanges)
    assert vhost.bindings.live.count == 0
    finish(room)
    assert vhost.bindings.live.deferred.shed == 2 * MANY
    assert not vhost.bindings.live.deferred


def test_a_crash_amid_the_chunks_finds_the_deletion_whole(room: Room, vhost: Vhost) -> None:
    """Neither the journal nor any snapshot contains a binding of the deleted queue."""
    vhost.exchanges.declare("x", "topic", durable=True)
    for queue in ("q", "other"):
        vhost.queues.declare(queue, durable=True)
    bind(vhost, "q", "x")
    vhost.bindings.bind("other", "x", "z")
    vhost.queues.delete("q", None)
    for _ in range(2):
        for history in (room.journal, list(TopologySnapshot(vhost))):
            again = Room().vhost
            restore(again, json.loads(json.dumps(history)))
            assert list(again.queues) == ["other"]
            assert [binding.key for binding in again.exchanges["x"].bindings] == ["z"]
            assert not again.bindings.live.deferred
        assert turn(room)


def test_what_is_deleted_counts_for_no_limit(vhost: Vhost) -> None:
    """A full vhost accepts new bindings as soon as a queue is deleted."""
    vhost.exchanges.declare("x", "topic")
    bind(vhost, vhost.queues.declare("q").name, "x")
    assert vhost.bindings.live.count == MANY
    vhost.queues.delete("q", None)
    bind(vhost, vhost.queues.declare("q").name, "x")
    assert vhost.bindings.live.count == MANY
    assert len(vhost.bindings.live.deferred) == MANY
