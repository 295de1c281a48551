"""Dispatch of a channel's methods: server-only methods, flow, confirms, and what ends with the channel."""

from __future__ import annotations

import pytest
from pamqp import commands

from broker.amqp.codec import Method
from broker.core.queue.queue import Queue
from broker.core.session.channel import DELIVERIES_PER_UNIT
from broker.core.session.client import BUDGET_UNITS
from tests.unit.core.room import Client, IdleWorker, Room


@pytest.mark.parametrize(
    ("method", "close"),
    [
        (commands.Basic.ConsumeOk("t"), "connection 503 COMMAND_INVALID - unimplemented method"),
        (commands.Channel.FlowOk(active=True), "connection 503 COMMAND_INVALID - unimplemented method"),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_what_a_client_may_not_ask_closes_the_connection(method: Method, close: str) -> None:
    """A method that only servers send is 503."""
    assert Room().enter().refused(method) == close


def test_confirm_select_turns_confirms_on_once(room: Room, client: Client) -> None:
    """The first publish after confirm.select has number 1, however often confirm.select is sent."""
    client.publish("", "nobody")
    for _ in range(2):
        client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    client.publish("", "nobody")
    (publisher,) = room.committer.waiting
    assert (publisher.confirming, publisher.published) == (True, 1)


class BusyWorker(IdleWorker):
    """Delivers thousands of messages whenever it serves a queue before a method."""

    def serve_first(self, queue: Queue) -> int:
        """Report many deliveries without making any."""
        queue.awake = False
        return 10 * DELIVERIES_PER_UNIT * BUDGET_UNITS


@pytest.mark.parametrize(
    "method",
    [
        commands.Queue.Declare(queue="q", passive=True),
        commands.Queue.Purge(queue="q"),
        commands.Basic.Qos(prefetch_count=1),
        commands.Basic.Get(queue="q"),
        commands.Basic.Consume(queue="q", consumer_tag="other"),
        commands.Basic.Cancel(consumer_tag="t"),
        commands.Queue.Delete(queue="q"),
    ],
    ids=lambda method: method.name,
)
def test_who_has_much_delivered_before_a_method_waits_for_the_next_turn(
    method: Method, room: Room, client: Client
) -> None:
    """A method before which much was delivered is answered, and the methods after it wait for the next turn."""
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    client.call(1, commands.Basic.Consume(queue="q", consumer_tag="t"), commands.Basic.ConsumeOk)
    queue = client.basic().consumers["t"].queue
    queue.worker = BusyWorker()
    queue.awake = True
    assert client.tell(1, method)
    assert client.machine.held
    room.deadlines.run(room.clock.now_ms)
    assert not client.machine.held
