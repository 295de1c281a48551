"""Transactions on one channel: what is kept, what commit and rollback do, and what is refused."""

from __future__ import annotations

from typing import cast

import pytest
from pamqp import commands

from broker.core.session.channel import SessionOfChannel
from broker.core.session.tx import CHECKS_PER_UNIT, OVERHEAD_BYTES, TxSession
from tests.raw_client import method_frame
from tests.unit.core.room import Client, Room, describe
from tests.unit.core.session.publishing import declare, publish, ready

Basic, Tx, Confirm = commands.Basic, commands.Tx, commands.Confirm
PARTIAL = "channel 406 PRECONDITION_FAILED - partial tx completion"


def enter(room: Room) -> Client:
    """Return a client whose channel 1 is transactional."""
    client = room.enter()
    client.call(1, Tx.Select(), Tx.SelectOk)
    return client


def transactions(client: Client) -> TxSession:
    """Return the transactions of channel 1 in the broker."""
    found = cast("SessionOfChannel", client.machine.channels[1].session).transactions
    assert found is not None
    return found


def commit(room: Room, client: Client) -> list[str]:
    """Commit and return the answers in order, after the disk has reported."""
    before = client.tell(1, Tx.Commit())
    room.committer.sync()
    return [describe(method) for _, method in [*before, *client.replies()]]


def fetch(client: Client, queue: str) -> int | None:
    """Fetch a message and return its delivery tag, or None when the queue is empty."""
    ((_, method),) = client.tell(1, Basic.Get(queue=queue))
    return method.delivery_tag if isinstance(method, Basic.GetOk) else None


def test_all_records_of_a_commit_are_one_group(room: Room) -> None:
    """Publishes and acks of a commit are one group of the log, and nothing is left for the end of the turn."""
    client = enter(room)
    declare(client, "from", "to")
    publish(client, "from", delivery_mode=2)
    commit(room, client)
    tag = fetch(client, "from")
    assert tag is not None
    client.tell(1, Basic.Ack(tag))
    publish(client, "to", delivery_mode=2)
    commit(room, client)
    assert [len(group) for group in room.groups()] == [1, 2]
    for stream in room.vhost.ports.settled:
        stream.log_settlements()
    assert len(room.records()) == 3


def test_commit_is_answered_when_it_is_safe(room: Room) -> None:
    """commit-ok waits for the disk, and the methods after it wait for commit-ok."""
    client = enter(room)
    declare(client, "q")
    publish(client, "q", delivery_mode=2)
    assert client.tell(1, Tx.Commit()) == []
    assert client.tell(1, Basic.Get(queue="q")) == []
    (waiter,) = room.committer.waiting
    assert waiter.logged == waiter.published > waiter.confirmed
    room.committer.sync()
    assert [describe(method) for _, method in client.replies()] == ["Tx.CommitOk"]
    client.machine.feed(b"")
    assert [describe(method) for _, method in client.replies()] == ["Basic.GetOk"]


def test_a_commit_without_records_waits_for_no_disk(room: Room) -> None:
    """A commit without records is answered at once."""
    client = enter(room)
    declare(client, "q")
    publish(client, "q")
    client.tell(1, Tx.Commit())
    (waiter,) = room.committer.waiting
    assert waiter.logged == waiter.confirmed


def test_a_queue_that_went_before_the_commit(room: Room) -> None:
    """A message whose queue was deleted before the commit is returned if mandatory, else dropped."""
    client = enter(room)
    declare(client, "q")
    publish(client, "q", mandatory=True)
    publish(client, "q")
    client.call(1, commands.Queue.Delete(queue="q"), commands.Queue.DeleteOk)
    assert commit(room, client) == ["Basic.Return", "Tx.CommitOk"]


def three_fetched(room: Room) -> Client:
    """Return a transactional client with delivery tags 1 to 3 of the queue `q`."""
    client = enter(room)
    declare(client, "q")
    for _ in range(3):
        publish(client, "q")
    commit(room, client)
    assert [fetch(client, "q") for _ in range(3)] == [1, 2, 3]
    return client


@pytest.mark.parametrize(
    ("method", "after"),
    [
        (Basic.Ack(2), (0, 2)),
        (Basic.Ack(2, multiple=True), (0, 1)),
        (Basic.Ack(0, multiple=True), (0, 0)),
        (Basic.Reject(1, requeue=False), (0, 2)),
        (Basic.Reject(1, requeue=True), (1, 2)),
        (Basic.Nack(3, multiple=True, requeue=True), (3, 0)),
    ],
)
def test_acknowledgements_are_done_at_commit(method: commands.Basic.Ack, after: tuple[int, int], room: Room) -> None:
    """A commit settles or requeues; before it, and after a rollback, the messages are unacked."""
    client = three_fetched(room)
    queue = room.vhost.queues["q"]
    assert client.tell(1, method) == []
    assert (queue.ready, queue.unacked) == (0, 3)
    client.call(1, Tx.Rollback(), Tx.RollbackOk)
    commit(room, client)
    assert (queue.ready, queue.unacked) == (0, 3)
    assert client.tell(1, method) == []
    commit(room, client)
    assert (queue.ready, queue.unacked) == after


def test_recover_leaves_what_the_transaction_has(room: Room) -> None:
    """basic.recover requeues unacked messages at once, except those that the transaction acknowledged."""
    client = three_fetched(room)
    queue = room.vhost.queues["q"]
    client.tell(1, Basic.Ack(2))
    client.call(1, Basic.Recover(requeue=True), Basic.RecoverOk)
    assert (queue.ready, queue.unacked) == (2, 1)
    commit(room, client)
    assert (queue.ready, queue.unacked) == (2, 0)


def test_a_connection_lost_in_a_commit(room: Room) -> None:
    """A commit whose connection is lost takes effect, without an answer."""
    client = enter(room)
    declare(client, "q")
    publish(client, "q")
    client.tell(1, Tx.Commit())
    client.machine.lost()
    room.committer.sync()
    assert list(client.replies()) == []
    assert ready(room, "q") == [1]


def test_a_transaction_has_a_size(room: Room) -> None:
    """A transaction above the size limit closes the channel and publishes nothing; the limit is per transaction."""
    client = enter(room)
    declare(client, "q")
    transactions(client).limit_bytes = 2000
    for _ in range(3):
        assert publish(client, "q", bytes(600)) == []
        commit(room, client)
    publish(client, "q", bytes(600))
    ((text),) = publish(client, "q", bytes(600))
    assert text.startswith("channel 406 PRECONDITION_FAILED - transaction size 2")
    assert text.endswith(" is larger than configured max size 2000")
    assert ready(room, "q") == [3]


def test_a_queue_full_of_bytes_refuses_the_whole(room: Room) -> None:
    """A limit in bytes refuses a commit like a limit in messages."""
    client = enter(room)
    declare(client, "full", x_max_length_bytes=10, x_overflow="reject-publish")
    publish(client, "full", b"12345")
    publish(client, "full", b"123456")
    assert client.refused(Tx.Commit()) == PARTIAL
    assert ready(room, "full") == [0]


# -- over several turns ------------------------------------------------------------------------------------------------


def begin(room: Room, client: Client, messages: int = 40) -> None:
    """Begin to commit publishes to the queue `q`, in a turn whose share is used up: one step of each kind is done."""
    for _ in range(messages):
        publish(client, "q", delivery_mode=2)
    room.deadlines.units_left = 0
    assert client.tell(1, Tx.Commit()) == []


def turns(room: Room) -> None:
    """Run turns until no work is left."""
    while room.deadlines.next_ms is not None:
        room.turn()


def test_a_commit_over_several_turns_is_one_transaction_with_the_records_of_others(room: Room) -> None:
    """Others publish while a commit is in progress; their records are part of the transaction, whose order is kept."""
    client, other = enter(room), room.enter()
    declare(client, "q", "other")
    begin(room, client)
    room.deadlines.units_left = CHECKS_PER_UNIT
    room.deadlines.run(0)
    (done,) = ready(room, "q")
    assert 0 < done < 40
    publish(other, "other", delivery_mode=2)
    assert room.committer.waiting == []
    turns(room)
    (waiter,) = room.committer.waiting
    assert waiter.logged == waiter.published
    assert ready(room, "q", "other") == [40, 1]
    assert [len(group) for group in room.groups()] == [41]
    room.committer.sync()
    assert [describe(method) for _, method in client.replies()] == ["Tx.CommitOk"]


def test_commits_take_their_turns_one_after_another(room: Room) -> None:
    """A second commit begins after the end of the first, so that each is a transaction of its own."""
    first, second = enter(room), enter(room)
    declare(first, "q")
    begin(room, first)
    begin(room, second, 3)
    assert ready(room, "q") == [0]
    turns(room)
    assert [len(group) for group in room.groups()] == [40, 3]
    room.committer.sync()
    assert [describe(method) for client in (first, second) for _, method in client.replies()] == ["Tx.CommitOk"] * 2


@pytest.mark.parametrize(("turned", "published"), [(False, 0), (True, 40)])
def test_a_connection_lost_between_two_slices(turned: bool, published: int, room: Room) -> None:
    """A commit that is still checked has no effect; one that has begun takes its whole effect. Others commit after."""
    client, other = enter(room), enter(room)
    declare(client, "q", "other")
    begin(room, client)
    if turned:
        room.deadlines.units_left = CHECKS_PER_UNIT
        room.deadlines.run(0)
        assert 0 < ready(room, "q")[0] < 40
    client.machine.lost()
    publish(other, "other")
    other.tell(1, Tx.Commit())
    turns(room)
    room.committer.sync()
    assert [describe(method) for _, method in other.replies()] == ["Tx.CommitOk"]
    assert ready(room, "q", "other") == [published, 1]


def test_a_commit_that_is_refused_after_a_slice(room: Room) -> None:
    """A queue that becomes full during the check refuses the whole, and the connection continues."""
    client, other = enter(room), room.enter()
    declare(client, "q", x_max_length=40, x_overflow="reject-publish")
    begin(room, client)
    publish(other, "q")
    client.machine.feed(method_frame(2, commands.Channel.Open()))
    assert list(client.replies()) == []
    turns(room)
    client.machine.feed(b"")
    assert [describe(method) for _, method in client.replies()] == [PARTIAL, "Channel.OpenOk"]
    assert ready(room, "q") == [1]


def test_a_message_that_cannot_be_read_keeps_up_nobody(room: Room) -> None:
    """A commit waits for the dead letter on disk until its channel ends, as it does if the read fails."""
    client = enter(room)
    declare(client, "q", x_dead_letter_exchange="")
    declare(client, "other")
    publish(client, "q", delivery_mode=2)
    commit(room, client)
    tag = fetch(client, "q")
    assert tag is not None
    (slot,) = room.vhost.queues["q"].level.manager.slots.values()
    slot.contents = None
    client.tell(1, Basic.Reject(tag, requeue=False))
    client.tell(1, Tx.Commit())
    other = enter(room)
    publish(other, "other")
    assert other.tell(1, Tx.Commit()) == []
    for _ in range(3):
        room.turn()
    assert room.committer.waiting == []
    client.machine.lost()
    turns(room)
    room.committer.sync()
    assert [describe(method) for _, method in other.replies()] == ["Tx.CommitOk"]


def test_single_acks_take_the_memory_of_one(room: Room) -> None:
    """Acks in order are one delivery per slot, in the transaction and for a rollback."""
    client = three_fetched(room)
    for tag in (1, 2, 3):
        client.tell(1, Basic.Ack(tag))
    assert transactions(client).kept_bytes == 3 * OVERHEAD_BYTES
    unacked = cast("SessionOfChannel", client.machine.channels[1].session).basic.unacked
    assert [tags for tags, _ in unacked.aside or ()] == [range(1, 4)]
    assert len(transactions(client).acknowledgements) == 1
    client.call(1, Tx.Rollback(), Tx.RollbackOk)
    assert [(run.first, run.last) for run in unacked.runs] == [(1, 3)]
    client.tell(1, Basic.Nack(0, multiple=True, requeue=True))
    commit(room, client)
    assert ready(room, "q") == [3]
