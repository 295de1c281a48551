"""What holds between exchanges, queues and bindings of a vhost, and what the journal hears of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pytest

from broker.amqp.errors import ChannelError
from broker.core.auth.users import User
from broker.core.vhost import Vhost
from broker.routing.pattern import PatternLimits
from tests.unit.core.room import GUEST, Room, describe, put


def kinds(room: Room) -> list[tuple[str, str]]:
    """Return the journalled changes by kind and name."""
    return [(change["change"], change.get("name", change.get("queue", ""))) for change in room.journal]


def test_a_message_for_the_default_exchange_finds_a_queue_as_soon_as_it_exists() -> None:
    """A cached route to nowhere ends with the declare, one to the queue with the deletion."""
    vhost = Room().vhost
    default = vhost.exchange("")
    routes = [default.route("q") for _ in range(3)]
    queue = vhost.declare_queue("q")
    assert not any(route.live for route in routes)
    assert default.route("q").destinations == (queue,)
    routes = [default.route("q") for _ in range(3)]
    vhost.delete_queue("q", None)
    assert not any(route.live for route in routes)
    assert default.route("q").destinations == ()


def test_a_deleted_exchange_leaves_no_live_route() -> None:
    """Whoever cached a route to nowhere through it must ask again and hear 404."""
    vhost = Room().vhost
    exchange = vhost.declare_exchange("x", "topic")
    routes = [exchange.route("k") for _ in range(3)]
    assert routes[-1].live
    vhost.delete_exchange("x")
    assert not any(route.live for route in routes)
    with pytest.raises(ChannelError, match="NOT_FOUND - no exchange 'x' in vhost '/'"):
        vhost.exchange("x")


def test_binding_twice_is_once() -> None:
    """A message is delivered once, and one unbind undoes it."""
    room = Room()
    vhost = room.vhost
    queue = vhost.declare_queue("q", durable=True)
    for _ in range(2):
        vhost.bind("q", "amq.topic", "a.#", {})
    assert len(list(queue.arriving)) == 1
    assert [kind for kind, _ in kinds(room)] == ["queue_declared", "bound"]
    vhost.unbind("q", "amq.topic", "a.#", {})
    assert not queue.incoming
    assert vhost.exchange("amq.topic").route("a.b").destinations == ()


def test_bindings_of_a_deleted_queue_go_by_its_own_list() -> None:
    """Each of its bindings is removed from its exchange; those of another queue stay."""
    vhost = Room().vhost
    for name in ("q", "other"):
        vhost.declare_queue(name)
        vhost.bind(name, "amq.topic", "a.*")
        vhost.bind(name, "amq.fanout", "")
    vhost.delete_queue("q", None)
    assert {binding.destination.name for binding in vhost.exchange("amq.topic").bindings} == {"other"}
    assert {binding.destination.name for binding in vhost.exchange("amq.fanout").bindings} == {"other"}


def test_deleting_a_queue_costs_its_bindings_not_those_of_others() -> None:
    """Beside a thousand foreign bindings, the exchange is asked to remove the queue's own two."""
    vhost = Room().vhost
    removed: list[str] = []
    exchange = vhost.declare_exchange("x", "topic")
    for number in range(1000):
        vhost.declare_queue(f"other-{number}")
        vhost.bind(f"other-{number}", "x", f"k.{number}")
    vhost.declare_queue("q")
    vhost.bind("q", "x", "a.*")
    vhost.bind("q", "x", "b.#")
    detach = exchange._detach

    def count(destination: Hashable, key: str, arguments: Mapping[str, Any]) -> None:
        removed.append(key)
        detach(destination, key, arguments)

    exchange._detach = count  # type: ignore[method-assign]
    vhost.delete_queue("q", None)
    assert sorted(removed) == ["a.*", "b.#"]
    assert exchange.binding_count == 1000


def test_a_deleted_exchange_is_forgotten_by_its_queues() -> None:
    """Deleting the queue afterwards meets no stale binding."""
    vhost = Room().vhost
    queue = vhost.declare_queue("q")
    vhost.declare_exchange("x", "headers")
    vhost.bind("q", "x", "", {"x-match": "all", "a": 1})
    vhost.delete_exchange("x")
    assert not list(queue.arriving)
    assert vhost.delete_queue("q", None) == 0


@pytest.mark.parametrize("way", ["unbind", "delete the queue"])
def test_an_auto_delete_exchange_goes_with_its_last_binding(way: str) -> None:
    """It stays without any binding ever, and with one left; it goes when the last goes."""
    room = Room()
    vhost = room.vhost
    vhost.declare_exchange("x", "direct", durable=True, auto_delete=True)
    vhost.declare_queue("q")
    vhost.bind("q", "x", "one")
    vhost.bind("q", "x", "two")
    vhost.unbind("q", "x", "one")
    assert "x" in vhost.exchanges
    if way == "unbind":
        vhost.unbind("q", "x", "two")
    else:
        vhost.delete_queue("q", None)
    assert "x" not in vhost.exchanges
    assert kinds(room) == [("exchange_declared", "x"), ("exchange_deleted", "x")]


def test_an_auto_delete_queue_goes_with_its_last_consumer() -> None:
    """Not before it had one, and not while one is left."""
    room = Room()
    vhost = room.vhost
    queue = vhost.declare_queue("q", auto_delete=True)
    assert not vhost.consumer_left(queue)
    first, second = (room.enter().consume("q") for _ in range(2))
    queue.remove_consumer(first)
    assert not vhost.consumer_left(queue)
    queue.remove_consumer(second)
    assert vhost.consumer_left(queue)
    assert not vhost.queues
    assert not vhost.consumer_left(queue)


def test_a_queue_without_auto_delete_outlives_its_consumers() -> None:
    """The last consumer may leave."""
    room = Room()
    vhost = room.vhost
    queue = vhost.declare_queue("q")
    consumer = room.enter().consume("q")
    queue.remove_consumer(consumer)
    assert not vhost.consumer_left(queue)
    assert "q" in vhost.queues


def test_a_namesake_is_not_deleted_for_a_queue_that_is_gone() -> None:
    """A late word about the old queue does not touch the new one."""
    room = Room()
    vhost = room.vhost
    old = vhost.declare_queue("q", auto_delete=True)
    client = room.enter()
    client.consume("q")
    vhost.delete_queue("q", None)
    assert [describe(method) for _, method in client.replies()] == ["Basic.Cancel"]
    vhost.declare_queue("q", auto_delete=True)
    assert not vhost.consumer_left(old)
    assert "q" in vhost.queues


def test_an_unacked_message_does_not_keep_a_queue_from_being_empty() -> None:
    """if-empty looks at ready messages alone, as RabbitMQ does."""
    vhost = Room().vhost
    queue = vhost.declare_queue("q")
    put(queue)
    slot = queue.stream.manager.get(queue.worker.owner)
    assert slot is not None
    queue.stream.manager.take(slot, 1)
    assert vhost.delete_queue("q", None, if_empty=True) == 0


def test_an_exclusive_queue_is_never_durable() -> None:
    """It cannot outlive its connection; redeclaring it as durable is no difference."""
    room = Room()
    queue = room.vhost.declare_queue("q", durable=True, exclusive=True, owner=room)
    assert not queue.durable
    assert room.vhost.declare_queue("q", durable=True, exclusive=True, owner=room) is queue
    assert room.journal == []


def test_each_queue_gets_a_number_of_its_own() -> None:
    """A number names a queue's messages on disk, so none comes back, whatever was deleted."""
    vhost = Room().vhost
    numbers = []
    for _ in range(3):
        numbers.append(vhost.declare_queue("q").number)
        vhost.delete_queue("q", None)
    assert numbers == [1, 2, 3]


def test_the_journal_hears_of_what_is_durable_and_of_nothing_else() -> None:
    """Transient things, and bindings with a transient end, leave no trace; found again is no change."""
    room = Room()
    vhost = room.vhost
    vhost.declare_exchange("transient", "fanout")
    vhost.declare_queue("transient")
    vhost.bind("transient", "amq.topic", "#")
    vhost.declare_queue("q", durable=True)
    vhost.bind("q", "transient", "")
    assert kinds(room) == [("queue_declared", "q")]
    room.journal.clear()
    vhost.declare_exchange("x", "topic", durable=True)
    vhost.declare_exchange("x", "topic", durable=True)
    vhost.declare_queue("q", durable=True)
    vhost.bind("q", "x", "a")
    vhost.unbind("q", "x", "a")
    vhost.unbind("q", "x", "a")
    vhost.bind("q", "x", "b")
    vhost.delete_exchange("transient")
    vhost.delete_exchange("x")
    vhost.delete_queue("q", None)
    vhost.delete_queue("transient", None)
    assert kinds(room) == [
        ("exchange_declared", "x"),
        ("bound", "q"),
        ("unbound", "q"),
        ("bound", "q"),
        ("exchange_deleted", "x"),
        ("queue_deleted", "q"),
    ]


def test_a_binding_key_over_the_limits_changes_nothing() -> None:
    """406, and neither side keeps a trace."""
    room = Room()
    queue = room.vhost.declare_queue("q", durable=True)
    with pytest.raises(ChannelError, match="PRECONDITION_FAILED - "):
        room.vhost.bind("q", "amq.topic", "#.a.#.b.#")
    assert not queue.incoming
    assert not room.vhost.exchange("amq.topic").binding_count
    assert [kind for kind, _ in kinds(room)] == ["queue_declared"]


def test_the_limits_of_a_binding_key_are_those_of_the_settings() -> None:
    """A key within raised limits is bound, and comes back after a restart with lower ones."""
    raised, lowered = Room(pattern_limits=PatternLimits(hashes=3, words=70)), Room()
    raised.vhost.declare_queue("q", durable=True)
    for key in ("#.a.#.b.#", ".".join("a" * 70)):
        raised.vhost.bind("q", "amq.topic", key)
    with pytest.raises(ChannelError, match="PRECONDITION_FAILED - "):
        raised.vhost.bind("q", "amq.topic", ".".join("a" * 71))
    lowered.vhost.restore(raised.journal)
    assert lowered.vhost.exchange("amq.topic").route("b.a.c.b").destinations == (lowered.vhost.queues["q"],)


@pytest.mark.parametrize(
    "act",
    [
        lambda vhost: vhost.declare_exchange("", "direct", durable=True),
        lambda vhost: vhost.delete_exchange(""),
        lambda vhost: vhost.bind("q", "", "k"),
        lambda vhost: vhost.unbind("q", "", "k"),
        lambda vhost: vhost.delete_exchange("amq.topic"),
    ],
)
def test_whoever_asks_the_default_and_system_exchanges_stay_as_they_are(act: Callable[[Vhost], object]) -> None:
    """The vhost itself refuses, not only the sessions in front of it."""
    vhost = Room().vhost
    vhost.declare_queue("q")
    before = list(vhost.exchanges)
    with pytest.raises(ChannelError, match="ACCESS_REFUSED"):
        act(vhost)
    assert list(vhost.exchanges) == before


def test_a_user_has_one_publish_cache() -> None:
    """Rights are part of its entries, so each user has its own."""
    vhost = Room().vhost
    alice, bob = User("alice", "a"), User("bob", "b")
    assert vhost.publish_cache(alice) is vhost.publish_cache(alice)
    assert vhost.publish_cache(alice) is not vhost.publish_cache(bob)


def test_a_change_of_rights_drops_what_that_users_publishes_came_to() -> None:
    """The others' entries stay; a change that concerns all of them drops all."""
    room = Room()
    vhost = room.vhost
    vhost.declare_queue("q")
    client = room.enter()
    entries = vhost.publish_cache(GUEST).entries
    other = vhost.publish_cache(User("other", "o"))

    def publish() -> int:
        for _ in range(3):
            client.publish("", "q")
        return len(entries)

    assert publish() == 1
    other.entries.update(entries)
    vhost.rights_changed("guest")
    assert (len(entries), len(other.entries)) == (0, 1)
    vhost.rights_changed("nobody")
    assert publish() == 1
    vhost.drop_publish_caches()
    assert (len(entries), len(other.entries)) == (0, 0)
