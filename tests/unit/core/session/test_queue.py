"""The Queue class from the client's side, where the recorded conversations with RabbitMQ say nothing."""

from __future__ import annotations

from pamqp import commands

from tests.unit.core.room import Client, Room

Declare, Bind, Unbind = commands.Queue.Declare, commands.Queue.Bind, commands.Queue.Unbind

INVALID = "channel 406 PRECONDITION_FAILED - invalid "


def test_a_stream_is_refused_with_what_there_is_instead() -> None:
    """A declare of a stream is refused with the alternatives that exist, because queues forget delivered messages."""
    close = Room().enter().refused(Declare(queue="q", durable=True, arguments={"x-queue-type": "stream"}))
    assert close.startswith(INVALID + "arg 'x-queue-type' for queue 'q' in vhost '/': \"streams are not supported; ")
    assert "type 'quorum'" in close


def test_a_generated_name_begins_with_the_prefix_that_was_asked_for(room: Room, client: Client) -> None:
    """The prefix is not an argument of the queue; of 65 bytes it is 406, reserved 403, and a named queue ignores it."""
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


def test_a_name_keeps_every_letter_but_line_ends(client: Client) -> None:
    """Any short string is a queue name, and CR and LF are stripped, as in RabbitMQ."""
    method = AnyName(queue="b\u00fccher\r\n " + "x" * 150)
    assert client.call(1, method, commands.Queue.DeclareOk).queue == "b\u00fccher " + "x" * 150


def test_what_is_not_bound_to_an_exclusive_queue_is_unbound_by_anybody(room: Room) -> None:
    """Unbinding a missing binding of an exclusive queue succeeds on any connection, as in RabbitMQ."""
    room.enter().call(1, Declare(queue="q", exclusive=True), commands.Queue.DeclareOk)
    room.enter().call(1, Unbind(queue="q", exchange="amq.topic"), commands.Queue.UnbindOk)
