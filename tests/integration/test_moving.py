"""An operator moves messages from one queue to others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.cli.control_client import Unanswered
from broker.core.moving.move import Move, MoveTally
from broker.core.moving.placement import to_queue
from broker.operations.moving import carry_out
from broker.server import BrokerServer
from tests.deadline import wait_until_async
from tests.in_process import client_of, queue_of, running_broker, told
from tests.raw_talk import page_out

pytestmark = pytest.mark.usefixtures("quiet")

SMALL_SLOTS: Any = {"slots": {"window_messages": 10}}


async def move(broker: BrokerServer, queue: str, to: str, **arguments: Any) -> dict[str, Any]:
    """Move messages, and return the non-empty fields of the broker's answer."""
    answer = await told(broker, "move", queue=queue, to=to, **arguments)
    return {name: value for name, value in answer.items() if value and name not in ("to", "left")}


async def publish(channel: Any, key: str, *bodies: bytes, exchange: str = "", **properties: Any) -> None:
    """Publish persistent messages and return when they are confirmed."""
    target = await channel.get_exchange(exchange, ensure=False) if exchange else channel.default_exchange
    for body in bodies:
        await target.publish(aio_pika.Message(body, **{"delivery_mode": 2, **properties}), key, mandatory=False)


async def take_all(channel: Any, name: str) -> list[Any]:
    """Fetch everything from a queue."""
    queue = await channel.get_queue(name, ensure=False)
    found = []
    while (message := await queue.get(no_ack=True, fail=False)) is not None:
        found.append(message)
    return found


async def bodies(channel: Any, name: str) -> list[bytes]:
    """Fetch everything from a queue and return the bodies."""
    return [message.body for message in await take_all(channel, name)]


def numbered(count: int) -> list[bytes]:
    """Return this many different bodies."""
    return [b"%d" % number for number in range(count)]


async def test_messages_go_to_a_queue_as_they_are_and_in_order(tmp_path: Path) -> None:
    """A move keeps order, exchange, routing key, properties and body, for messages in memory and on disk."""
    async with running_broker(tmp_path, **SMALL_SLOTS) as broker, client_of(broker) as channel:
        source = await channel.declare_queue("source", durable=True)
        await channel.declare_queue("target", durable=True)
        await channel.declare_exchange("logs", "topic")
        await source.bind("logs", "#")
        await publish(channel, "app.error", *numbered(95), exchange="logs", headers={"n": 1}, content_type="text/x")
        page_out(broker, "source")
        assert await move(broker, "source", "target") == {"moved": 95}
        found = await take_all(channel, "target")
        assert [message.body for message in found] == numbered(95)
        assert {(message.exchange, message.routing_key, message.content_type) for message in found} == {
            ("logs", "app.error", "text/x")
        }
        assert [message.headers for message in found] == [{"n": 1}] * 95
        assert not any(message.redelivered for message in found)
        assert queue_of(broker, "source").ready == queue_of(broker, "source").unacked == 0


async def test_messages_go_through_an_exchange_by_their_key_or_another(tmp_path: Path) -> None:
    """Messages that no queue accepts stay in the source, and are counted."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("source", durable=True)
        await channel.declare_exchange("x", "topic")
        for name in ("all", "errors"):
            queue = await channel.declare_queue(name, durable=True)
            await queue.bind("x", "source" if name == "all" else "error.*")
        await publish(channel, "source", *numbered(3))
        assert await move(broker, "source", "x", limit=1) == {"moved": 1}
        assert await move(broker, "source", "x:nowhere") == {"unroutable": 2}
        assert queue_of(broker, "source").ready == 2
        assert await move(broker, "source", "x:error.a") == {"moved": 2}
        assert await bodies(channel, "all") == [b"0"]
        assert [(m.body, m.exchange, m.routing_key) for m in await take_all(channel, "errors")] == [
            (b"1", "x", "error.a"),
            (b"2", "x", "error.a"),
        ]


async def test_a_tap_is_no_queue_for_a_message(tmp_path: Path) -> None:
    """A message that only a tap would receive is unroutable, and the tap does not get it either."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("source", durable=True)
        await told(broker, "tap_add", exchange="amq.fanout", pattern="#", name="ear")
        await publish(channel, "source", b"m")
        assert await move(broker, "source", "amq.fanout") == {"unroutable": 1}
        await channel.declare_queue("target", durable=True)
        await (await channel.get_queue("target")).bind("amq.fanout")
        assert await move(broker, "source", "amq.fanout") == {"moved": 1}
        (tap,) = broker.engines["/"].vhost.queues.taps.values()
        assert tap.ready == 1


async def test_a_full_queue_that_rejects_ends_the_move(tmp_path: Path) -> None:
    """The move ends when the target is full: accepted messages are there, the others stay in order."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("source", durable=True)
        full = {"x-max-length": 4, "x-overflow": "reject-publish"}
        await channel.declare_queue("target", durable=True, arguments=full)
        await publish(channel, "source", *numbered(9))
        answer = await move(broker, "source", "target")
        assert answer == {"moved": 4, "refused": 1, "stopped": "queue 'target' is full"}
        assert await bodies(channel, "target") == numbered(4)
        assert await bodies(channel, "source") == numbered(9)[4:]


async def test_a_queue_that_drops_its_head_drops_it(tmp_path: Path) -> None:
    """A target that drops its head keeps the newest; messages dead-lettered back to the source do not move again."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("source", durable=True)
        limits = {"x-max-length": 4, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "source"}
        await channel.declare_queue("target", durable=True, arguments=limits)
        await publish(channel, "source", *numbered(9))
        assert await move(broker, "source", "target") == {"moved": 9}
        assert await bodies(channel, "target") == numbered(9)[5:]
        assert await bodies(channel, "source") == numbered(5)


async def test_all_queues_of_a_route_take_a_message_or_none(tmp_path: Path) -> None:
    """When one of two target queues is full, the message stays in the source for both."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("source", durable=True)
        for name, arguments in (("first", {}), ("second", {"x-max-length": 1, "x-overflow": "reject-publish"})):
            queue = await channel.declare_queue(name, durable=True, arguments=arguments)
            await queue.bind("amq.fanout")
        await publish(channel, "source", b"0", b"1")
        assert await move(broker, "source", "amq.fanout") == {"moved": 1, "refused": 1}
        assert [await bodies(channel, name) for name in ("first", "second", "source")] == [[b"0"], [b"0"], [b"1"]]


async def test_unacked_messages_stay_with_their_consumer(tmp_path: Path) -> None:
    """Messages that are requeued after the move stay in the source."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        source = await channel.declare_queue("source", durable=True)
        await channel.declare_queue("target", durable=True)
        await publish(channel, "source", *numbered(4))
        held = [await source.get(), await source.get()]
        await held[0].reject(requeue=True)
        assert await move(broker, "source", "target") == {"moved": 3}
        await held[1].reject(requeue=True)
        assert await bodies(channel, "target") == [b"0", b"2", b"3"]
        assert [(m.body, m.redelivered) for m in await take_all(channel, "source")] == [(b"1", True)]


async def test_conditions_choose_and_all_have_to_hold(tmp_path: Path) -> None:
    """Messages that do not match all conditions stay in order, and are delivered as fresh ones."""
    async with running_broker(tmp_path, **SMALL_SLOTS) as broker, client_of(broker) as channel:
        source = await channel.declare_queue("source", durable=True)
        await channel.declare_queue("target", durable=True)
        await source.bind("amq.topic", "#")
        for number in range(30):
            key = f"order.{'eu' if number % 3 else 'us'}"
            headers = {"n": number, "odd": bool(number % 2)}
            await publish(channel, key, b"body %d." % number, exchange="amq.topic", headers=headers)
        page_out(broker, "source")
        for match, wanted in (
            (["key=*.us", "header:odd=true"], [3, 9, 15, 21, 27]),
            (["header:n=4"], [4]),
            (["body~y 7."], [7]),
            (["exchange=other"], []),
            (["key=#.eu", "exchange=amq.topic", "body~1."], [1, 11]),
        ):
            answer = await move(broker, "source", "target", match=match)
            assert answer.get("moved", 0) == len(wanted)
            assert await bodies(channel, "target") == [b"body %d." % number for number in wanted]
        left = await take_all(channel, "source")
        gone = {3, 9, 15, 21, 27, 4, 7, 1, 11}
        assert [m.body for m in left] == [b"body %d." % number for number in range(30) if number not in gone]
        assert not any(m.redelivered for m in left)


async def test_priority_goes_first_and_stays(tmp_path: Path) -> None:
    """Priorities are kept when messages leave a priority queue and when they enter one."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("source", durable=True, arguments={"x-max-priority": 3})
        await channel.declare_queue("target", durable=True, arguments={"x-max-priority": 3})
        await channel.declare_queue("plain", durable=True)
        for number in range(8):
            await publish(channel, "source", b"%d" % number, priority=number % 4)
        assert await move(broker, "source", "target") == {"moved": 8}
        assert await move(broker, "target", "plain") == {"moved": 8}
        assert await bodies(channel, "plain") == [b"3", b"7", b"2", b"6", b"1", b"5", b"0", b"4"]


async def test_a_consumer_of_the_source_and_a_move_share_the_messages(tmp_path: Path) -> None:
    """Each message goes either to the consumer or to the target."""
    async with running_broker(tmp_path, **SMALL_SLOTS) as broker, client_of(broker) as channel:
        await channel.set_qos(1)
        source = await channel.declare_queue("source", durable=True)
        await channel.declare_queue("target", durable=True)
        await publish(channel, "source", *numbered(600))
        seen: list[bytes] = []

        async def on_message(message: Any) -> None:
            seen.append(message.body)
            await message.ack()

        tag = await source.consume(on_message)
        moved = (await move(broker, "source", "target"))["moved"]
        await wait_until_async(
            lambda: queue_of(broker, "source").ready + queue_of(broker, "source").unacked == 0, "the end of the source"
        )
        await source.cancel(tag)
        assert sorted([*seen, *await bodies(channel, "target")]) == sorted(numbered(600))
        assert len(seen) + moved == 600


async def test_a_move_into_its_own_queue_by_an_exchange_ends(tmp_path: Path) -> None:
    """Each message moves once when an exchange leads back to the source."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        source = await channel.declare_queue("source", durable=True)
        await source.bind("amq.fanout")
        await publish(channel, "source", *numbered(5))
        assert await move(broker, "source", "amq.fanout") == {"moved": 5}
        assert await bodies(channel, "source") == numbered(5)


async def test_expired_messages_are_not_revived(tmp_path: Path) -> None:
    """Expired messages die in their queue; the TTL of moved ones begins again."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("source", durable=True)
        await channel.declare_queue("target", durable=True)
        await publish(channel, "source", b"stands in front")
        await publish(channel, "source", b"dead", expiration=0.001)
        await publish(channel, "source", b"alive", expiration=1000)

        async def expired() -> bool:
            broker.turn.read_clock()
            queue = queue_of(broker, "source")
            slot = queue.level.manager.open
            assert slot.contents is not None
            return bool((queue.expires_ms(slot.contents[1]) or 0) <= broker.turn.now_ms)

        await wait_until_async(expired, "the second message to be late")
        assert (await move(broker, "source", "target"))["moved"] == 2
        assert await bodies(channel, "target") == [b"stands in front", b"alive"]
        assert await bodies(channel, "source") == []


async def test_a_delayed_message_waits_in_its_new_exchange(tmp_path: Path) -> None:
    """A moved message waits in the delayed exchange as a published one does."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("source", durable=True)
        arguments = {"x-delayed-type": "fanout"}
        await channel.declare_exchange("late", "x-delayed-message", durable=True, arguments=arguments)
        target = await channel.declare_queue("target", durable=True)
        await target.bind("late")
        await publish(channel, "source", b"m", headers={"x-delay": 20_000_000})
        assert await move(broker, "source", "late") == {"moved": 1}
        assert (queue_of(broker, "amq.delayed.late").ready, queue_of(broker, "target").ready) == (1, 0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"queue": "none", "to": "target"}, "no queue 'none' in vhost '/'"),
        ({"to": "none"}, "no queue or exchange 'none' in vhost '/'"),
        ({"to": "none:key"}, "no queue or exchange 'none:key' in vhost '/'"),
        ({"to": "exchange:target"}, "no exchange 'target' in vhost '/'"),
        ({"to": "queue:amq.topic"}, "no queue 'amq.topic' in vhost '/'"),
        ({"to": "both"}, "'both' is a queue and an exchange: say 'queue:both' or 'exchange:both'"),
        ({"to": "source"}, "queue 'source' cannot be moved to itself"),
        ({"to": "amq.topic:" + "k" * 256}, "a routing key has at most 255 bytes"),
        ({"to": "target", "limit": 0}, "'limit' should be an integer from 1"),
        ({"to": "target", "match": ["foo"]}, "'foo' is not a condition: it is key=PATTERN"),
        ({"to": "target", "vhost": "none"}, "no vhost 'none'"),
    ],
)
async def test_what_cannot_be_moved_is_refused(tmp_path: Path, arguments: dict[str, Any], reason: str) -> None:
    """A move that is not possible is refused with one line of reason, and nothing has moved."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        for name in ("source", "target", "both"):
            await channel.declare_queue(name, durable=True)
        await channel.declare_exchange("both")
        await publish(channel, "source", b"m")
        with pytest.raises(Unanswered, match=f"^{reason}".replace("(", r"\(")):
            await told(broker, "move", **{"queue": "source", **arguments})
        assert queue_of(broker, "source").ready == 1


async def test_the_brokers_own_queues_cannot_be_moved(tmp_path: Path) -> None:
    """The internal queues of taps and of delayed exchanges are neither sources nor targets."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        await channel.declare_exchange("late", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
        for source, target in (("amq.delayed.late", "q"), ("q", "amq.delayed.late")):
            with pytest.raises(Unanswered, match="is the broker's own"):
                await move(broker, source, target)


async def test_names_with_colons_are_found(tmp_path: Path) -> None:
    """The whole text is tried as a name first."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("source", durable=True)
        target = await channel.declare_queue("a:b", durable=True)
        await channel.declare_exchange("x:y", "direct")
        await target.bind("x:y", "c:d")
        await publish(channel, "source", b"0", b"1", b"2")
        for to in ("a:b", "x:y:c:d", ":a:b"):
            assert await move(broker, "source", to, limit=1) == {"moved": 1}
        found = [(m.exchange, m.routing_key) for m in await take_all(channel, "a:b")]
        assert found == [("", "source"), ("x:y", "c:d"), ("", "a:b")]


async def test_a_move_that_is_to_end_stops_behind_a_step(tmp_path: Path) -> None:
    """A move that is stopped ends after a step: messages reported as moved are on disk, the rest stays in order."""
    async with running_broker(tmp_path, **SMALL_SLOTS) as broker, client_of(broker) as channel:
        await channel.declare_queue("source", durable=True)
        await channel.declare_queue("target", durable=True)
        everything = numbered(2500)
        await asyncio.gather(*(publish(channel, "source", body) for body in everything))
        engine = broker.engines["/"]
        find_placement = to_queue(queue_of(broker, "target"))
        moving = Move(engine.vhost, queue_of(broker, "source"), find_placement, wanted=lambda _message: True)
        steps: list[int] = []

        def step(tally: MoveTally) -> str:
            steps.append(tally.moved)
            assert len(steps) == 1 or not engine.store.log.needs_sync
            return "enough" if len(steps) == 3 else ""

        assert await carry_out(engine, moving, step) == "enough"
        assert steps[0] == 0 < steps[1] < steps[2] == queue_of(broker, "target").ready < 2500
        assert await bodies(channel, "target") + await bodies(channel, "source") == everything


async def test_a_move_that_fails_in_the_middle_has_each_message_once(tmp_path: Path) -> None:
    """After a defect at one message, earlier ones are in the new queue only, and the rest in the old one."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("source", durable=True)
        await channel.declare_queue("target", durable=True)
        await publish(channel, "source", *numbered(9))

        def fails(message: Any) -> bool:
            assert message.body != b"5"
            return True

        engine = broker.engines["/"]
        find_placement = to_queue(queue_of(broker, "target"))
        with pytest.raises(AssertionError):
            await carry_out(
                engine, Move(engine.vhost, queue_of(broker, "source"), find_placement, wanted=fails), lambda _: ""
            )
        assert await bodies(channel, "target") == numbered(5)
        assert await bodies(channel, "source") == numbered(9)[5:]


@pytest.mark.interpreted("a method of the committer is replaced")
async def test_a_move_ends_with_its_vhost(tmp_path: Path) -> None:
    """The client learns at once that the vhost of its move was deleted."""
    async with running_broker(tmp_path) as broker:
        await told(broker, "add_vhost", name="v", description="", default_queue_type=None)
        for name in ("source", "target"):
            await told(broker, "declare_queue", queue=name, vhost="v")
        await told(broker, "publish", to="source", vhost="v", bodies=["bQ=="] * 3000)
        engine = broker.engines["v"]
        drain = engine.committer.drain

        async def drain_behind_the_deletion() -> None:
            engine.committer.drain = drain  # type: ignore[method-assign]
            await told(broker, "delete_vhost", name="v")
            await drain()

        engine.committer.drain = drain_behind_the_deletion  # type: ignore[method-assign]
        with pytest.raises(Unanswered, match=r"^the vhost was deleted$"):
            await told(broker, "move", queue="source", to="target", vhost="v")


async def test_dead_letters_go_back_where_they_died(tmp_path: Path) -> None:
    """Dead letters return to their queue only, x-replayed counts the returns, and messages that did not die stay."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("dead", durable=True)
        dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        work = await channel.declare_queue("work", durable=True, arguments=dying)
        other = await channel.declare_queue("other", durable=True)
        for queue in (work, other):
            await queue.bind("amq.topic", "a.*")
        await publish(channel, "a.b", *numbered(3), exchange="amq.topic", headers={"n": 1}, expiration=5000)
        await publish(channel, "dead", b"alive")
        for _ in range(3):
            await (await work.get()).reject()
        answer = await told(broker, "requeue_dead_letters", queue="dead")
        assert (answer["moved"], answer["unwanted"]) == (3, 1)
        back = await work.get()
        assert (back.body, back.exchange, back.routing_key) == (b"0", "amq.topic", "a.b")
        assert back.expiration == 5000
        assert back.headers == {"n": 1, "x-replayed": 1, "x-replayed-queue": "work", "x-replayed-reason": "rejected"}
        assert len(await take_all(channel, "other")) == 3, "the other queue had its copies, and no more"
        await back.reject()
        assert (await told(broker, "requeue_dead_letters", queue="dead", reasons=["expired"]))["moved"] == 0
        assert (await told(broker, "requeue_dead_letters", queue="dead", died_in=["other"]))["moved"] == 0
        answer = await told(broker, "requeue_dead_letters", queue="dead", into="exchange", died_in=["work"])
        assert (answer["moved"], answer["unwanted"]) == (1, 1)
        assert [m.headers["x-replayed"] for m in await take_all(channel, "other")] == [2]
        assert [m.body for m in await take_all(channel, "work")] == [b"1", b"2", b"0"]
        assert await bodies(channel, "dead") == [b"alive"]


async def test_dead_letters_without_a_home_stay(tmp_path: Path) -> None:
    """Dead letters stay when their queue or exchange was deleted, or when a publisher made up their death."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("dead", durable=True)
        for event in ({"queue": "gone"}, {"queue": "gone", "exchange": "x" * 300}, {"queue": 5, "exchange": "gone"}):
            await publish(channel, "dead", b"m", headers={"x-death": [event]})
        for into in ("queue", "exchange"):
            answer = await told(broker, "requeue_dead_letters", queue="dead", into=into)
            assert (answer["moved"], answer["unroutable"]) == (0, 3)
        assert len(await take_all(channel, "dead")) == 3
