"""A message for very many queues enters them over several turns, in order, and after a crash all or none have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from pamqp import commands

from broker.core.publishing.publish_entry import WIDE_QUEUES
from broker.core.publishing.wide_publishes import QUEUES_PER_TURN
from broker.core.queue.queue import Queue
from broker.store.store import VhostStore
from tests.unit.core.room import FOLDER, Client, Room, messages
from tests.unit.core.session.publishing import confirms, publish

QUEUES: Final = QUEUES_PER_TURN + WIDE_QUEUES // 2
DURABLE: Final = pytest.mark.parametrize("durable", [True, False])


class Wide:
    """A fanout exchange with very many queues, and a client with confirms."""

    def __init__(self, *, durable: bool = True) -> None:
        self.room = Room()
        vhost = self.room.vhost
        self.queues: list[Queue] = []
        for number in range(QUEUES):
            queue = vhost.queues.declare(f"q{number}", durable=durable)
            vhost.bindings.bind(queue.name, "amq.fanout", "")
            self.queues.append(queue)
        self.client = self.room.confirming()

    def publish(self, body: bytes = b"wide", *, client: Client | None = None) -> None:
        """Publish a persistent message to all queues, of which none has it yet."""
        publish(client or self.client, "", body, exchange="amq.fanout", delivery_mode=2)
        if not self.room.vhost.wide.pending:
            self.room.turn()  # to look the queues up took a turn

    @property
    def entered(self) -> int:
        """The number of queues with a message."""
        return sum([1 for queue in self.queues if queue.ready])

    def finish(self) -> None:
        """Run turns until every message has entered all of its queues."""
        while self.room.vhost.wide.pending:
            self.room.turn()

    def confirm(self) -> list[str]:
        """Confirm what waits, as the committer does when the log is synced, and return the confirms of the client."""
        self.room.committer.sync()
        return confirms(self.client)

    def bodies(self, queue: Queue) -> list[bytes]:
        """Return the messages of a queue."""
        return [message.body for message in messages(queue)]


@pytest.fixture
def wide() -> Wide:
    """Return a fanout exchange with very many durable queues."""
    return Wide()


def test_the_first_publish_of_a_key_looks_its_queues_up_in_a_turn_of_its_own(wide: Wide) -> None:
    """The message begins to enter its queues in the next turn, before anything else that its client has sent."""
    publish(wide.client, "", b"wide", exchange="amq.fanout", delivery_mode=2)
    publish(wide.client, wide.queues[0].name, b"next")
    assert (wide.room.vhost.wide.begun, wide.entered, wide.client.machine.held) == (0, 0, True)
    wide.room.turn()
    assert (wide.room.vhost.wide.begun, wide.entered) == (1, 0)
    wide.client.machine.feed(b"")
    wide.finish()
    assert wide.bodies(wide.queues[0]) == [b"wide", b"next"]
    assert wide.entered == QUEUES


@DURABLE
def test_a_turn_enters_a_bounded_number_of_queues(durable: bool) -> None:
    """No turn enters more queues than QUEUES_PER_TURN, and the confirm follows the last one."""
    wide = Wide(durable=durable)
    wide.publish()
    counts = [wide.entered]
    while counts[-1] < QUEUES:
        assert wide.confirm() == []
        wide.room.turn()
        counts.append(wide.entered)
    assert counts == [0, QUEUES_PER_TURN, QUEUES]
    assert wide.confirm() == ["ack 1"]


def test_after_a_crash_all_queues_have_it_or_none(wide: Wide) -> None:
    """One record names all queues, before the message has entered any, and it names the ids that the queues give."""
    before = len(wide.room.records())
    wide.publish()
    assert (wide.entered, len(wide.room.records())) == (0, before + 1)
    store, recovered = VhostStore.open(wide.room.files, FOLDER, segment_bytes=1 << 31, sync=True)
    store.close()
    found = {number: sum([slot.end - slot.first for slot in state.slots]) for number, state in recovered.queues.items()}
    assert found == {queue.number: 1 for queue in wide.queues}
    wide.finish()
    assert {(queue.level.manager.next_id, recovered.queues[queue.number].next_id) for queue in wide.queues} == {(2, 2)}


@pytest.mark.parametrize(("durable", "delivery_mode"), [(True, 2), (True, 1), (False, 1)])
def test_nothing_overtakes_it(durable: bool, delivery_mode: int) -> None:
    """A later message of another client finds the wide one before it in a queue that had not got it yet."""
    wide = Wide(durable=durable)
    wide.publish()
    last = wide.queues[-1]
    publish(wide.room.confirming(), last.name, b"narrow", delivery_mode=delivery_mode)
    assert (wide.bodies(last), wide.entered) == ([b"wide", b"narrow"], 1)
    wide.finish()
    assert (wide.bodies(last), wide.entered) == ([b"wide", b"narrow"], QUEUES)


def test_one_after_the_other(wide: Wide) -> None:
    """A publisher of a wide message waits until the one before has entered its queues; its messages stay in order."""
    wide.publish(b"one")
    other = wide.room.confirming()
    wide.publish(b"two", client=other)
    publish(other, wide.queues[0].name, b"three")
    assert wide.room.vhost.wide.begun == 1
    while wide.room.vhost.wide.begun == 1:
        assert not any(b"two" in wide.bodies(queue) for queue in wide.queues)
        wide.room.turn()
    wide.room.vhost.ports.credit.turn(0, behind=False, crowded=False)
    other.machine.feed(b"")
    wide.finish()
    assert wide.bodies(wide.queues[0]) == [b"one", b"two", b"three"]
    assert {tuple(wide.bodies(queue)) for queue in wide.queues[1:]} == {(b"one", b"two")}


def test_a_queue_that_is_deleted_meanwhile_gets_nothing(wide: Wide) -> None:
    """The other queues get the message."""
    wide.publish()
    gone = wide.queues.pop()
    wide.room.vhost.queues.delete(gone.name, None)
    wide.finish()
    assert (gone.ready, wide.entered) == (0, QUEUES - 1)
    assert wide.confirm() == ["ack 1"]


def test_rules_hold_for_it(wide: Wide) -> None:
    """A queue with a limit drops its oldest message when the wide one enters."""
    vhost = wide.room.vhost
    limited = vhost.queues.declare("limited", durable=True, arguments={"x-max-length": 1})
    vhost.bindings.bind("limited", "amq.fanout", "")
    publish(wide.client, "limited", b"old")
    wide.publish()
    wide.finish()
    assert wide.bodies(limited)[-1:] == [b"wide"]
    assert limited.ready == 1


def test_a_transaction_is_answered_when_all_queues_have_its_message(wide: Wide) -> None:
    """Commit-ok follows the last queue."""
    client = wide.room.enter()
    client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    wide.publish(client=client)
    assert client.tell(1, commands.Tx.Commit()) == []
    assert wide.room.vhost.wide.pending
    wide.confirm()
    assert list(client.replies()) == []
    wide.finish()
    wide.confirm()
    assert [type(method) for _, method in client.replies()] == [commands.Tx.CommitOk]


def test_two_that_are_under_way_are_confirmed_together(wide: Wide) -> None:
    """A publish that is wide by CC does not wait for the one before, whose confirm is not earlier for that."""
    wide.room.vhost.bindings.bind(wide.queues[0].name, "amq.direct", "one")
    for queue in wide.queues:
        wide.room.vhost.bindings.bind(queue.name, "amq.direct", "all")
    for _ in range(2):
        publish(wide.client, "one", b"narrow", exchange="amq.direct")  # its route is cached from now on
    assert wide.confirm() == ["ack 2+"]
    for body in (b"one", b"two"):
        publish(wide.client, "one", body, exchange="amq.direct", headers={"CC": ["all"]})
    wide.room.vhost.ports.credit.turn(0, behind=False, crowded=False)
    wide.client.machine.feed(b"")
    assert wide.room.vhost.wide.begun == 2
    while wide.room.vhost.wide.pending:
        assert wide.confirm() == []
        wide.room.turn()
    assert wide.confirm() == ["ack 4+"]
    assert {tuple(wide.bodies(queue)) for queue in wide.queues[1:]} == {(b"one", b"two")}


@pytest.mark.parametrize(
    ("method", "found"),
    [
        (lambda name: commands.Queue.Declare(queue=name, durable=True), 1),
        (lambda name: commands.Queue.Purge(queue=name), 1),
        (lambda name: commands.Queue.Delete(queue=name), 1),
        (lambda name: commands.Basic.Get(queue=name), 0),
    ],
)
def test_a_method_behind_it_sees_it(method: Callable[[str], Any], found: int, wide: Wide) -> None:
    """A publish and a request on one channel are handled in order, even if the queue is one of the last."""
    wide.publish()
    ((_, answer),) = wide.client.tell(1, method(wide.queues[-1].name))
    assert getattr(answer, "message_count", None) == found
    wide.finish()
    assert wide.entered == QUEUES - (not isinstance(answer, commands.Queue.DeclareOk))
