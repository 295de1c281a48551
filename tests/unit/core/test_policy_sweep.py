"""Applying a policy to many queues: one slice per turn, and queues that clients use first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp.commands import Basic, Channel, Queue, Tx

from broker.amqp.content_header import facts_of
from broker.core.message.message import Envelope, Message
from broker.core.moving.placement import Outcome, place_message, to_exchange
from broker.core.policy.policy import Policy
from broker.core.policy.policy_sweep import SLICE_UNITS, UNITS
from broker.core.vhost import Vhost
from tests.unit.core.room import NO_PROPERTIES, Client, Room, put

SLICE = SLICE_UNITS // UNITS
MANY = 10 * SLICE
ASKED = "q0"  # the sweep starts with the queue declared last


def crowded(count: int = MANY) -> Room:
    """Return a vhost with many queues."""
    room = Room()
    for number in range(count):
        room.vhost.queues.declare(f"q{number}")
    return room


def limit(length: int = 2, name: str = "p", pattern: str = "^q", overflow: str = "drop-head") -> Policy:
    """Return a policy that limits the length of queues."""
    return Policy(name, pattern, "queues", {"max-length": length, "overflow": overflow})


def following(room: Room, length: int = 2) -> set[str]:
    """Return the names of the queues that a policy has been applied to."""
    return {name for name, queue in room.vhost.queues.items() if queue.rules.max_length == length}


def finish(room: Room) -> int:
    """Run turns until nothing is left and return their number."""
    turns = 0
    while room.vhost.sweep.pending:
        room.turn()
        turns += 1
    return turns


@pytest.mark.parametrize("count", [MANY, pytest.param(100_000, marks=pytest.mark.torture)])
def test_no_turn_takes_more_than_a_slice_and_all_follow_in_the_end(count: int) -> None:
    """A sweep takes one turn per slice, and the first slice runs at once; deleting the policy takes as many."""
    room = crowded(count)
    vhost = room.vhost
    for change in (lambda: vhost.policies.set(limit()), lambda: vhost.policies.clear("p")):
        before = len(following(room))
        vhost.sweep.slices = 0
        change()
        most = 0
        while vhost.sweep.pending:
            left = len(vhost.sweep)
            room.turn()
            most = max(most, left - len(vhost.sweep))
        assert most == SLICE
        assert vhost.sweep.slices >= count // SLICE
        assert len(following(room)) == count - before
    assert {queue.policy for queue in vhost.queues.values()} == {None}


def test_a_small_vhost_follows_at_once() -> None:
    """A small vhost is swept at once."""
    room = crowded(SLICE // 2)
    told: list[bool] = []
    room.vhost.policies.set(limit())
    room.vhost.sweep.follow(lambda: told.append(True))
    assert len(following(room)) == SLICE // 2
    assert (room.vhost.sweep.pending, told) == (False, [True])


def consume(client: Client) -> None:
    """Start a consumer."""
    client.consume(ASKED)


def call(method: Any, answer: type[Any]) -> Callable[[Client], None]:
    """Return a call of a method."""
    return lambda client: client.call(1, method, answer)


@pytest.mark.parametrize(
    "ask",
    [
        call(Queue.Declare(queue=ASKED), Queue.DeclareOk),
        call(Queue.Declare(queue=ASKED, passive=True), Queue.DeclareOk),
        call(Queue.Purge(queue=ASKED), Queue.PurgeOk),
        call(Basic.Get(queue=ASKED), Basic.GetOk),
        consume,
        lambda client: client.publish("", ASKED),
        lambda client: client.publish("amq.topic", "k"),
        lambda client: client.publish("amq.headers", "k"),
    ],
    ids=["declare", "passive", "purge", "get", "consume", "publish", "by key", "by headers"],
)
def test_what_a_client_asks_for_follows_first(ask: Callable[[Client], None]) -> None:
    """A queue that a client uses is updated first, alone, and the sweep skips it later."""
    room = crowded()
    vhost = room.vhost
    vhost.bindings.bind(ASKED, "amq.topic", "k")
    vhost.bindings.bind(ASKED, "amq.headers", "", {})
    queue = vhost.queues[ASKED]
    put(queue, 5)
    client = room.enter()
    vhost.policies.set(limit())
    others = following(room)
    assert ASKED not in others
    ask(client)
    assert following(room) == others | {ASKED}
    assert finish(room) > 1
    assert len(following(room)) == MANY
    assert queue.ready <= 2


def test_a_publish_behind_the_change_is_refused_by_its_limit() -> None:
    """A publish after the change sees the limit, also on a cached route and in a transaction."""
    room = crowded()
    vhost = room.vhost
    put(vhost.queues[ASKED], 2)
    client = room.confirming()
    client.open_channel(2)
    client.call(2, Tx.Select(), Tx.SelectOk)
    for _ in range(3):
        client.publish("", "q1")
    client.publish("", ASKED, channel=2)
    vhost.policies.set(limit(overflow="reject-publish"))
    client.publish("", ASKED)
    assert vhost.queues[ASKED].ready == 2
    vhost.policies.set(limit(1, overflow="reject-publish"))
    assert ASKED not in following(room, 1)
    ((_, closed),) = client.tell(2, Tx.Commit())
    assert isinstance(closed, Channel.Close)
    assert closed.reply_text == "PRECONDITION_FAILED - partial tx completion"


def test_what_no_client_publishes_is_refused_by_the_limit_too() -> None:
    """Dead letters and messages of an operator update their queue before it accepts them."""
    room = crowded()
    vhost = room.vhost
    source = vhost.queues.declare(
        "source", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": ASKED}
    )
    put(vhost.queues[ASKED], 2)
    put(source, 1)
    vhost.policies.set(limit(overflow="reject-publish"))
    stream, slot = source.level, source.level.manager.front()
    assert slot is not None
    stream.dead_letter(slot, stream.manager.take(slot, 1), "rejected")
    assert vhost.queues[ASKED].ready == 2

    vhost.queues[ASKED].purge(lambda _count: None)
    put(vhost.queues[ASKED], 1)
    vhost.policies.set(limit(1, overflow="reject-publish"))
    assert ASKED not in following(room, 1)
    envelope, facts = Envelope("", ASKED), facts_of(NO_PROPERTIES)
    message = Message(envelope, NO_PROPERTIES, b"", 1, facts, 0)
    placement = to_exchange(vhost, vhost.exchanges[""], None)(message)
    assert placement is not None
    assert place_message(vhost, placement, b"") is Outcome.REFUSED


def test_another_change_begins_anew_and_who_waits_for_one_waits_for_both() -> None:
    """A second change restarts the sweep, and waiters of the first are told when both are done."""
    room = crowded()
    vhost = room.vhost
    told: list[int] = []
    vhost.policies.set(limit(2))
    vhost.sweep.follow(lambda: told.append(len(following(room, 3))))
    for _ in range(3):
        room.turn()
    exchanges = len(vhost.exchanges)  # they are updated first
    assert len(following(room, 2)) == 4 * SLICE - exchanges
    vhost.policies.set(limit(3))
    vhost.sweep.follow(lambda: told.append(len(following(room, 3))))
    assert (told, len(following(room, 3))) == ([], SLICE - exchanges)
    finish(room)
    assert told == [MANY, MANY]


def test_queues_that_come_and_go_meanwhile() -> None:
    """New and redeclared queues have the policy from the start, and deleted ones are skipped."""
    room = crowded()
    vhost = room.vhost
    vhost.policies.set(limit())
    vhost.queues.declare("q.new")
    vhost.queues.delete(ASKED, None)
    vhost.queues.delete("q1", None)
    vhost.queues.declare("q1", arguments={"x-max-length": 1})
    assert {"q.new"} <= following(room)
    assert vhost.queues["q1"].rules.max_length == 1
    finish(room)
    assert len(following(room)) == MANY - 1


def test_exchanges_follow_in_slices_too_and_first_who_is_published_to(room: Room, vhost: Vhost) -> None:
    """Exchanges are swept in slices, and an exchange that is published to gets its alternate exchange first."""
    queue = vhost.queues.declare("lost")
    vhost.bindings.bind("lost", "amq.fanout", "")
    for number in range(MANY):
        vhost.exchanges.declare(f"x{number}", "direct")
    client = room.enter()
    vhost.policies.set(Policy("p", "^x", "exchanges", {"alternate-exchange": "amq.fanout"}))
    alternates = [vhost.exchanges[name].alternate for name in ("x0", "x1")]
    client.publish("x0", "nowhere")
    alternates += [vhost.exchanges[name].alternate for name in ("x0", "x1")]
    assert (alternates, queue.ready) == ([None, None, "amq.fanout", None], 1)
    finish(room)
    assert [x.alternate for name, x in vhost.exchanges.items() if name.startswith("x")] == ["amq.fanout"] * MANY


def test_a_pattern_that_takes_its_time_ends_a_slice(room: Room) -> None:
    """A pattern that runs out of time on a name costs a turn as much as thousands of names."""
    hard = "a" * 40 + "!"
    for number in range(4):
        room.vhost.queues.declare(f"{number}{hard}")
    room.vhost.policies.set(limit(pattern="(?!b)(a|aa)+$"))
    assert room.vhost.sweep.pending
    turns = finish(room)
    assert turns >= 3
    assert following(room) == set()


def test_who_waits_hears_of_the_end_of_a_vhost() -> None:
    """Waiters are told when the vhost is deleted."""
    room = crowded()
    told: list[bool] = []
    room.vhost.policies.set(limit())
    room.vhost.sweep.follow(lambda: told.append(True))
    for _ in room.vhost.dismantle():
        pass
    assert (told, room.vhost.sweep.pending) == ([True], False)
