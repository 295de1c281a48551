"""Dead letters: target queues, headers, and the order of log records."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from pamqp import commands, header
from structlog.testing import capture_logs

from broker.amqp.content_header import decode_properties, facts_of
from broker.core.deadlines import TURN_SHARE
from broker.core.message.message import OVERHEAD_BYTES, Envelope, Message
from broker.core.policy.policy import Policy
from broker.core.publishing.dead_letter import DEATH_UNITS
from broker.core.publishing.reply_to import REPLY_PREFIX
from broker.core.queue.level import BATCH_MESSAGES, Level
from broker.core.queue.queue import Queue
from broker.slots.slot import Slot
from broker.store.record import KIND_AT, MESSAGE, SETTLED
from tests.unit.core.room import NO_PROPERTIES, Room, messages

NOW_MS = 1_700_000_000_999
NOW = datetime.fromtimestamp(NOW_MS // 1000, UTC)


class Graveyard(Room):
    """A vhost with queues whose messages the test dead-letters."""

    def __init__(self) -> None:
        super().__init__()
        self.clock.now_ms = NOW_MS

    def queue(self, name: str, *, durable: bool = False, **arguments: Any) -> Queue:
        """Declare a queue; argument names have underscores and no x-."""
        named = {f"x-{argument.replace('_', '-')}": value for argument, value in arguments.items()}
        return self.vhost.queues.declare(name, durable=durable, arguments=named)

    def exchange(self, type: str, *bindings: tuple[Queue, str], **arguments: str) -> None:
        """Declare an exchange named after its type, with queues bound to it."""
        named = {f"x-{argument.replace('_', '-')}": value for argument, value in arguments.items()}
        self.vhost.exchanges.declare(type, type, arguments=named)
        for queue, key in bindings:
            self.vhost.bindings.bind(queue.name, type, key)

    def dead_letter(self, queue: Queue, reason: str = "rejected", **properties: Any) -> Message:
        """Dead-letter a message of a queue and return the message."""
        message = message_to(queue, **properties)
        self.vhost.dead_letters.dead_letter(queue, message, reason)
        return message


def message_to(queue: Queue, body: bytes = b"body", **properties: Any) -> Message:
    """Return a message that was published to a queue by its name."""
    octets = header.ContentHeader(body_size=len(body), properties=commands.Basic.Properties(**properties)).marshal()
    return Message(Envelope("", queue.name), octets, body, 1, facts_of(octets), 5)


@pytest.fixture
def yard() -> Graveyard:
    """Return a vhost for dead-lettering."""
    return Graveyard()


def headers_of(message: Message) -> dict[str, Any]:
    """Return a message's headers table."""
    return decode_properties(message.header).headers or {}


def test_what_a_dead_letter_says(yard: Graveyard) -> None:
    """A dead letter is the message in a new envelope, with x-death, without expiration, and its age starts over."""
    queue, target = yard.queue("q", dead_letter_exchange="", dead_letter_routing_key="dead"), yard.queue("dead")
    kept: dict[str, Any] = {"content_type": "t", "priority": 3, "user_id": "u", "message_id": "m", "delivery_mode": 2}
    source = yard.dead_letter(queue, "expired", headers={"n": 1, "CC": ["a"], "BCC": ["b"]}, expiration="+20", **kept)
    (dead,) = messages(target)
    death = {
        "count": 1,
        "reason": "expired",
        "queue": "q",
        "time": NOW,
        "exchange": "",
        "routing-keys": ["q", "a"],
        "original-expiration": "+20",
    }
    headers: dict[str, Any] = {
        "n": 1,
        "CC": ["a"],
        "x-death": [death],
        "x-first-death-reason": "expired",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "",
        "x-last-death-reason": "expired",
        "x-last-death-queue": "q",
        "x-last-death-exchange": "",
    }
    assert decode_properties(dead.header) == commands.Basic.Properties(headers=headers, **kept)
    assert dead.header[:12] == source.header[:12]
    assert (dead.envelope.exchange, dead.envelope.key, dead.body, dead.timestamp_ms) == ("", "dead", b"body", NOW_MS)
    assert (dead.facts.persistent, dead.facts.priority, dead.facts.expiration_ms) == (True, 3, None)
    assert dead.charge == OVERHEAD_BYTES + len(dead.header) + len(dead.body)
    assert source.facts.expiration_ms == 20  # other queues may still hold it


def test_without_a_key_it_keeps_its_own(yard: Graveyard) -> None:
    """Without a dead-letter key, the message is routed by its own key and CC, once per queue, and keeps its CC."""
    queue = yard.queue("q", dead_letter_exchange="direct")
    one, two, three = yard.queue("one"), yard.queue("two"), yard.queue("three")
    yard.exchange("direct", (one, "q"), (one, "copy"), (two, "copy"), (three, "blind"))
    yard.dead_letter(queue, headers={"CC": ["copy", 5], "BCC": ["blind"]})
    ((first,), (second,)) = messages(one), messages(two)
    assert first is second
    assert (first.envelope.exchange, first.envelope.key) == ("direct", "q")
    headers = headers_of(first)
    assert (headers["CC"], headers["x-death"][0]["routing-keys"]) == (["copy", 5], ["q", "copy"])
    assert "BCC" not in headers
    assert not three.ready
    assert first.charge == OVERHEAD_BYTES + (len(first.header) + len(first.body)) // 2


def test_a_key_of_its_own_ends_the_copies(yard: Graveyard) -> None:
    """With a dead-letter key, CC stays in the headers but does not route, whatever the reason of the death."""
    first = yard.queue("first", dead_letter_exchange="", dead_letter_routing_key="second")
    second, third = yard.queue("second", dead_letter_exchange="direct"), yard.queue("third")
    copied = yard.queue("copied")
    yard.exchange("direct", (third, "second"), (copied, "copy"))
    yard.dead_letter(first, headers={"CC": ["copy"]})
    (dead,) = messages(second)
    yard.vhost.dead_letters.dead_letter(second, dead, "rejected")
    (twice,) = messages(third)
    headers = headers_of(twice)
    assert [headers["CC"], headers["x-last-death-queue"], headers["x-first-death-queue"]] == [
        ["copy"],
        "second",
        "first",
    ]
    assert [death["routing-keys"] for death in headers["x-death"]] == [["second"], ["first", "copy"]]
    assert not copied.ready


def test_a_key_like_its_own_ends_the_copies_too(yard: Graveyard) -> None:
    """CC is removed when the dead-letter key equals the message's key, because nothing would tell them apart."""
    first = yard.queue("first", dead_letter_exchange="fanout", dead_letter_routing_key="first")
    second = yard.queue("second", dead_letter_exchange="direct")
    copied = yard.queue("copied")
    yard.exchange("fanout", (second, ""))
    yard.exchange("direct", (copied, "copy"))
    yard.dead_letter(first, headers={"CC": ["copy"]})
    (dead,) = messages(second)
    yard.vhost.dead_letters.dead_letter(second, dead, "rejected")
    assert "CC" not in headers_of(dead)
    assert not copied.ready


def test_by_headers(yard: Graveyard) -> None:
    """A headers exchange matches the headers of the dead letter."""
    queue, target = yard.queue("q", dead_letter_exchange="headers"), yard.queue("target")
    yard.exchange("headers")
    yard.vhost.bindings.bind("target", "headers", "", {"x-match": "all-with-x", "x-first-death-queue": "q", "n": 1})
    yard.dead_letter(queue, headers={"n": 2})
    yard.dead_letter(queue, headers={"n": 1})
    assert [headers_of(message)["n"] for message in messages(target)] == [1]


@pytest.mark.parametrize("arguments", [{}, {"dead_letter_exchange": "missing"}, {"dead_letter_exchange": "fanout"}])
def test_nowhere_to_go(yard: Graveyard, arguments: dict[str, Any]) -> None:
    """A dead letter is dropped silently without an exchange, with an unknown one or without a route."""
    queue = yard.queue("q", **arguments)
    yard.exchange("fanout")
    with capture_logs() as logs:
        yard.dead_letter(queue)
    assert logs == []
    assert yard.records() == []


def test_records(yard: Graveyard) -> None:
    """A persistent message has one record for all its queues, written before the record that settles its source."""
    queue = yard.queue("q", durable=True, dead_letter_exchange="fanout")
    targets = [yard.queue(name, durable=True) for name in ("one", "two")]
    yard.exchange("fanout", *((target, "") for target in (*targets, yard.queue("three"))))
    yard.dead_letter(queue, delivery_mode=2)
    yard.dead_letter(queue, delivery_mode=1)
    assert [record[KIND_AT] for record in yard.records()] == [MESSAGE]
    assert [target.ready for target in targets] == [2, 2]
    message, stream = message_to(queue, delivery_mode=2), queue.level
    message.recorded(1, 1)  # its own record, from an earlier turn
    stream.append([message], recorded=True)
    slot = stream.manager.front()
    assert slot is not None
    stream.dead_letter(slot, stream.manager.take(slot, 1), "rejected")
    stream.log_settlements()
    assert [record[KIND_AT] for record in yard.records()] == [MESSAGE, MESSAGE, SETTLED]


def test_full_queues_push_on_without_recursion(yard: Graveyard) -> None:
    """A dead letter pushes out another through more queues than the stack is deep, one share per turn."""
    number = 3000
    queues = [
        yard.queue(f"q{at}", max_length=1, dead_letter_exchange="", dead_letter_routing_key=f"q{at + 1}")
        for at in range(number)
    ]
    last = yard.queue(f"q{number}")
    for queue in queues[1:]:
        queue.level.append([message_to(queue, b"filler")])
    yard.dead_letter(queues[0], body=b"mover")
    turns = 1
    while yard.deadlines.next_ms is not None:
        turns += 1
        yard.turn()
    assert turns > number * DEATH_UNITS // TURN_SHARE
    assert [queue.ready for queue in queues[1:]] == [1] * (number - 1)
    assert [message.body for message in messages(queues[1])] == [b"mover"]
    assert [message.envelope.key for message in messages(last)] == [last.name]


@pytest.mark.parametrize("on_disk", [False, True])
def test_each_of_very_many_rejected_messages_is_one_dead_letter(yard: Graveyard, on_disk: bool) -> None:
    """Messages that are rejected at once become dead letters in their order, each once, over as many turns as needed.

    A turn dead-letters them in batches; the others stay unacked until then, also if they have to be read first.
    """
    queue, target = yard.queue("q", dead_letter_exchange="", dead_letter_routing_key="dead"), yard.queue("dead")
    bodies = [b"%d" % number for number in range(3 * TURN_SHARE // DEATH_UNITS)]
    assert len(bodies) > 7 * BATCH_MESSAGES
    stream = queue.level
    stream.append([message_to(queue, body) for body in bodies])
    slot = stream.manager.get(queue.worker.owner)
    assert slot is not None
    taken, contents = stream.manager.take(slot, len(bodies)), slot.contents
    assert contents is not None

    def read(_level: Level, found: Slot, then: Callable[[], None]) -> None:
        found.load(contents, found.bytes)
        then()

    if on_disk:
        yard.vhost.ports.read = read
        slot.page_out(slot.body_bytes)
    stream.dead_letter(slot, taken, "rejected", at_once=False)
    buried = [len(messages(target))]
    while yard.deadlines.next_ms is not None:
        assert queue.unacked == len(bodies) - buried[-1]
        yard.turn()
        buried.append(len(messages(target)))
        assert len(buried) < 50
    assert len(buried) >= 3
    assert all(BATCH_MESSAGES <= after - before < len(bodies) // 2 for before, after in pairwise([0, *buried]))
    assert [message.body for message in messages(target)] == bodies
    assert (queue.ready, queue.unacked) == (0, 0)


@pytest.mark.parametrize(
    ("definition", "kept"), [({"max-length": 3}, 3), ({"max-length-bytes": 10}, 2), ({"message-ttl": 5}, 0)], ids=str
)
def test_what_a_new_rule_drops_goes_batch_by_batch_and_turn_by_turn(
    yard: Graveyard, definition: dict[str, Any], kept: int
) -> None:
    """A rule that leaves next to nothing of a large backlog buries the rest in order, each message once."""
    queue, target = yard.queue("q", dead_letter_exchange="", dead_letter_routing_key="dead"), yard.queue("dead")
    bodies = [b"%05d" % number for number in range(3 * TURN_SHARE // DEATH_UNITS)]
    queue.level.append([message_to(queue, body) for body in bodies])
    yard.clock.now_ms += 10
    yard.vhost.policies.set(Policy(name="p", pattern="^q$", apply_to="queues", definition=definition))
    buried = [len(messages(target))]
    while yard.deadlines.next_ms is not None:
        yard.turn()
        buried.append(len(messages(target)))
        assert queue.ready == len(bodies) - buried[-1]
        assert len(buried) < 50
    assert len(buried) >= 3
    assert all(0 < after - before < len(bodies) // 2 for before, after in pairwise(buried))
    assert [message.body for message in messages(target)] == bodies[: len(bodies) - kept]
    assert [message.body for message in messages(queue)] == bodies[len(bodies) - kept :]


def test_refused_dead_letters(yard: Graveyard) -> None:
    """A full queue that rejects publishes drops dead letters."""
    queue = yard.queue("q", dead_letter_exchange="", dead_letter_routing_key="full")
    full = yard.queue("full", max_length=1, overflow="reject-publish")
    for _ in range(3):
        yard.dead_letter(queue)
    assert full.ready == 1


@pytest.mark.parametrize("reason", ["expired", "maxlen", "delivery_limit"])
def test_cycles_end(yard: Graveyard, reason: str) -> None:
    """A message does not return by itself to the queue where it died, which is logged once; other queues accept it."""
    queue, other = yard.queue("q", dead_letter_exchange="fanout"), yard.queue("other")
    yard.exchange("fanout", (queue, ""), (other, ""))
    with capture_logs() as logs:
        yard.dead_letter(queue, reason, headers={"x-death": [{"queue": "before", "reason": "expired"}]})
    assert (queue.ready, other.ready) == (0, 1)
    cycle = ["q", "q", "before"]
    event = {"event": "dead_letter.dropped", "vhost": "/", "queue": "q", "cycle": cycle, "log_level": "warning"}
    assert logs == [event]


def test_direct_replies(yard: Graveyard) -> None:
    """A dead letter to the default exchange reaches a direct reply-to name, like any message."""
    answers: list[tuple[str, bytes]] = []

    class Waiting:
        def deliver(self, envelope: Envelope, header: bytes, body: bytes) -> None:
            assert headers_of(Message(envelope, header, body, 1, facts_of(header), 0))["x-first-death-queue"] == "q"
            answers.append((envelope.key, body))

    waiting: Any = Waiting()
    name = REPLY_PREFIX + "abc"
    yard.vhost.replies[name] = waiting
    yard.dead_letter(yard.queue("q", dead_letter_exchange="", dead_letter_routing_key=name))
    yard.dead_letter(yard.queue("r", dead_letter_exchange="", dead_letter_routing_key=REPLY_PREFIX + "gone"))
    assert answers == [(name, b"body")]


def test_delayed(yard: Graveyard) -> None:
    """A delayed exchange holds a dead letter with x-delay; a message that was held before is routed at once."""
    queue, target = yard.queue("q", dead_letter_exchange="x-delayed-message"), yard.queue("target")
    yard.exchange("x-delayed-message", (target, ""), delayed_type="fanout")
    yard.dead_letter(queue, headers={"x-delay": 500})
    yard.dead_letter(queue, headers={"x-delay": -500})
    assert target.ready == 1
    yard.turn(500)
    assert [headers_of(message)["x-delay"] for message in messages(target)] == [-500, -500]


def test_envelopes_are_shared(yard: Graveyard) -> None:
    """Dead letters of one exchange and key share their envelope, up to a limit."""
    queue, target = yard.queue("q", dead_letter_exchange="fanout"), yard.queue("target")
    yard.exchange("fanout", (target, ""))
    for number in range(3000):
        message = Message(Envelope("", str(number)), NO_PROPERTIES, b"", 1, facts_of(NO_PROPERTIES), 5)
        yard.vhost.dead_letters.dead_letter(queue, message, "rejected")
        yard.vhost.dead_letters.dead_letter(queue, message, "rejected")
    found = messages(target)
    assert all(first.envelope is second.envelope for first, second in zip(found[::2], found[1::2], strict=True))
    assert len({message.envelope.key for message in found}) == 3000
