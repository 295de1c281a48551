"""An answer about a durable change follows its sync, and so do the answers after it on its channel; nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest
from pamqp import commands

from broker.amqp.handshake import ConnectionLimits
from broker.core.topology.deferred_unbinding import CHUNK_BINDINGS
from tests.raw_client import frame
from tests.unit.core.room import Client, Room, describe, put

Exchange, Queue, Basic = commands.Exchange, commands.Queue, commands.Basic
Channel, Confirm = commands.Channel, commands.Confirm
CLOSE: Final = Channel.Close(200, "", 0, 0)


def names(client: Client) -> list[str]:
    """Return what a client has got, each with its channel."""
    return names_of(client.replies())


def names_of(replies: Iterable[tuple[int, Any]]) -> list[str]:
    """Return some answers, each with its channel."""
    return [f"{channel} {describe(method)}" for channel, method in replies]


def settled() -> Room:
    """Return a vhost with exchanges, queues and bindings that are on disk; what follows waits for a slow disk."""
    room = Room()
    client = room.enter()
    for name, durable in (("x", True), ("y", True), ("tx", False)):
        client.tell(1, Exchange.Declare(exchange=name, exchange_type="topic", durable=durable))
    for name, durable in (("q", True), ("tq", False)):
        client.tell(1, Queue.Declare(queue=name, durable=durable, exclusive=not durable))
    client.tell(1, Queue.Bind(queue="q", exchange="x", routing_key="k"))
    client.tell(1, Exchange.Bind(destination="y", source="x", routing_key="k"))
    put(room.vhost.queues["q"], 3)
    client.leave()
    room.committer.slow = True
    return room


DURABLE: Final[list[tuple[Any, Any]]] = [
    (Queue.Declare(queue="new", durable=True), Queue.DeclareOk),
    (Queue.Bind(queue="q", exchange="x", routing_key="new"), Queue.BindOk),
    (Queue.Unbind(queue="q", exchange="x", routing_key="k"), Queue.UnbindOk),
    (Queue.Purge(queue="q"), Queue.PurgeOk),
    (Queue.Delete(queue="q"), Queue.DeleteOk),
    (Exchange.Declare(exchange="new", exchange_type="topic", durable=True), Exchange.DeclareOk),
    (Exchange.Bind(destination="y", source="x", routing_key="new"), Exchange.BindOk),
    (Exchange.Unbind(destination="y", source="x", routing_key="k"), Exchange.UnbindOk),
    (Exchange.Delete(exchange="y"), Exchange.DeleteOk),
]


def work(room: Room) -> None:
    """Run the turns that the slices of deletions take."""
    for _ in range(20):
        room.turn()


@pytest.fixture
def room() -> Room:
    """Return a vhost with a topology that is on disk; what follows waits for a slow disk."""
    return settled()


@pytest.mark.parametrize(("method", "answer"), DURABLE, ids=lambda given: getattr(given, "name", None))
def test_a_durable_change_is_answered_after_its_sync(method: Any, answer: Any, room: Room) -> None:
    """Before the sync nothing is sent, after it the answer; the same method once more waits for the same sync."""
    one, two = room.enter(), room.enter()
    assert one.tell(1, method) == []
    assert two.tell(1, method) == [], "another client may not hear of it either"
    work(room)
    assert names(one) == names(two) == []
    room.committer.sync()
    assert names(one) == names(two) == [f"1 {answer.name}"]
    assert two.tell(1, Queue.Declare(queue="t")) != [], "nothing is left to wait for"


@pytest.mark.parametrize(
    "method",
    [
        Queue.Declare(queue="q", durable=True),
        Queue.Declare(queue="q", passive=True),
        Queue.Declare(queue="t", exclusive=True, durable=True),
        Queue.Bind(queue="q", exchange="x", routing_key="k"),
        Queue.Bind(queue="q", exchange="tx", routing_key="k"),
        Queue.Unbind(queue="q", exchange="x", routing_key="none"),
        Queue.Delete(queue="none"),
        Exchange.Declare(exchange="x", exchange_type="topic", durable=True),
        Exchange.Declare(exchange="x", passive=True),
        Exchange.Declare(exchange="t", exchange_type="topic"),
        Exchange.Bind(destination="tx", source="x", routing_key="k"),
        Exchange.Unbind(destination="y", source="x", routing_key="none"),
        Exchange.Delete(exchange="tx"),
        Basic.Get(queue="q"),
        Basic.Consume(queue="q"),
    ],
    ids=lambda method: method.name,
)
def test_what_changes_nothing_durable_does_not_wait(method: Any, room: Room) -> None:
    """It is answered at once, although another change of the vhost is not on disk."""
    busy, client = room.enter(), room.enter()
    assert busy.tell(1, Queue.Declare(queue="other", durable=True)) == []
    assert len(client.tell(1, method)) == 1


def test_an_empty_queue_is_purged_at_once(room: Room, client: Client) -> None:
    """A purge that drops nothing, or drops from a transient queue, writes no record."""
    client.call(1, Queue.Declare(queue="t", exclusive=True), Queue.DeclareOk)
    put(room.vhost.queues["t"])
    assert client.call(1, Queue.Purge(queue="t"), Queue.PurgeOk).message_count == 1
    assert client.call(1, Queue.Purge(queue="t"), Queue.PurgeOk).message_count == 0


@pytest.mark.parametrize(
    "question",
    [Queue.Declare(queue="new", passive=True), Queue.Declare(queue="new", durable=True)],
    ids=["passive", "equal"],
)
def test_a_second_client_does_not_hear_of_what_a_crash_may_undo(question: Any, room: Room) -> None:
    """A passive or equal declare waits with the first one, and each is answered once, for its own number of syncs."""
    first, second, third = room.enter(), room.enter(), room.enter()
    first.tell(1, Queue.Declare(queue="new", durable=True, nowait=True))
    assert second.tell(1, question) == []
    room.committer.sync()
    assert names(second) == ["1 Queue.DeclareOk"]
    assert names(first) == []
    assert len(third.tell(1, question)) == 1


def test_a_change_waits_for_no_later_one(room: Room) -> None:
    """One that follows an older change of a subject which has changed again is not kept back by that."""
    first, second = room.enter(), room.enter()
    answers = room.vhost.answers
    before = answers.published
    for name in ("one", "two", "one"):
        first.tell(1, Queue.Delete(queue="one", nowait=True))
        first.tell(1, Queue.Declare(queue=name, durable=True, nowait=True))
    assert answers.published == before + 4
    assert second.tell(1, Queue.Declare(queue="two", passive=True)) == []
    answers.confirm(before + 3)  # all but the second declaration of the first queue
    assert names(second) == ["1 Queue.DeclareOk"]
    assert list(answers._unsafe) == [("queue", "one")]
    assert len(second.tell(1, Queue.Declare(queue="two", passive=True))) == 1
    assert second.tell(1, Queue.Declare(queue="one", passive=True)) == []


def test_a_deletion_is_not_told_before_its_sync(room: Room) -> None:
    """Nor is a name that was deleted and declared again known before the last of these is on disk."""
    first, second = room.enter(), room.enter()
    first.tell(1, Queue.Delete(queue="q", nowait=True))
    assert second.tell(1, Queue.Delete(queue="q")) == []
    waiting, room.committer.waiting = room.committer.waiting, []
    upto = room.vhost.answers.published
    first.tell(1, Queue.Declare(queue="q", durable=True, nowait=True))
    assert second.tell(1, Queue.Declare(queue="q", passive=True)) == []
    for publisher in waiting:
        publisher.confirm(upto)  # the sync began before the declaration
    assert names(second) == ["1 Queue.DeleteOk"]
    room.vhost.answers.confirm(upto + 1)
    assert names(second) == ["1 Queue.DeclareOk"]


def test_an_auto_delete_exchange_that_goes_with_a_transient_queue_is_waited_for() -> None:
    """The queue writes no record, the exchange that loses its last binding does."""
    for ends in (Queue.Delete(queue="t"), Queue.Unbind(queue="t", exchange="auto", routing_key="k")):
        room = settled()
        room.committer.slow = False
        client = room.enter()
        client.tell(1, Exchange.Declare(exchange="auto", exchange_type="topic", durable=True, auto_delete=True))
        client.tell(1, Queue.Declare(queue="t", exclusive=True))
        client.tell(1, Queue.Bind(queue="t", exchange="auto", routing_key="k"))
        room.committer.slow = True
        assert client.tell(1, ends) == []
        assert "auto" not in room.vhost.exchanges
        work(room)
        assert names(client) == []
        room.committer.sync()
        assert len(names(client)) == 1


def test_answers_of_a_channel_keep_their_order_and_other_channels_do_not_wait(room: Room, client: Client) -> None:
    """The methods run at once; whatever is answered after a waiting answer follows it."""
    client.open_channel(2)
    client.tell(1, Queue.Declare(queue="new", durable=True))
    for method in (
        Queue.Declare(queue="t", exclusive=True),
        Basic.Qos(prefetch_count=1),
        Basic.Get(queue="q", no_ack=True),
        Basic.Get(queue="t"),
        Basic.Consume(queue="new", consumer_tag="c"),
        Basic.Cancel("c"),
        Basic.Recover(True),
        Confirm.Select(),
    ):
        assert client.tell(1, method) == [], method.name
    assert set(room.vhost.queues) >= {"new", "t"}
    assert room.vhost.queues["q"].ready == 2
    assert names_of(client.tell(2, Queue.Declare(queue="t2", exclusive=True))) == ["2 Queue.DeclareOk"]
    room.committer.sync()
    assert names(client) == [
        "1 Queue.DeclareOk",
        "1 Queue.DeclareOk",
        "1 Basic.QosOk",
        "1 Basic.GetOk",
        "1 Basic.GetEmpty",
        "1 Basic.ConsumeOk",
        "1 Basic.CancelOk",
        "1 Basic.RecoverOk",
        "1 Confirm.SelectOk",
    ]
    assert len(client.tell(1, Basic.Qos(prefetch_count=2))) == 1


def test_confirms_pass_but_for_one_whose_channel_has_not_heard_that_it_confirms(room: Room) -> None:
    """The ack of a transient message passes a declare, but not the answer to confirm.select; it comes after that."""
    client = room.confirming()
    client.open_channel(2)
    for channel in (1, 2):
        client.tell(channel, Queue.Declare(queue=f"new{channel}", durable=True))
    assert client.tell(2, Confirm.Select()) == []
    for channel in (1, 2):
        client.publish("", "tq", channel=channel)
    answers = room.vhost.answers
    publishers, room.committer.waiting = [one for one in room.committer.waiting if one is not answers], [answers]
    for publisher in publishers:
        publisher.waiting = False
        publisher.confirm(1)
    assert names(client) == ["1 Basic.Ack"]
    room.committer.sync()
    assert names(client) == ["1 Queue.DeclareOk", "2 Queue.DeclareOk", "2 Confirm.SelectOk"]
    room.committer.sync()
    assert names(client) == ["2 Basic.Ack"]


def test_a_return_precedes_its_confirm(room: Room) -> None:
    """A message that is returned passes a waiting answer, as its confirm does."""
    client = room.confirming()
    client.tell(1, Queue.Declare(queue="new", durable=True))
    client.machine.feed(b"".join(frame(1, 1, b"\0\x3c\0\x28\0\0\0\4none\1") for _ in range(1)))
    client.machine.feed(frame(2, 1, b"\0\x3c" + bytes(12)))
    assert names(client) == ["1 Basic.Return"]
    answers = room.vhost.answers
    for publisher in [one for one in room.committer.waiting if one is not answers]:
        publisher.confirm(1)
    assert names(client) == ["1 Basic.Ack"]


def test_no_message_precedes_the_answer_that_starts_its_consumer(room: Room, client: Client) -> None:
    """A consumer whose consume-ok waits takes no message; it takes them from then on, and is woken for them."""
    woken: list[str] = []
    room.vhost.queues["q"].worker.wake = lambda queue: woken.append(queue.name)  # type: ignore[method-assign]
    client.tell(1, Queue.Declare(queue="new", durable=True))
    assert client.tell(1, Basic.Consume(queue="q", consumer_tag="c")) == []
    consumer = client.basic().consumers["c"]
    ring = room.vhost.queues["q"].consumers
    assert (consumer.room(), ring.able(), ring.next(3)) == (0, False, [])
    woken.clear()
    room.committer.sync()
    assert names(client) == ["1 Queue.DeclareOk", "1 Basic.ConsumeOk"]
    assert (ring.able(), ring.next(3), woken) == (True, [consumer], ["q"])


def test_a_consumer_that_was_cancelled_before_it_began_gets_nothing(room: Room, client: Client) -> None:
    """Its cancel-ok follows its consume-ok, and no one wakes the queue for it."""
    client.tell(1, Queue.Declare(queue="new", durable=True))
    for method in (Basic.Consume(queue="q", consumer_tag="c"), Basic.Cancel("c"), CLOSE):
        assert client.tell(1, method) == []
    room.committer.sync()
    assert names(client)[1:] == ["1 Basic.ConsumeOk", "1 Basic.CancelOk", "1 Channel.CloseOk"]
    assert not room.vhost.queues["q"].consumers


# -- the end of a channel or a connection ------------------------------------------------------------------------------


def test_a_channel_closes_behind_its_answers(room: Room, client: Client) -> None:
    """Close-ok follows them, and so does the open-ok of the next channel with that number."""
    for method in (Queue.Declare(queue="new", durable=True), CLOSE, Channel.Open(), Basic.Qos()):
        assert client.tell(1, method) == []
    room.committer.sync()
    assert names(client) == ["1 Queue.DeclareOk", "1 Channel.CloseOk", "1 Channel.OpenOk", "1 Basic.QosOk"]


def test_an_error_follows_the_answers_to_the_methods_before_it(room: Room, client: Client) -> None:
    """Channel.close is sent after them; what the client sends until it hears of that is discarded as ever."""
    methods = (Queue.Declare(queue="new", durable=True), Queue.Declare(queue="none", passive=True), Basic.Qos(), CLOSE)
    for method in methods:
        assert client.tell(1, method) == []
    room.committer.sync()
    found = names(client)
    assert found[0] == "1 Queue.DeclareOk"
    assert found[1].startswith("1 channel 404 NOT_FOUND")
    assert found[2:] == ["1 Channel.CloseOk"]


def test_a_connection_closes_behind_the_answers_of_all_channels(room: Room, client: Client) -> None:
    """Its exclusive queues are gone at once; close-ok is the last that is sent, and what follows close is discarded."""
    client.open_channel(2)
    for channel in (1, 2):
        client.tell(channel, Queue.Declare(queue=f"new{channel}", durable=True))
    client.tell(1, Queue.Declare(queue="own", exclusive=True))
    assert client.tell(0, commands.Connection.Close(200, "", 0, 0)) == []
    assert "own" not in room.vhost.queues
    assert client.tell(1, Queue.Declare(queue="late")) == []
    assert not client.machine.finished
    room.committer.sync()
    found = names(client)
    assert sorted(found[:3]) == ["1 Queue.DeclareOk", "1 Queue.DeclareOk", "2 Queue.DeclareOk"]
    assert found[3:] == ["0 Connection.CloseOk"]
    assert client.machine.finished
    assert "late" not in room.vhost.queues


ENDINGS: Final[dict[str, Callable[[Client], object]]] = {
    "error": lambda client: client.tell(1, Basic.Recover(False)),
    "operator": lambda client: client.session.force_close("go"),
    "broken frame": lambda client: client.machine.feed(frame(1, 1, b"\0\x3c\0\x0b", end=1)),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_connection_close_follows_the_answers(ending: str, room: Room, client: Client) -> None:
    """Whatever closes the connection; a client that closes at that moment is answered after that."""
    client.tell(1, Queue.Declare(queue="new", durable=True))
    ENDINGS[ending](client)
    assert names(client) == []
    assert client.tell(0, commands.Connection.Close(200, "", 0, 0)) == []
    room.committer.sync()
    found = names(client)
    assert found[0] == "1 Queue.DeclareOk"
    assert found[1].startswith("0 connection ")
    assert found[2:] == ([] if ending == "broken frame" else ["0 Connection.CloseOk"])
    assert client.machine.finished == (ending == "broken frame")


def test_answers_that_are_abandoned_are_never_sent_and_the_connection_closes_at_once(room: Room) -> None:
    """So it is when the vhost goes offline: a later sync sends nothing."""
    one, two = room.enter(), room.enter()
    for client in (one, two):
        client.tell(1, Queue.Declare(queue="new", durable=True))
    one.session.force_close("the operator's reason")
    assert names(one) == []
    room.vhost.answers.abandon()
    two.session.force_close("the vhost is down")
    for client in (one, two):
        (close,) = names(client)
        assert close.startswith("0 connection 320")
    room.committer.sync()
    assert names(one) == names(two) == []


def test_a_client_that_is_gone_is_forgotten(room: Room) -> None:
    """Its change is recorded all the same, and others hear of that."""
    one, two = room.enter(), room.enter()
    one.tell(1, Queue.Declare(queue="new", durable=True))
    one.machine.lost()
    assert two.tell(1, Queue.Declare(queue="new", passive=True)) == []
    room.committer.sync()
    assert (names(one), names(two)) == ([], ["1 Queue.DeclareOk"])
    assert not room.vhost.answers._connections


# -- slices, and very many ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("synced_first", [True, False])
@pytest.mark.parametrize("method", [Queue.Delete(queue="q"), Exchange.Delete(exchange="x")], ids=lambda one: one.name)
def test_a_deletion_in_slices_is_answered_after_the_last_one(method: Any, room: Room, *, synced_first: bool) -> None:
    """The bindings leave the indexes over several turns; the answer follows the last of them, and the sync."""
    for number in range(3 * CHUNK_BINDINGS):
        room.vhost.bindings.bind("q", "x", f"k.{number}.*")
    room.vhost.answers.confirm(room.vhost.answers.published)
    client, other = room.enter(), room.enter()
    deferred = room.vhost.bindings.live.deferred
    assert client.tell(1, method) == []
    if synced_first:
        room.committer.sync()
    turns = 0
    while deferred.busy:
        assert names(client) == []
        assert len(other.tell(1, Queue.Declare(queue=f"t{turns}"))) == 1
        room.turn()
        turns += 1
    assert turns > 2
    if not synced_first:
        assert names(client) == []
        room.committer.sync()
    assert len(names(client)) == 1


def test_a_connection_withholds_no_more_than_may_be_unsent() -> None:
    """Beyond that its methods wait, as for a client that does not read; all are answered in the end."""
    limit_bytes = ConnectionLimits().unsent_max_bytes
    room = settled()
    client = room.enter()
    client.tell(1, Queue.Declare(queue="new", durable=True))
    count = 0
    while not client.machine.held:
        count += 1
        assert client.tell(1, Queue.Declare(queue="q" * 200, durable=True, nowait=True)) == []
        assert client.tell(1, Queue.Declare(queue="q" * 200, passive=True)) == []
        assert count <= limit_bytes // 200
        work(room)  # renews the budget of methods
    assert client.tell(1, Queue.Declare(queue="late", durable=True)) == []
    assert "late" not in room.vhost.queues
    room.committer.sync()
    assert not client.machine.held
    assert len(names(client)) == count + 1
    client.machine.feed(b"")
    assert "late" in room.vhost.queues
