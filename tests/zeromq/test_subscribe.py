"""From plain ØMQ publishers to an exchange."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zmq

from broker.amqp.header_edit import encode_header
from tests.overlay.sites import Site, free_port, overlay, wanted
from tests.tap_files import channel_of
from tests.zeromq.peers import bridge_rows, bridged, endpoint_of, peers, take, until

SUBSCRIBED, UNSUBSCRIBED = b"\x01", b"\x00"


def nested(levels: int) -> bytes:
    """Return properties whose headers are a table within a table."""
    return b'{"headers": ' + b'{"a": ' * levels + b"1" + b"}" * (levels + 1)


async def bodies(broker: Any, queue: str, count: int) -> list[bytes]:
    """Return the bodies in a queue once there are this many."""
    await until(lambda: broker.queue(queue).ready >= count, f"{count} messages in {queue}")
    return [message.body for message in broker.queue(queue).messages]


async def test_bindings_become_subscriptions_of_a_publisher(tmp_path: Path) -> None:
    """The first binding of a prefix subscribes and the last one unsubscribes, also when its queue is deleted."""
    async with bridged(tmp_path, subscribe=[{}]) as (broker, channel, made):
        publisher = made.socket(zmq.XPUB, connect=endpoint_of(broker))
        queues = [await channel.declare_queue(f"q{number}") for number in range(2)]
        await queues[0].bind("x", "a.*")
        assert await take(publisher, 1) == [[SUBSCRIBED + b"a."]]
        await queues[1].bind("x", "a.b.#")
        await queues[1].bind("x", "a.*.c")
        assert await take(publisher, 1) == [[SUBSCRIBED + b"a.b."]]
        await queues[0].delete()
        await queues[1].unbind("x", "a.b.#")
        assert await take(publisher, 1) == [[UNSUBSCRIBED + b"a.b."]]
        await queues[1].delete()
        assert await take(publisher, 1) == [[UNSUBSCRIBED + b"a."]]


async def test_messages_of_a_plain_publisher_reach_queues(tmp_path: Path) -> None:
    """In order; what is subscribed but not wanted is filtered by the exchange; what is not subscribed stays outside."""
    async with bridged(tmp_path, subscribe=[{}]) as (broker, channel, made):
        publisher = made.socket(zmq.PUB, connect=endpoint_of(broker), SNDHWM=0)
        queue = await channel.declare_queue("q", durable=True)
        await queue.bind("x", "a.*.c")
        await until(lambda: bridge_rows(broker)[0]["passed_on"] == 1, "the subscription")
        probe = 0
        while not bridge_rows(broker)[0]["messages"]:  # the publisher drops what comes before the subscription
            publisher.send_multipart([b"a.probe.", b"%d" % probe])
            await broker.idle()
        before = bridge_rows(broker)[0]["messages"]
        for number in range(500):
            publisher.send_multipart([b"a.%d.c." % number, b"%d" % number])
            publisher.send_multipart([b"b.%d." % number, b"not wanted"])
            publisher.send_multipart([b"a.%d." % number, b"not matched"])
        assert await bodies(broker, "q", 500) == [b"%d" % number for number in range(500)]
        await until(lambda: bridge_rows(broker)[0]["messages"] == before + 1000, "all that was subscribed")


async def test_subscriptions_are_sent_again_to_a_publisher_that_comes_back(tmp_path: Path) -> None:
    """All of them, more than any high-water mark, whoever binds."""
    port = free_port()
    endpoint = f"tcp://127.0.0.1:{port}"
    async with bridged(tmp_path, subscribe=[{"endpoint": endpoint, "connect": True}]) as (broker, channel, made):
        await channel.declare_queue("q")
        vhost = broker.server.engines["/"].vhost
        for number in range(2500):
            vhost.bindings.live.add(vhost.exchanges["x"], vhost.queues["q"], f"k.{number}", {})
        for _ in range(2):
            publisher = made.socket(zmq.XPUB, RCVHWM=10)
            await until(lambda: _bound(publisher, endpoint), "the port")  # noqa: B023 - awaited here
            found = {prefix for (prefix,) in await take(publisher, 2500)}
            assert found == {SUBSCRIBED + b"k.%d." % number for number in range(2500)}
            publisher.close()


def _bound(socket: Any, endpoint: str) -> bool:
    """Bind a socket, unless ØMQ has not closed the one before yet."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError:
        return False
    return True


async def test_more_bindings_than_the_limit_become_everything(tmp_path: Path) -> None:
    """The subscription to everything comes before the others go."""
    async with bridged(tmp_path, subscribe=[{"subscriptions_max": 2}]) as (broker, channel, made):
        publisher = made.socket(zmq.XPUB, connect=endpoint_of(broker))
        queue = await channel.declare_queue("q")
        for key in "ab":
            await queue.bind("x", key)
        assert await take(publisher, 2) == [[SUBSCRIBED + b"a."], [SUBSCRIBED + b"b."]]
        await queue.bind("x", "c")
        assert await take(publisher, 3) == [[SUBSCRIBED], [UNSUBSCRIBED + b"a."], [UNSUBSCRIBED + b"b."]]


async def test_what_is_no_message_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each reason is logged, the next message is published."""
    settings = {"properties": True, "persistent": True}
    async with bridged(tmp_path, subscribe=[settings]) as (broker, channel, made):
        queue = await channel.declare_queue("q")
        await queue.bind("x", "#")
        publisher = made.socket(zmq.XPUB, connect=endpoint_of(broker))
        assert await take(publisher, 1) == [[SUBSCRIBED]]
        properties = json.dumps({"content_type": "text/plain", "headers": {"n": 1}}).encode()
        for frames in (
            [b"one frame"],
            [b"\xff.", b""],
            [b"a.", b"", b"{", b""],
            [b"a.", b"", b"["],
            [b"a.", b"", b"[]"],
            [b"a.", b"", b'{"user_id": "guest"}'],
            [b"a.", b"", b'{"color": 1}'],
            [b"a.", b"", b'{"expiration": "soon"}'],
            [b"a.", b"", nested(100)],
            [b"a.", b"", nested(900)],
            [b"a", b"body", properties],
        ):
            publisher.send_multipart(frames)
        (message,) = [await _one(broker)]
        assert (message.routing_key, message.body) == ("a", b"body")
        assert message.properties.delivery_mode == 2
        assert message.properties.headers == {"n": 1}
        assert bridge_rows(broker)[0]["unreadable"] == 10
    assert caplog.text.count("zmq.message_refused") == 10


async def test_a_defect_that_one_message_brings_out_refuses_that_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bridge continues, and the log has the defect."""

    def encode(properties: dict[str, Any], size_bytes: int) -> bytes:
        if size_bytes == 3:
            raise RuntimeError("a defect")
        return encode_header(properties, size_bytes)

    monkeypatch.setattr("broker.zeromq.subscribe_bridge.encode_header", encode)
    async with bridged(tmp_path, subscribe=[{}]) as (broker, channel, made):
        await (await channel.declare_queue("q")).bind("x", "#")
        publisher = made.socket(zmq.XPUB, connect=endpoint_of(broker))
        assert await take(publisher, 1) == [[SUBSCRIBED]]
        for body in (b"bad", b"good"):
            publisher.send_multipart([b"a.", body])
        assert await bodies(broker, "q", 1) == [b"good"]
        assert bridge_rows(broker)[0]["unreadable"] == 1
    assert caplog.text.count("zmq.message_refused") == 1


async def _one(broker: Any) -> Any:
    await bodies(broker, "q", 1)
    return broker.queue("q").messages[0]


async def test_a_queue_that_rejects_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its messages are lost, and the bridge says how many."""
    async with bridged(tmp_path, subscribe=[{}]) as (broker, channel, made):
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await (await channel.declare_queue("q", arguments=arguments)).bind("x", "#")
        publisher = made.socket(zmq.XPUB, connect=endpoint_of(broker))
        await take(publisher, 1)
        for number in range(3):
            publisher.send_multipart([b"a.", b"%d" % number])
        await until(lambda: bridge_rows(broker)[0]["rejected"] == 2, "the rejects")
        assert bridge_rows(broker)[0]["messages"] == 1
        await until(lambda: "zmq.messages_rejected" in caplog.text, "the log line")


async def test_a_stop_publishes_what_has_arrived(tmp_path: Path) -> None:
    """Messages that the socket has are in the durable queue at the next start."""
    with peers() as made:
        async with bridged(tmp_path, subscribe=[{"persistent": True}]) as (broker, channel, _made):
            await (await channel.declare_queue("q", durable=True)).bind("x", "#")
            publisher = made.socket(zmq.XPUB, connect=endpoint_of(broker))
            await take(publisher, 1)
            assert broker.server.zmq.bridges is not None
            socket = broker.server.zmq.bridges._bridges[0].socket
            socket.pause()
            for number in range(10):
                publisher.send_multipart([b"a.", b"%d" % number])
            await until(lambda: socket._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN, "the first")
        async with bridged(tmp_path, subscribe=[{}]) as (broker, _channel, _made):
            found = [message.body for message in broker.queue("q").messages]
            assert found
            assert found == [b"%d" % number for number in range(len(found))]


async def test_a_subscriber_beyond_the_broker_reaches_a_publisher(tmp_path: Path) -> None:
    """Bindings of one bridge are subscriptions of the other: the broker is a proxy between SUB and XPUB programs."""
    async with bridged(tmp_path, publish=[{}], subscribe=[{}]) as (broker, _channel, made):
        publisher = made.socket(zmq.XPUB, connect=endpoint_of(broker, 1))
        subscriber = made.socket(zmq.SUB, connect=endpoint_of(broker, 0), SUBSCRIBE=b"a.b.")
        assert await take(publisher, 1) == [[SUBSCRIBED + b"a.b."]]
        publisher.send_multipart([b"a.b.c.", b"1"])
        assert await take(subscriber, 1) == [[b"a.b.c.", b"1"]]
        subscriber.close()
        assert await take(publisher, 1) == [[UNSUBSCRIBED + b"a.b."]]


@pytest.mark.slow
async def test_subscriptions_draw_messages_from_other_sites(tmp_path: Path) -> None:
    """A SUB program at one site of an overlay is heard by an XPUB program at another, and gets its message."""
    port = free_port()
    bridge = {"endpoint": "tcp://127.0.0.1:*", "exchange": "x"}
    here = Site(port, overlay("a", "site-a", ("site-b", "b", 0), leaf=True)).broker(
        tmp_path / "a", zmq={"subscribe": [bridge]}
    )
    there = Site(0, overlay("b", "site-b", ("site-a", "a", port), leaf=True)).broker(
        tmp_path / "b", zmq={"publish": [bridge]}
    )
    async with here as near, there as far:
        for broker in (near, far):
            async with channel_of(broker) as channel:
                await channel.declare_exchange("x", "topic", durable=True)
        with peers() as made:
            await until(lambda: bridge_rows(near)[0]["state"] == bridge_rows(far)[0]["state"] == "up", "the bridges")
            publisher = made.socket(zmq.XPUB, connect=endpoint_of(near))
            subscriber = made.socket(zmq.SUB, connect=endpoint_of(far), SUBSCRIBE=b"a.b.")
            assert await take(publisher, 1) == [[SUBSCRIBED + b"a.b."]]
            await until(lambda: wanted(near, "site-b") == ["a.b.#"], "the vector")
            publisher.send_multipart([b"a.b.c.", b"1"])
            assert await take(subscriber, 1) == [[b"a.b.c.", b"1"]]
            subscriber.close()
            assert await take(publisher, 1) == [[UNSUBSCRIBED + b"a.b."]]
