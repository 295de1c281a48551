"""Messages from other brokers, in a real broker: once and in order over crashes, and as a client's messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aio_pika import Message

from broker.overlay.packets import Space, StreamName
from broker.testing import Broker
from tests.in_process import timed_broker
from tests.overlay_vhosts import crashed, overlay_of, pass_on, read, told
from tests.tap_files import channel_of, publish

PB, ANOTHER = (StreamName(leaf, Space("/", "x")) for leaf in ("pb", "another"))


async def bodies(broker: Broker, queue: str) -> list[str]:
    """Take all messages of a queue and return their bodies."""
    found = []
    async with channel_of(broker) as channel:
        got = await (await channel.get_queue(queue, ensure=False)).get(no_ack=True, fail=False)
        while got is not None:
            found.append(got.body.decode())
            got = await (await channel.get_queue(queue, ensure=False)).get(no_ack=True, fail=False)
    return found


async def test_messages_come_once_and_in_order_over_kill_9(tmp_path: Path) -> None:
    """Message and position are one record; without a record, as of transient and unmatched ones, a position is."""
    async with timed_broker(tmp_path / "a") as pb, timed_broker(tmp_path / "b") as sb:
        source, sink = overlay_of(pb), overlay_of(sb)
        async with channel_of(pb) as channel, channel_of(sb) as other:
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            source.forward("x", ["#"], ())
            await publish(exchange, ["a"] * 10)
            await other.declare_exchange("x", "topic", durable=True)
            for name in ("q", "q2"):
                await (await other.declare_queue(name, durable=True)).bind("x", "a")
            await pass_on(source, sink)
            await publish(exchange, ["a"] * 5 + ["b"])
            await sb.server.vhosts.drain()
            async with crashed(sb, tmp_path) as again:
                overlay = overlay_of(again)
                assert overlay.ingress.positions() == {PB: 10}
                await pass_on(source, overlay, first=4)
                assert overlay.ingress.positions() == {PB: 15}
                overlay.ingress.advance(PB, 16)
                await publish(exchange, ["a"] * 2, persistent=False)
                await pass_on(source, overlay)
                await pass_on(source, overlay)
                expected = [f"{n} a" for n in (*range(10), *range(5), 0, 1)]
                assert await bodies(again, "q") == expected
                await again.server.vhosts.drain()
                async with crashed(again, tmp_path) as third:
                    overlay = overlay_of(third)
                    assert overlay.ingress.positions() == {PB: 16}
                    assert await bodies(third, "q2") == expected[:15]
                    await pass_on(source, overlay)
                    overlay.ingress.advance(PB, 18)  # no record of a message says it: these were transient
                    await third.server.vhosts.drain()
                    async with crashed(third, tmp_path) as fourth:
                        overlay = overlay_of(fourth)
                        assert overlay.ingress.positions() == {PB: 18}
                        await pass_on(source, overlay)
                        assert await bodies(fourth, "q") == []


async def test_content_is_passed_on_untouched_and_never_forwarded_again(tmp_path: Path) -> None:
    """Header and body stay the same octets; the stream of the receiving broker gets nothing, though all is wanted."""
    async with timed_broker(tmp_path / "a") as pb, timed_broker(tmp_path / "b") as sb:
        source, sink = overlay_of(pb), overlay_of(sb)
        async with channel_of(pb) as channel, channel_of(sb) as other:
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            source.forward("x", ["#"], ())
            message = Message(bytes(range(256)), headers={"n": [1, {"a": None}]}, content_type="z", priority=7)
            await exchange.publish(message, "k.1")
            await other.declare_exchange("x", "topic", durable=True)
            await other.declare_exchange("y", "topic", durable=True)
            await (await other.get_exchange("y")).bind("x", "#")
            await (await other.declare_queue("q", durable=True)).bind("y", "k.*")
            await channel.declare_exchange("z", "topic", durable=True)
            plain = await other.declare_exchange("z", "topic", durable=True)
            await (await other.declare_queue("of z", durable=True)).bind(plain, "#")
            source.forward("z", ["#"], ())
            await publish(await channel.get_exchange("z"), ["k"])
            for name in ("x", "y", "z"):
                sink.forward(name, ["#"], ())
            await pass_on(source, sink)
            await pass_on(source, sink, "z")
            assert [sink.streams[name].last for name in ("x", "y", "z")] == [0, 0, 0]
            assert await bodies(sb, "of z") == ["0 k"]
            slot = next(iter(sb.server.vhosts["/"].queues["q"].level.manager.slots.values()))
            assert slot.contents is not None
            (received,) = slot.contents
            assert (received.header, received.body) == (pb.published[0].header, message.body)
            assert (received.envelope.exchange, received.envelope.key) == ("x", "k.1")


async def test_alternates_are_for_what_was_published_here(tmp_path: Path) -> None:
    """Messages that no binding matches any more are dropped; an alternate's own alternate gets its messages."""
    async with timed_broker(tmp_path / "a") as pb, timed_broker(tmp_path / "b") as sb:
        source, sink = overlay_of(pb), overlay_of(sb)
        async with channel_of(pb) as channel, channel_of(sb) as other:
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            source.forward("x", ["#"], ())
            await publish(exchange, ["a", "b", "b"])
            for name in ("rest of x", "rest of y"):
                await other.declare_exchange(name, "fanout", durable=True)
                await (await other.declare_queue(name, durable=True)).bind(name)
            await other.declare_exchange("x", "topic", durable=True, arguments={"alternate-exchange": "rest of x"})
            await other.declare_exchange("y", "topic", durable=True, arguments={"alternate-exchange": "rest of y"})
            await (await other.get_exchange("y")).bind("x", "b")
            await pass_on(source, sink)
            assert await bodies(sb, "rest of x") == []
            assert await bodies(sb, "rest of y") == ["1 b", "2 b"]


async def test_carbon_copies_and_headers_route_as_at_home(tmp_path: Path) -> None:
    """The keys in CC count, and a headers exchange reads the headers."""
    async with timed_broker(tmp_path / "a") as pb, timed_broker(tmp_path / "b") as sb:
        source, sink = overlay_of(pb), overlay_of(sb)
        async with channel_of(pb) as channel, channel_of(sb) as other:
            for name, kind in (("x", "direct"), ("h", "headers")):
                exchange = await channel.declare_exchange(name, kind, durable=True)
                await other.declare_exchange(name, kind, durable=True)
                source.forward(name, ["#"], ())
                for key in ("a", "b", "c"):
                    queue = await other.declare_queue(f"{name}.{key}", durable=True)
                    await queue.bind(name, key, arguments={"k": key})
                await exchange.publish(Message(b"1", headers={"CC": ["b"], "k": "c"}), "a")
                await pass_on(source, sink, name)
            assert [await bodies(sb, f"x.{key}") for key in ("a", "b", "c")] == [["1"], ["1"], []]
            assert [await bodies(sb, f"h.{key}") for key in ("a", "b", "c")] == [[], [], ["1"]]


async def test_the_positions_of_a_leaf_that_is_given_up_are_forgotten(tmp_path: Path) -> None:
    """Those of others stay, also over the next start; a leaf that takes the name starts over."""
    async with timed_broker(tmp_path / "a") as pb, channel_of(pb) as channel:
        source = overlay_of(pb)
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        source.forward("x", ["#"], ())
        await publish(exchange, ["k"] * 3)
        async with timed_broker(tmp_path / "b") as sb, channel_of(sb) as other:
            sink = overlay_of(sb)
            await (await other.declare_exchange("x", "topic", durable=True)).publish(Message(b""), "k")
            await (await other.declare_queue("q", durable=True)).bind("x", "#")
            await pass_on(source, sink)
            sink.ingress.advance(ANOTHER, 7)
            sink.ingress.forget("pb")
            assert sink.ingress.positions() == {ANOTHER: 7}
            await pass_on(source, sink, first=2)
            assert sb.queue("q").ready == 5
            sink.ingress.forget("pb")
        async with timed_broker(tmp_path / "b") as sb:
            assert overlay_of(sb).ingress.positions() == {ANOTHER: 7}


async def test_the_firehose_has_what_other_brokers_published(tmp_path: Path) -> None:
    """As a publish: the leaf stands for the connection, and all keys and queues are named."""
    async with timed_broker(tmp_path / "a") as pb, timed_broker(tmp_path / "b") as sb:
        source, sink = overlay_of(pb), overlay_of(sb)
        async with channel_of(pb) as channel, channel_of(sb) as other:
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            source.forward("x", ["#"], ())
            await exchange.publish(Message(b"body", headers={"CC": ["b"]}), "a")
            await publish(exchange, ["nobody"])
            await other.declare_exchange("x", "topic", durable=True)
            await (await other.declare_queue("q", durable=True)).bind("x", "b")
            copies = await other.declare_queue("copies")
            await copies.bind("amq.rabbitmq.trace", "publish.#")
            sb.server.vhosts["/"].firehose.switch(on=True)
            await pass_on(source, sink)
            await sb.idle()
            copy = await copies.get(no_ack=True)
            assert (copy.routing_key, copy.body) == ("publish.x", b"body")
            told_of = [
                copy.headers[name] for name in ("connection", "channel", "user", "routing_keys", "routed_queues")
            ]
            assert told_of == ["overlay pb", 0, "", ["a", "b"], ["q"]]
            assert sb.queue("copies").ready == 0


async def test_delay_of_a_received_message_ends_here(tmp_path: Path) -> None:
    """A delaying exchange keeps it, over kill -9 too, and then leads it to queues, but to no other broker."""
    async with timed_broker(tmp_path / "a") as pb, timed_broker(tmp_path / "b") as sb:
        source, sink = overlay_of(pb), overlay_of(sb)
        async with channel_of(pb) as channel, channel_of(sb) as other:
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            source.forward("x", ["#"], ())
            await exchange.publish(Message(b"later", headers={"x-delay": 5000}), "k")
            delaying: dict[str, Any] = {"x-delayed-type": "topic"}
            await other.declare_exchange("x", "x-delayed-message", durable=True, arguments=delaying)
            await (await other.declare_queue("q", durable=True)).bind("x", "#")
            sink.forward("x", ["#"], ())
            await pass_on(source, sink)
            assert sb.queue("q").ready == 0
            await sb.server.vhosts.drain()
            async with crashed(sb, tmp_path) as again:
                overlay = overlay_of(again)
                overlay.forward("x", ["#"], ())
                assert overlay.ingress.positions() == {PB: 1}
                again.clock.advance(6)
                await again.idle()
                slot = next(iter(again.server.vhosts["/"].queues["q"].level.manager.slots.values()))
                assert slot.contents is not None
                assert [message.body for message in slot.contents] == [b"later"]
                assert b"x-slotmq" not in slot.contents[0].header
                assert overlay.streams["x"].last == 0
                async with channel_of(again) as third:  # what a client publishes here goes on to others
                    mine = await third.get_exchange("x")
                    await mine.publish(Message(b"mine", headers={"x-delay": 5000}), "k")
                    again.clock.advance(6)
                    await again.idle()
                assert told(await read(overlay.streams["x"])) == [(1, "k")]


async def test_dead_letters_of_received_messages_are_published_here(tmp_path: Path) -> None:
    """A dead letter is a new message: it goes to other brokers as one that a client publishes here."""
    async with timed_broker(tmp_path / "a") as pb, timed_broker(tmp_path / "b") as sb:
        source, sink = overlay_of(pb), overlay_of(sb)
        async with channel_of(pb) as channel, channel_of(sb) as other:
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            source.forward("x", ["#"], ())
            await publish(exchange, ["k"] * 3)
            await other.declare_exchange("x", "topic", durable=True)
            await other.declare_exchange("dead", "fanout", durable=True)
            short: dict[str, Any] = {"x-max-length": 1, "x-dead-letter-exchange": "dead"}
            await (await other.declare_queue("q", durable=True, arguments=short)).bind("x", "#")
            sink.forward("dead", ["#"], ())
            await pass_on(source, sink)
            await sb.idle()
            assert sb.queue("q").ready == 1
            assert told(await read(sink.streams["dead"])) == [(1, "k"), (2, "k")]


async def test_full_queue_that_rejects_takes_no_more(tmp_path: Path) -> None:
    """The other queues take the message, the position continues, and the refusals are counted."""
    async with timed_broker(tmp_path / "a") as pb, timed_broker(tmp_path / "b") as sb:
        source, sink = overlay_of(pb), overlay_of(sb)
        async with channel_of(pb) as channel, channel_of(sb) as other:
            exchange = await channel.declare_exchange("x", "fanout", durable=True)
            source.forward("x", ["#"], ())
            await publish(exchange, ["k"] * 3)
            await other.declare_exchange("x", "fanout", durable=True)
            full: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
            await (await other.declare_queue("full", durable=True, arguments=full)).bind("x")
            await (await other.declare_queue("q", durable=True)).bind("x")
            await pass_on(source, sink)
            assert (sb.queue("full").ready, sb.queue("q").ready) == (1, 3)
            assert sink.ingress.refused == 2


async def test_a_binding_gets_messages_from_its_start_point_on(tmp_path: Path) -> None:
    """While bindings wait for their start point, a queue gets what its other bindings match, once."""
    async with timed_broker(tmp_path / "a") as pb, timed_broker(tmp_path / "b") as sb:
        source, sink = overlay_of(pb), overlay_of(sb)
        async with channel_of(pb) as channel, channel_of(sb) as other:
            points: dict[str, int] = {}
            for kind, keys in (("topic", ("a.*", "#")), ("direct", ("a.1", "b.1")), ("fanout", ("", "2"))):
                exchange = await channel.declare_exchange(kind, kind, durable=True)
                source.forward(kind, ["#"], ())
                await publish(exchange, ["a.1", "b.1"])
                await other.declare_exchange(kind, kind, durable=True)
                await other.declare_exchange("on", "fanout", durable=True)
                for name, bound in (("early", keys[:1]), ("late", keys[1:]), ("both", keys)):
                    queue = await other.declare_queue(f"{kind}.{name}", durable=True)
                    for key in bound:
                        await queue.bind(kind, key)
                        added, _ = sink.bindings.take()
                        points |= {one: 5 if key == keys[0] else 9 for one, _, _ in added}
                        sink.bindings.note_start_points(points.__getitem__)
                await pass_on(source, sink, kind, start=8)
                early = ["0 a.1", "1 b.1"] if kind == "fanout" else ["0 a.1"]
                found = [await bodies(sb, f"{kind}.{name}") for name in ("early", "late", "both")]
                assert found == [early, [], early]
