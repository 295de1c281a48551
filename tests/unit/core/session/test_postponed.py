"""Methods that wait for an answer from elsewhere: they run again when it is there, in their order."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from pamqp import commands

from broker.amqp.codec import Method, encode_method
from broker.amqp.errors import ChannelError
from broker.core.postponed import Postponed
from broker.core.topology.changes import Change, Journal
from tests.unit.core.room import Client, Room, describe

Queue, Exchange = commands.Queue, commands.Exchange


class Others(Journal):
    """A journal that asks others first, who answer when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Room(journal=self)
        self.agreed = True
        self.asked: list[tuple[Change, Callable[[], None]]] = []

    def decide(self, change: Change, *, durable: bool = True, owner: object | None = None) -> None:
        """Postpone the change, unless the others have agreed to it."""
        if not self.agreed:
            raise PutOff(self, change)

    def retire(self, change: Change, *, durable: bool) -> bool:
        """Ask the others to delete a queue, which stays until then."""
        self.asked.append((change, lambda: None))
        return False

    def enter(self) -> Client:
        """Return a client with a queue `q` and an exchange `x`, whose next changes are postponed."""
        client = self.room.enter()
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        client.call(1, Exchange.Declare(exchange="x", exchange_type="direct"), Exchange.DeclareOk)
        self.agreed = False
        return client

    def answer(self, apply: Callable[[], object]) -> None:
        """Apply what others decided, and answer the oldest question."""
        _change, then = self.asked.pop(0)
        self.agreed = True
        apply()
        self.agreed = False
        then()

    @property
    def changes(self) -> list[str]:
        """The kinds of the changes that wait."""
        return [change["change"] for change, _then in self.asked]


class PutOff(Postponed):
    """Waits for the answer to one change."""

    def __init__(self, others: Others, change: Change) -> None:
        self.others = others
        self.change = change

    def begin(self, then: Callable[[], None]) -> None:
        """Ask the others."""
        self.others.asked.append((self.change, then))


def send(client: Client, *methods: Method, channel: int = 1) -> list[str]:
    """Send methods in one piece, and return the answers as text."""
    client.machine.feed(b"".join(encode_method(channel, method) for method in methods))
    return said(client)


def said(client: Client) -> list[str]:
    """Process what was buffered, and return the answers as text."""
    client.machine.feed(b"")
    return [describe(method) for _, method in client.replies()]


@pytest.fixture
def others() -> Others:
    """Return a vhost whose changes others decide."""
    return Others()


def test_a_postponed_method_has_no_effect_and_is_answered_in_its_order(others: Others) -> None:
    """A declare that waits is answered before the methods after it, which wait with it."""
    client, queues = others.enter(), others.room.vhost.queues
    assert (
        send(client, Queue.Declare(queue="new"), Queue.Declare(queue="q", passive=True), Queue.Purge(queue="q")) == []
    )
    assert (others.changes, list(queues)) == (["queue_declared"], ["q"])
    others.answer(lambda: queues.declare("new"))
    assert said(client) == ["Queue.DeclareOk", "Queue.DeclareOk", "Queue.PurgeOk"]
    assert client.session.postponed == []


def test_each_change_waits_for_the_one_before_it(others: Others) -> None:
    """A method that is postponed a second time waits again."""
    client, queues = others.enter(), others.room.vhost.queues
    assert send(client, Queue.Declare(queue="a"), Queue.Declare(queue="b")) == []
    others.answer(lambda: None)  # the others had no time
    assert said(client) == []
    others.answer(lambda: queues.declare("a"))
    assert said(client) == ["Queue.DeclareOk"]
    others.answer(lambda: queues.declare("b"))
    assert said(client) == ["Queue.DeclareOk"]


def test_bindings_exchanges_and_deletions_are_decided_before_they_are_made(others: Others) -> None:
    """Nothing has changed while a change waits, and a method that finds it done is answered."""
    client, vhost = others.enter(), others.room.vhost
    source, queue = vhost.exchanges["x"], vhost.queues["q"]
    steps: list[tuple[Method, Callable[[], object], Callable[[], object]]] = [
        (
            Exchange.Declare(exchange="y", exchange_type="topic"),
            lambda: vhost.exchanges.declare("y", "topic"),
            lambda: "y" in vhost.exchanges,
        ),
        (Queue.Bind(0, "q", "x", "k"), lambda: vhost.bindings.bind("q", "x", "k"), lambda: source.binding_count),
        (
            Queue.Unbind(0, "q", "x", "k"),
            lambda: vhost.bindings.unbind("q", "x", "k"),
            lambda: not source.is_bound(queue, "k", {}),
        ),
        (Exchange.Delete(0, "x"), lambda: vhost.exchanges.delete("x"), lambda: "x" not in vhost.exchanges),
        (Queue.Delete(0, "q"), lambda: vhost.queues.delete("q", None), lambda: "q" not in vhost.queues),
    ]
    for method, apply, done in steps:
        assert (send(client, method), bool(done())) == ([], False), method.name
        assert vhost.bindings.live.count == source.binding_count
        others.answer(apply)
        assert (said(client), bool(done())) == ([f"{method.name}Ok"], True)


def test_the_second_run_finds_what_another_client_did(others: Others) -> None:
    """An error of the second run names the method, and closes its channel."""
    client, queues = others.enter(), others.room.vhost.queues
    send(client, Queue.Declare(queue="new"))
    others.answer(lambda: queues.declare("new", durable=True))
    client.machine.feed(b"")
    ((channel, close),) = client.replies()
    assert isinstance(close, commands.Channel.Close)
    assert (channel, close.reply_code, close.class_id, close.method_id) == (1, 406, 50, 10)
    assert client.session.postponed == []


def test_a_defect_in_the_second_run_ends_the_connection(others: Others) -> None:
    """An unexpected error ends the connection with 541, and nothing else."""
    client, queues = others.enter(), others.room.vhost.queues
    send(client, Queue.Declare(queue="new"))
    others.answer(lambda: delattr(queues, "_parts"))
    assert [text.partition(" - ")[0] for text in said(client)] == ["connection 541 INTERNAL_ERROR"]


def test_a_channel_that_was_closed_meanwhile_does_not_run_its_method(others: Others) -> None:
    """The answer only releases the connection: the methods of other channels continue."""
    client, queues = others.enter(), others.room.vhost.queues
    client.open_channel(2)
    send(client, Queue.Declare(queue="new"))
    assert send(client, Queue.Declare(queue="q", passive=True), channel=2) == []
    client.machine.fail(ChannelError(406, "late"), 1)
    others.answer(lambda: None)
    assert said(client) == ["channel 406 PRECONDITION_FAILED - late", "Queue.DeclareOk"]
    assert (others.changes, list(queues)) == ([], ["q"])


def test_a_lost_connection_ends_the_wait(others: Others) -> None:
    """An answer that comes after the client has gone has no effect."""
    client, queues = others.enter(), others.room.vhost.queues
    send(client, Queue.Declare(queue="new"))
    client.machine.lost()
    others.answer(lambda: None)
    assert (others.changes, list(queues)) == ([], ["q"])


def test_the_method_budget_does_not_release_a_postponed_method(others: Others) -> None:
    """A method that uses up the budget of its connection waits for its answer, not for the next turn."""
    client, room = others.enter(), others.room
    client.session.method_budget.spend(client.session.method_budget._left - 1)
    send(client, Queue.Declare(queue="new"))
    room.deadlines.run(room.clock.now_ms)
    assert client.machine.held
    assert send(client, Queue.Purge(queue="q")) == []
    others.answer(lambda: room.vhost.queues.declare("new"))
    room.deadlines.run(room.clock.now_ms)
    assert said(client) == ["Queue.DeclareOk", "Queue.PurgeOk"]


def test_what_no_client_waits_for_is_carried_out_when_it_is_decided(others: Others) -> None:
    """The exclusive queue of a connection that ended, and an auto-delete queue, go when the others agree."""
    client, queues = others.enter(), others.room.vhost.queues
    others.agreed = True
    client.call(1, Queue.Declare(queue="mine", exclusive=True), Queue.DeclareOk)
    client.call(1, Queue.Declare(queue="auto", auto_delete=True), Queue.DeclareOk)
    client.consume("auto")
    others.agreed = False
    client.machine.lost()
    assert others.changes == ["queue_deleted", "queue_deleted"]
    others.answer(lambda: queues.delete("auto", None))
    others.answer(lambda: queues.drop(queues["mine"]))
    assert (others.changes, list(queues)) == ([], ["q"])


class Together(PutOff):
    """Takes other changes along."""

    def combine_with(self, other: Postponed) -> bool:
        """Ask for both."""
        assert isinstance(other, PutOff)
        self.others.asked.append((other.change, lambda: None))
        return True


def test_declares_and_binds_that_follow_are_postponed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The methods after a postponed one ask with it, up to one that does more or depends on it; none is answered."""
    monkeypatch.setattr(sys.modules[__name__], "PutOff", Together)
    others = Others()
    client = others.enter()
    client.open_channel(2)
    bind = Queue.Bind(0, "q", "x", "k")
    sent = [Queue.Declare(queue="a"), Queue.Declare(queue="q"), bind, Queue.Declare(queue="b")]
    for stop in (Queue.Declare(), Queue.Bind(0, "", "x", "k"), Queue.Delete(queue="q"), Queue.Bind(0, "c", "x", "k")):
        assert send(client, *sent, stop, Queue.Declare(queue="never")) == []
        assert [change.get("name") for change, _ in others.asked] == [None, "b", "a"]
        others.asked.clear()
        client = others.room.enter()
