"""The Queue class from the client's side: answers, codes and texts."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from broker.amqp.codec import Method
from tests.unit.core.room import Client, Room, put

Declare, Bind, Unbind = commands.Queue.Declare, commands.Queue.Bind, commands.Queue.Unbind
Purge, Delete = commands.Queue.Purge, commands.Queue.Delete

LOCKED = (
    "channel 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. "
    "It could be originally declared on another connection or the exclusive property value does not match that of "
    "the original declaration."
)
X_MATCH = 'Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x'
RESERVED = "channel 403 ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"
INEQUIVALENT = "channel 406 PRECONDITION_FAILED - inequivalent arg "
INVALID = "channel 406 PRECONDITION_FAILED - invalid "
DEFAULT = "channel 403 ACCESS_REFUSED - operation not permitted on the default exchange"


def given(*methods: Method) -> Client:
    """Return a client after these methods, all of which were answered."""
    client = Room().enter()
    for method in methods:
        ((_, reply),) = client.tell(1, method)
        assert reply.name.endswith("Ok"), reply.name
    return client


PLAIN = Declare(queue="q")
TYPED: dict[str, Any] = {"x-queue-type": "quorum"}

REFUSALS: list[tuple[str, list[Method], Method, str]] = [
    ("reserved name", [], Declare(queue="amq.mine"), RESERVED),
    ("durable differs", [PLAIN], Declare(queue="q", durable=True),
     INEQUIVALENT + "'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'"),
    ("auto_delete differs", [PLAIN], Declare(queue="q", auto_delete=True),
     INEQUIVALENT + "'auto_delete' for queue 'q' in vhost '/': received 'true' but current is 'false'"),
    ("a mode appears", [PLAIN], Declare(queue="q", arguments={"x-queue-mode": "lazy"}),
     INEQUIVALENT + "'x-queue-mode' for queue 'q' in vhost '/': "
     "received the value 'lazy' of type 'longstr' but current is none"),
    ("a mode differs", [Declare(queue="q", arguments={"x-queue-mode": "lazy"})],
     Declare(queue="q", arguments={"x-queue-mode": "default"}),
     INEQUIVALENT + "'x-queue-mode' for queue 'q' in vhost '/': received 'default' but current is 'lazy'"),
    ("a type goes", [Declare(queue="q", durable=True, arguments=TYPED)], Declare(queue="q", durable=True),
     INEQUIVALENT + "'x-queue-type' for queue 'q' in vhost '/': "
     "received 'classic' but current is 'quorum'"),
    ("exclusive on a shared one", [PLAIN], Declare(queue="q", exclusive=True), LOCKED),
    ("shared on an exclusive one", [Declare(queue="q", exclusive=True)], PLAIN, LOCKED),
    ("quorum transient", [], Declare(queue="q", arguments=TYPED),
     INVALID + "property 'non-durable' for queue 'q' in vhost '/'"),
    ("quorum exclusive", [], Declare(queue="q", durable=True, exclusive=True, arguments=TYPED),
     INVALID + "property 'exclusive-owner' for queue 'q' in vhost '/'"),
    ("quorum auto-delete", [], Declare(queue="q", durable=True, auto_delete=True, arguments=TYPED),
     INVALID + "property 'auto-delete' for queue 'q' in vhost '/'"),
    ("quorum without a name", [], Declare(durable=True, arguments=TYPED),
     "channel 406 PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"),
    ("quorum with a mode", [], Declare(queue="q", durable=True, arguments={**TYPED, "x-queue-mode": "lazy"}),
     INVALID + "arg 'x-queue-mode' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue"),
    ("unknown type", [], Declare(queue="q", arguments={"x-queue-type": "heap"}),
     INVALID + "arg 'x-queue-type' for queue 'q' in vhost '/': \"unsupported queue type 'heap'\""),
    ("type of a wrong type", [], Declare(queue="q", arguments={"x-queue-type": 1}),
     INVALID + "arg 'x-queue-type' for queue 'q' in vhost '/': {unacceptable_type,signedint}"),
    ("unknown version", [], Declare(queue="q", arguments={"x-queue-version": 3}),
     INVALID + "arg 'x-queue-version' for queue 'q' in vhost '/': \"unsupported queue version '3'\""),
    ("passive, not there", [], Declare(queue="q", passive=True),
     "channel 404 NOT_FOUND - no queue 'q' in vhost '/'"),
    ("passive without a name", [], Declare(passive=True), "channel 404 NOT_FOUND - no queue '' in vhost '/'"),
    ("bind: no queue", [], Bind(queue="q", exchange="amq.topic"),
     "channel 404 NOT_FOUND - no queue 'q' in vhost '/'"),
    ("bind: no exchange", [PLAIN], Bind(queue="q", exchange="x"),
     "channel 404 NOT_FOUND - no exchange 'x' in vhost '/'"),
    ("bind: neither", [], Bind(queue="q", exchange="x"),
     "channel 404 NOT_FOUND - no exchange 'x' in vhost '/'"),
    ("bind: default exchange", [PLAIN], Bind(queue="q", routing_key="k"), DEFAULT),
    ("bind: none declared", [], Bind(exchange="amq.topic"), "channel 404 NOT_FOUND - no previously declared queue"),
    ("bind: x-match", [PLAIN], Bind(queue="q", exchange="amq.match", arguments={"x-match": "some"}),
     "channel 406 PRECONDITION_FAILED - " + X_MATCH),
    ("bind: x-match of a wrong type", [PLAIN], Bind(queue="q", exchange="amq.match", arguments={"x-match": 1}),
     "channel 406 PRECONDITION_FAILED - Invalid x-match field type signedint (value 1); expected longstr"),
    ("unbind: default exchange", [PLAIN], Unbind(queue="q", routing_key="k"), DEFAULT),
    ("unbind: none declared", [], Unbind(exchange="amq.topic"),
     "channel 404 NOT_FOUND - no previously declared queue"),
    ("purge: no queue", [], Purge(queue="q"), "channel 404 NOT_FOUND - no queue 'q' in vhost '/'"),
    ("purge: none declared", [], Purge(), "channel 404 NOT_FOUND - no previously declared queue"),
    ("delete: none declared", [], Delete(), "channel 404 NOT_FOUND - no previously declared queue"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "method", "close"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_a_method_that_cannot_be_done_closes_the_channel_with_rabbitmqs_text(
    before: list[Method], method: Method, close: str
) -> None:
    """Every refusal has RabbitMQ's code and text."""
    assert given(*before).refused(method) == close


def test_a_stream_is_refused_with_what_there_is_instead() -> None:
    """A declare of a stream is refused with the alternatives that exist, because queues forget delivered messages."""
    close = Room().enter().refused(Declare(queue="q", durable=True, arguments={"x-queue-type": "stream"}))
    assert close.startswith(INVALID + "arg 'x-queue-type' for queue 'q' in vhost '/': \"streams are not supported; ")
    assert "type 'quorum'" in close


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-type": "classic"},
        {"x-queue-mode": "lazy"},
        {"x-queue-mode": 5},
        {"x-queue-version": 2},
        {"x-unknown": 1, "plain": "kept"},
        {"x-queue-master-locator": "min-masters"},
    ],
)
def test_an_argument_without_consequence_is_kept(arguments: dict[str, str | int]) -> None:
    """An argument without effect is accepted and kept."""
    room = Room()
    room.enter().call(1, Declare(queue="q", durable=True, arguments=dict(arguments)), commands.Queue.DeclareOk)
    assert room.vhost.queues["q"].arguments == arguments


def test_classic_is_what_a_queue_is_when_nobody_says_anything() -> None:
    """Declares with x-queue-type classic and without it are equivalent, in both orders."""
    client = Room().enter()
    classic = Declare(queue="q", arguments={"x-queue-type": "classic"})
    for method in (PLAIN, classic, PLAIN):
        client.call(1, method, commands.Queue.DeclareOk)


def test_declare_tells_the_name_and_both_counts() -> None:
    """declare-ok carries the ready messages and the consumers, for active and passive declares."""
    room = Room()
    client = room.enter()
    client.call(1, PLAIN, commands.Queue.DeclareOk)
    put(room.vhost.queues["q"], 3)
    client.consume("q")
    for method in (PLAIN, Declare(queue="q", passive=True)):
        reply = client.call(1, method, commands.Queue.DeclareOk)
        assert (reply.queue, reply.message_count, reply.consumer_count) == ("q", 3, 1)


def test_a_nameless_queue_gets_a_generated_name() -> None:
    """A generated name is amq.gen- followed by the random part."""
    client = Room().enter()
    first = client.call(1, Declare(), commands.Queue.DeclareOk)
    second = client.call(1, Declare(), commands.Queue.DeclareOk)
    assert first.queue == "amq.gen-" + "1".zfill(22)
    assert second.queue != first.queue


def test_a_generated_name_begins_with_the_prefix_that_was_asked_for() -> None:
    """The prefix is not an argument of the queue; of 65 bytes it is 406, reserved 403, and a named queue ignores it."""
    room = Room()
    client = room.enter()
    made = client.call(1, Declare(arguments={"x-name-prefix": "worker."}), commands.Queue.DeclareOk)
    assert made.queue == "worker." + "1".zfill(22)
    assert room.vhost.queues[made.queue].arguments == {}
    long, reserved = "\u00fc" * 32 + "x", Declare(arguments={"x-name-prefix": "amq.x"})
    refused = client.refused(Declare(arguments={"x-name-prefix": long}))
    assert refused == f"channel 406 PRECONDITION_FAILED - Queue name prefix '{long}' exceeds the 64-byte limit"
    assert "reserved prefix 'amq.*'" in room.enter().refused(reserved)
    assert "expected a string" in room.enter().refused(Declare(arguments={"x-name-prefix": 5}))


class AnyName(commands.Queue.Declare):
    """A declare of any name: pamqp would refuse names that other clients send."""

    def validate(self) -> None:
        """Accept it."""


def test_a_name_keeps_every_letter_but_line_ends() -> None:
    """Any short string is a queue name, and CR and LF are stripped, as in RabbitMQ."""
    client = Room().enter()
    method = AnyName(queue="b\u00fccher\r\n " + "x" * 150)
    assert client.call(1, method, commands.Queue.DeclareOk).queue == "b\u00fccher " + "x" * 150


def test_an_empty_name_is_the_queue_declared_last() -> None:
    """bind, unbind, purge, delete, get and consume read an empty name so; bind also the key if both are empty."""
    room = Room()
    client = room.enter()
    client.call(1, Declare(queue="first"), commands.Queue.DeclareOk)
    client.call(1, Declare(queue="last"), commands.Queue.DeclareOk)
    queue = room.vhost.queues["last"]
    client.call(1, Bind(exchange="amq.direct"), commands.Queue.BindOk)
    assert [binding.key for binding, _ in queue.arriving] == ["last"]
    client.call(1, Unbind(exchange="amq.direct"), commands.Queue.UnbindOk)
    assert not queue.incoming
    put(queue, 2)
    assert client.call(1, Purge(), commands.Queue.PurgeOk).message_count == 2
    client.call(1, commands.Basic.Get(), commands.Basic.GetEmpty)
    client.call(1, commands.Basic.Consume(), commands.Basic.ConsumeOk)
    assert len(queue.consumers) == 1
    client.call(1, Declare(queue="first", passive=True), commands.Queue.DeclareOk)
    client.call(1, Delete(), commands.Queue.DeleteOk)
    assert list(room.vhost.queues) == ["last"]


def test_the_queue_declared_last_belongs_to_its_channel() -> None:
    """The queue declared last belongs to its channel: another channel of the connection has none."""
    client = given(PLAIN)
    client.open_channel(2)
    assert client.refused(Purge(), 2) == "channel 404 NOT_FOUND - no previously declared queue"


def test_an_empty_name_after_the_deletion_is_a_queue_that_is_gone() -> None:
    """The channel keeps the name, not the queue: after the deletion an empty name is 404."""
    client = given(PLAIN, Delete(queue="q"))
    assert client.refused(Purge()) == "channel 404 NOT_FOUND - no queue 'q' in vhost '/'"


@pytest.mark.parametrize(
    "method",
    [
        Declare(queue="q", nowait=True),
        Bind(queue="q", exchange="amq.topic", nowait=True),
        Purge(queue="q", nowait=True),
        Delete(queue="q", nowait=True),
    ],
    ids=lambda method: method.name,
)
def test_nowait_is_not_answered(method: Method) -> None:
    """A method with nowait takes effect and has no answer."""
    assert given(PLAIN).tell(1, method) == []


def test_unbinding_what_is_not_bound_is_no_error() -> None:
    """Unbinding succeeds when binding, queue or exchange is missing, as in RabbitMQ."""
    client = given(PLAIN)
    for method in (
        Unbind(queue="q", exchange="amq.topic", routing_key="k"),
        Unbind(queue="q", exchange="x", routing_key="k"),
        Unbind(queue="nobody", exchange="amq.topic", routing_key="k"),
    ):
        client.call(1, method, commands.Queue.UnbindOk)


def test_deleting_what_is_not_there_is_no_error() -> None:
    """Deleting an unknown queue is answered with delete-ok and 0 messages."""
    assert Room().enter().call(1, Delete(queue="q"), commands.Queue.DeleteOk).message_count == 0


def test_purge_and_delete_tell_how_many_messages_were_ready() -> None:
    """purge-ok and delete-ok carry the number of ready messages."""
    room = Room()
    client = room.enter()
    client.call(1, PLAIN, commands.Queue.DeclareOk)
    put(room.vhost.queues["q"], 4)
    assert client.call(1, Purge(queue="q"), commands.Queue.PurgeOk).message_count == 4
    put(room.vhost.queues["q"], 2)
    assert client.call(1, Delete(queue="q"), commands.Queue.DeleteOk).message_count == 2


@pytest.mark.parametrize(
    ("consumed", "method", "close"),
    [
        (False, Delete(queue="q", if_empty=True), "channel 406 PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"),
        (True, Delete(queue="q", if_unused=True), "channel 406 PRECONDITION_FAILED - queue 'q' in vhost '/' in use"),
    ],
)
def test_a_conditional_delete_keeps_a_queue_that_is_needed(consumed: bool, method: Method, close: str) -> None:
    """A delete with if-empty or if-unused is refused, and the queue stays."""
    room = Room()
    client = room.enter()
    client.call(1, PLAIN, commands.Queue.DeclareOk)
    if consumed:
        client.consume("q")
    else:
        put(room.vhost.queues["q"])
    assert client.refused(method) == close
    assert "q" in room.vhost.queues


@pytest.mark.parametrize(
    "method",
    [
        Declare(queue="q", exclusive=True),
        Declare(queue="q", passive=True),
        Bind(queue="q", exchange="amq.topic"),
        Unbind(queue="q", exchange="amq.topic"),
        Purge(queue="q"),
        Delete(queue="q"),
        commands.Basic.Get(queue="q"),
        commands.Basic.Consume(queue="q"),
    ],
    ids=lambda method: method.name,
)
def test_an_exclusive_queue_is_closed_to_other_connections(method: Method) -> None:
    """Every method of another connection on an exclusive queue is refused with 405."""
    room = Room()
    owner = room.enter()
    owner.call(1, Declare(queue="q", exclusive=True), commands.Queue.DeclareOk)
    owner.call(1, Bind(queue="q", exchange="amq.topic"), commands.Queue.BindOk)
    assert room.enter().refused(method) == LOCKED


def test_what_is_not_bound_to_an_exclusive_queue_is_unbound_by_anybody() -> None:
    """Unbinding a missing binding of an exclusive queue succeeds on any connection, as in RabbitMQ."""
    room = Room()
    room.enter().call(1, Declare(queue="q", exclusive=True), commands.Queue.DeclareOk)
    room.enter().call(1, Unbind(queue="q", exchange="amq.topic"), commands.Queue.UnbindOk)


def test_an_exclusive_queue_is_open_to_all_channels_of_its_connection() -> None:
    """An exclusive queue belongs to its connection: every channel of the connection may use it."""
    client = given(Declare(queue="q", exclusive=True))
    client.open_channel(2)
    client.call(2, Declare(queue="q", exclusive=True), commands.Queue.DeclareOk)
    client.call(2, Purge(queue="q"), commands.Queue.PurgeOk)
