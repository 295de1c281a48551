"""Rules between exchanges, queues and bindings of a vhost, and what is journalled."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pytest
from pamqp import commands

from broker.amqp.errors import ChannelError
from broker.core.auth.users import User
from broker.core.durable_topology import restore
from broker.core.topology.deferred_unbinding import CHUNK_BINDINGS
from broker.core.vhost import QUEUES_AT_ONCE, Vhost
from broker.routing.pattern import PatternLimits
from tests.unit.core.room import GUEST, Room, describe, put


def kinds(room: Room) -> list[tuple[str, str]]:
    """Return the journalled changes by kind and name."""
    return [(change["change"], change.get("name", change.get("queue", ""))) for change in room.journal]


def test_a_message_for_the_default_exchange_finds_a_queue_as_soon_as_it_exists(vhost: Vhost) -> None:
    """A cached route to nowhere ends with the declare, and a route to the queue with its deletion."""
    default = vhost.exchanges.find("")
    routes = [default.route("q") for _ in range(3)]
    queue = vhost.queues.declare("q")
    assert not any(route.live for route in routes)
    assert default.route("q").destinations == (queue,)
    routes = [default.route("q") for _ in range(3)]
    vhost.queues.delete("q", None)
    assert not any(route.live for route in routes)
    assert default.route("q").destinations == ()


def test_a_deleted_exchange_leaves_no_live_route(vhost: Vhost) -> None:
    """A cached route through a deleted exchange ends, so the next publish is 404."""
    exchange = vhost.exchanges.declare("x", "topic")
    routes = [exchange.route("k") for _ in range(3)]
    assert routes[-1].live
    vhost.exchanges.delete("x")
    assert not any(route.live for route in routes)
    with pytest.raises(ChannelError, match="NOT_FOUND - no exchange 'x' in vhost '/'"):
        vhost.exchanges.find("x")


def test_deleting_a_queue_costs_its_bindings_not_those_of_others(vhost: Vhost) -> None:
    """Deleting a queue removes its two bindings from an exchange with a thousand others, at the cost of two."""
    removed: list[str] = []
    exchange = vhost.exchanges.declare("x", "topic")
    for number in range(1000):
        vhost.queues.declare(f"other-{number}")
        vhost.bindings.bind(f"other-{number}", "x", f"k.{number}")
    vhost.queues.declare("q")
    vhost.bindings.bind("q", "x", "a.*")
    vhost.bindings.bind("q", "x", "b.#")
    detach = exchange._detach

    def count(destination: Hashable, key: str, arguments: Mapping[str, Any]) -> None:
        removed.append(key)
        detach(destination, key, arguments)

    exchange._detach = count  # type: ignore[method-assign]
    vhost.queues.delete("q", None)
    assert sorted(removed) == ["a.*", "b.#"]
    assert exchange.binding_count == 1000


def test_an_auto_delete_queue_goes_with_its_last_consumer(room: Room, vhost: Vhost) -> None:
    """An auto-delete queue is deleted when its last consumer leaves, and not before it had one."""
    queue = vhost.queues.declare("q", auto_delete=True)
    assert not vhost.queues.consumer_left(queue)
    first, second = (room.enter().consume("q") for _ in range(2))
    queue.remove_consumer(first)
    assert not vhost.queues.consumer_left(queue)
    queue.remove_consumer(second)
    assert vhost.queues.consumer_left(queue)
    assert not vhost.queues
    assert not vhost.queues.consumer_left(queue)


def test_a_namesake_is_not_deleted_for_a_queue_that_is_gone(room: Room, vhost: Vhost) -> None:
    """A late notice about a deleted queue does not affect a new queue of that name."""
    old = vhost.queues.declare("q", auto_delete=True)
    client = room.enter()
    client.consume("q")
    vhost.queues.delete("q", None)
    assert [describe(method) for _, method in client.replies()] == ["Basic.Cancel"]
    vhost.queues.declare("q", auto_delete=True)
    assert not vhost.queues.consumer_left(old)
    assert "q" in vhost.queues


def test_an_exclusive_queue_is_never_durable(room: Room) -> None:
    """An exclusive queue cannot outlive its connection; declaring it again as durable is equivalent."""
    queue = room.vhost.queues.declare("q", durable=True, exclusive=True, owner=room)
    assert not queue.durable
    assert room.vhost.queues.declare("q", durable=True, exclusive=True, owner=room) is queue
    assert room.journal == []


def test_each_queue_gets_a_number_of_its_own(vhost: Vhost) -> None:
    """A queue number names messages on disk, so it is never reused."""
    numbers = []
    for _ in range(3):
        numbers.append(vhost.queues.declare("q").number)
        vhost.queues.delete("q", None)
    assert numbers == [1, 2, 3]


def test_the_journal_hears_of_what_is_durable_and_of_nothing_else(room: Room, vhost: Vhost) -> None:
    """Transient objects and bindings with a transient end are not journalled, nor are repeated declares."""
    vhost.exchanges.declare("transient", "fanout")
    vhost.queues.declare("transient")
    vhost.bindings.bind("transient", "amq.topic", "#")
    vhost.queues.declare("q", durable=True)
    vhost.bindings.bind("q", "transient", "")
    assert kinds(room) == [("queue_declared", "q")]
    room.journal.clear()
    vhost.exchanges.declare("x", "topic", durable=True)
    vhost.exchanges.declare("x", "topic", durable=True)
    vhost.queues.declare("q", durable=True)
    vhost.bindings.bind("q", "x", "a")
    vhost.bindings.unbind("q", "x", "a")
    vhost.bindings.unbind("q", "x", "a")
    vhost.bindings.bind("q", "x", "b")
    vhost.exchanges.delete("transient")
    vhost.exchanges.delete("x")
    vhost.queues.delete("q", None)
    vhost.queues.delete("transient", None)
    assert kinds(room) == [
        ("exchange_declared", "x"),
        ("bound", "q"),
        ("unbound", "q"),
        ("bound", "q"),
        ("exchange_deleted", "x"),
        ("queue_deleted", "q"),
    ]


def test_a_binding_key_over_the_limits_changes_nothing(room: Room) -> None:
    """A binding key over the limits is 406 and changes neither end."""
    queue = room.vhost.queues.declare("q", durable=True)
    with pytest.raises(ChannelError, match="PRECONDITION_FAILED - "):
        room.vhost.bindings.bind("q", "amq.topic", "#.a.#.b.#")
    assert not queue.incoming
    assert not room.vhost.exchanges.find("amq.topic").binding_count
    assert [kind for kind, _ in kinds(room)] == ["queue_declared"]


def test_the_limits_of_a_binding_key_are_those_of_the_settings() -> None:
    """A key within raised limits is bound, and is restored after a restart with lower limits."""
    raised, lowered = Room(pattern_limits=PatternLimits(hashes=3, words=70)), Room()
    raised.vhost.queues.declare("q", durable=True)
    for key in ("#.a.#.b.#", ".".join("a" * 70)):
        raised.vhost.bindings.bind("q", "amq.topic", key)
    with pytest.raises(ChannelError, match="PRECONDITION_FAILED - "):
        raised.vhost.bindings.bind("q", "amq.topic", ".".join("a" * 71))
    restore(lowered.vhost, raised.journal)
    assert lowered.vhost.exchanges.find("amq.topic").route("b.a.c.b").destinations == (lowered.vhost.queues["q"],)


@pytest.mark.parametrize(
    "act",
    [
        lambda vhost: vhost.exchanges.declare("", "direct", durable=True),
        lambda vhost: vhost.exchanges.delete(""),
        lambda vhost: vhost.bindings.bind("q", "", "k"),
        lambda vhost: vhost.bindings.unbind("q", "", "k"),
        lambda vhost: vhost.exchanges.delete("amq.topic"),
    ],
)
def test_whoever_asks_the_default_and_system_exchanges_stay_as_they_are(
    act: Callable[[Vhost], object], vhost: Vhost
) -> None:
    """The vhost itself refuses to change them, not only the sessions."""
    vhost.queues.declare("q")
    before = list(vhost.exchanges)
    with pytest.raises(ChannelError, match="ACCESS_REFUSED"):
        act(vhost)
    assert list(vhost.exchanges) == before


def test_a_user_has_one_publish_cache(vhost: Vhost) -> None:
    """Each user has its own publish cache, because its entries include the rights."""
    alice, bob = User("alice", "a"), User("bob", "b")
    assert vhost.publish_caches.of(alice.name) is vhost.publish_caches.of(alice.name)
    assert vhost.publish_caches.of(alice.name) is not vhost.publish_caches.of(bob.name)


def test_a_change_of_rights_drops_what_that_users_publishes_came_to(room: Room, vhost: Vhost) -> None:
    """A change of a user's rights drops that user's entries; a change for all users drops all entries."""
    vhost.queues.declare("q")
    client = room.enter()
    entries = vhost.publish_caches.of(GUEST.name).entries
    other = vhost.publish_caches.of("other")

    def publish() -> int:
        for _ in range(3):
            client.publish("", "q")
        return len(entries)

    assert publish() == 1
    other.entries.update(entries)
    vhost.publish_caches.drop("guest")
    assert (len(entries), len(other.entries)) == (0, 1)
    vhost.publish_caches.drop("nobody")
    assert publish() == 1
    vhost.publish_caches.drop_all()
    assert (len(entries), len(other.entries)) == (0, 0)


def test_a_vhost_of_any_size_is_dismantled_step_by_step(room: Room, vhost: Vhost) -> None:
    """Each step ends a bounded number of bindings and queues, and the last one leaves nothing that is due."""
    queues = [
        vhost.queues.declare(f"q{number}", durable=number % 2 == 0, arguments={"x-expires": 60_000})
        for number in range(3 * QUEUES_AT_ONCE + 1)
    ]
    bindings = 12 * CHUNK_BINDINGS + 1  # there are fewer exchanges
    for number in range(bindings):
        vhost.bindings.bind(queues[number % len(queues)].name, "amq.topic", f"k.{number}")
    client = room.enter()
    for queue in queues:
        put(queue, 2)
        client.call(1, commands.Basic.Consume(queue=queue.name), commands.Basic.ConsumeOk)
    deferred = vhost.bindings.live.deferred
    ended = shed = 0
    for _ in vhost.dismantle():
        assert deferred.shed - shed <= CHUNK_BINDINGS
        assert len(room.retired) - ended <= QUEUES_AT_ONCE
        ended, shed = len(room.retired), deferred.shed
        room.deadlines.begin_turn()
    assert deferred.shed == bindings
    assert room.retired == [queue.name for queue in queues]
    assert all(queue.deleted and not queue.ready and not queue.consumers for queue in queues)
    assert [method.name for _, method in client.replies()] == ["Basic.Cancel"] * len(queues)
    room.deadlines.run(room.clock.now_ms)
    assert room.deadlines.next_ms is None
