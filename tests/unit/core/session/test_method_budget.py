"""The number of methods that one connection may have processed in a turn of the loop."""

from __future__ import annotations

from pamqp import commands

from broker.core.session.client import BUDGET_UNITS
from broker.core.session.queue import UNITS
from tests.unit.core.room import Client, Room

Bind = commands.Queue.Bind


def test_a_connection_waits_for_the_next_turn_when_it_has_asked_for_enough(room: Room, client: Client) -> None:
    """The last method of the budget is answered, and each later turn processes one more share of the rest."""
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    done = []
    for number in range(BUDGET_UNITS):
        answered = client.tell(1, Bind(queue="q", exchange="amq.direct", routing_key=str(number)))
        done.append(len(answered))
    share = sum(done)
    assert 0 < share <= BUDGET_UNITS // UNITS
    assert done == [1] * share + [0] * (BUDGET_UNITS - share)
    turns = 0
    while client.machine.held:
        room.deadlines.run(room.clock.now_ms)
        client.machine.feed(b"")
        assert len(list(client.replies())) <= BUDGET_UNITS // UNITS + 1
        turns += 1
    assert turns == UNITS
    assert room.vhost.bindings.live.count == BUDGET_UNITS


def test_a_connection_that_waits_for_something_else_is_not_let_go_early(room: Room, client: Client) -> None:
    """Budget that a held connection spends counts, and holds the connection again after its next method."""
    client.machine.hold()
    client.session.method_budget.spend(BUDGET_UNITS)
    assert room.deadlines.next_ms is None
    client.machine.release()
    client.session.method_budget.spend(1)
    assert client.machine.held
    room.deadlines.run(room.clock.now_ms)
    assert not client.machine.held
