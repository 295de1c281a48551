"""The default queue type of a vhost: where it is read, and which declares it applies to."""

from typing import Any

import pytest
from pamqp import commands

from broker.core.queue.queue_arguments import check_default_type, default_type, ignored_default_type
from tests.unit.core.room import Room


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, None),
        ({"default_queue_type": "quorum"}, "quorum"),
        ({"default_queue_type": "rabbit_quorum_queue"}, "quorum"),
        ({"metadata": {"default_queue_type": "quorum"}}, "quorum"),
        ({"default_queue_type": "classic", "metadata": {"default_queue_type": "quorum"}}, "classic"),
        ({"default_queue_type": "undefined", "metadata": {"default_queue_type": "quorum"}}, "quorum"),
        ({"default_queue_type": "undefined"}, None),
        ({"default_queue_type": None, "metadata": None}, None),
    ],
)
def test_facts_of_rabbitmq_name_the_type(facts: dict[str, Any], expected: str | None) -> None:
    """The type is read beside the vhost's name or in its metadata; `undefined` means none."""
    assert default_type(facts) == expected
    assert ignored_default_type(facts) is None


@pytest.mark.parametrize(
    ("said", "reason"),
    [("stream", "streams are not supported"), ("lazy", "it is classic or quorum"), ([1], "it is classic or quorum")],
)
def test_type_that_is_not_there_has_no_effect_and_a_reason(said: Any, reason: str) -> None:
    """An unavailable type has no effect, and the reason is reported."""
    facts = {"default_queue_type": said}
    assert default_type(facts) is None
    assert ignored_default_type(facts) == f"default_queue_type {said!r} has no effect: {reason}"


def test_operator_is_refused_what_is_not_there() -> None:
    """An operator who sets an unavailable type is refused; `undefined` is accepted as none."""
    assert [check_default_type(name) for name in (None, "undefined", "quorum")] == [None, None, "quorum"]
    with pytest.raises(ValueError, match=r"^default_queue_type cannot be 'stream': streams are not supported$"):
        check_default_type("stream")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"durable": True}, {"x-queue-type": "quorum"}),
        ({"durable": True, "arguments": {"x-max-length": 1}}, {"x-max-length": 1, "x-queue-type": "quorum"}),
        ({"durable": True, "arguments": {"x-queue-type": "classic"}}, {"x-queue-type": "classic"}),
        ({}, {}),
        ({"durable": True, "exclusive": True}, {}),
        ({"durable": True, "auto_delete": True}, {}),
    ],
)
def test_declare_without_a_type_has_the_default_where_it_fits(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """A quorum queue is durable, not exclusive and not auto-delete; the same declare again is equivalent."""
    room = Room()
    room.vhost.default_queue_type = "quorum"
    client = room.enter()
    for _ in range(2):
        client.call(1, commands.Queue.Declare(queue="q", **fields), commands.Queue.DeclareOk)
    assert room.vhost.queues["q"].arguments == expected


def test_passive_declare_finds_any_type() -> None:
    """A passive declare compares no type; an active declare of a classic queue now asks for a quorum queue."""
    room = Room()
    room.vhost.queues.declare("q", durable=True)
    room.vhost.default_queue_type = "quorum"
    client = room.enter()
    client.call(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
    assert client.refused(commands.Queue.Declare(queue="q", durable=True)) == (
        "channel 406 PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': "
        "received 'quorum' but current is 'classic'"
    )


def test_queue_that_the_broker_names_cannot_have_the_default() -> None:
    """A queue that the broker names does not get the default, because RabbitMQ's quorum queues need a name."""
    room = Room()
    room.vhost.default_queue_type = "quorum"
    assert room.enter().refused(commands.Queue.Declare(queue="", durable=True)) == (
        "channel 406 PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"
    )
