"""From an exchange to plain ØMQ subscribers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import zmq

from broker.zeromq.publish_bridge import PublishBridge
from tests.tap_files import publish
from tests.zeromq.peers import Peers, bindings, bridge_rows, bridged, endpoint_of, peers, take, until


async def wanted(broker: Any, *keys: str) -> None:
    """Return once the exchange has these bindings and no others."""
    await until(lambda: bindings(broker) == sorted(keys), f"the bindings {keys}, not {bindings(broker)}")


def subscriber(made: Peers, broker: Any, *prefixes: bytes, **options: Any) -> Any:
    """Return a SUB socket that is connected to the first bridge."""
    return made.socket(zmq.SUB, connect=endpoint_of(broker), SUBSCRIBE=list(prefixes), **options)


def bridge_of(broker: Any) -> PublishBridge:
    """Return the first bridge itself."""
    bridge = broker.server.zmq.bridges._bridges[0]
    assert isinstance(bridge, PublishBridge)
    return bridge


class Changes:
    """Records each binding that comes (+) and goes (-)."""

    def __init__(self, broker: Any) -> None:
        self.found: list[str] = []
        broker.server.engines["/"].vhost.bindings.live.watches.append(self)

    def bound(self, _source: Any, _destination: Any, key: str, _arguments: Any) -> None:
        """Record a binding."""
        self.found.append(f"+{key}")

    def unbound(self, _source: Any, _destination: Any, key: str, _arguments: Any) -> None:
        """Record the end of a binding."""
        self.found.append(f"-{key}")

    def ended(self, _bundle: Any) -> None:
        """Ignore the end of a queue."""


async def test_subscribers_get_what_begins_with_their_prefix(tmp_path: Path) -> None:
    """In order, each message once; a prefix that ends with a dot ends a word, another one does not."""
    async with bridged(tmp_path, publish=[{}]) as (broker, channel, made):
        exact = subscriber(made, broker, b"a.b.", b"a.")
        loose = subscriber(made, broker, b"a.b")
        await wanted(broker, "a.#", "a.b.#")
        exchange = await channel.get_exchange("x")
        await publish(exchange, ["a.b", "b", "a.bc", "a.b.c", ""])
        assert await take(exact, 3) == [[b"a.b.", b"0 a.b"], [b"a.bc.", b"2 a.bc"], [b"a.b.c.", b"3 a.b.c"]]
        assert [topic for topic, _ in await take(loose, 3)] == [b"a.b.", b"a.bc.", b"a.b.c."]
        row = bridge_rows(broker)[0]
        assert (row["peers"], row["subscriptions"], row["messages"], row["lost"]) == (2, 3, 3, 0)


async def test_equal_subscriptions_are_one_binding_until_the_last_goes(tmp_path: Path) -> None:
    """The loss of a peer withdraws exactly its own; prefixes of one word share a binding."""
    async with bridged(tmp_path, publish=[{}]) as (broker, _channel, made):
        first = subscriber(made, broker, b"a.b", b"only.")
        second = subscriber(made, broker, b"a.b", b"a.c")
        await wanted(broker, "a.#", "only.#")
        first.close()
        await wanted(broker, "a.#")
        second.set(zmq.UNSUBSCRIBE, b"a.b")
        await until(lambda: bridge_rows(broker)[0]["subscriptions"] == 1, "the end of a.b")
        assert bindings(broker) == ["a.#"]
        second.close()
        await wanted(broker)


async def test_a_reader_of_an_xpub_socket_may_be_a_proxy(tmp_path: Path) -> None:
    """Subscriptions come from an XSUB socket too, and what else it sends is not a subscription."""
    async with bridged(tmp_path, publish=[{}]) as (broker, channel, made):
        proxy = made.socket(zmq.XSUB, connect=endpoint_of(broker))
        proxy.send(b"hello")
        proxy.send(b"\x01a.")
        await wanted(broker, "a.#")
        await publish(await channel.get_exchange("x"), ["a.1"])
        assert await take(proxy, 1) == [[b"a.1.", b"0 a.1"]]
        proxy.send(b"\x00a.")
        await wanted(broker)


async def test_a_body_that_looks_like_a_subscription_is_a_body(tmp_path: Path) -> None:
    """Octets of a message mean nothing, on the way out and on the way back."""
    async with bridged(tmp_path, publish=[{}]) as (broker, channel, made):
        socket = subscriber(made, broker, b"")
        await wanted(broker, "#")
        exchange = await channel.get_exchange("x")
        for body in (b"\x01x.", b"\x00", b""):
            await exchange.publish(_message(body), "k")
        assert await take(socket, 3) == [[b"k.", b"\x01x."], [b"k.", b"\x00"], [b"k.", b""]]
        assert bindings(broker) == ["#"]


def _message(body: bytes, **properties: Any) -> Any:
    import aio_pika

    return aio_pika.Message(body, **properties)


async def test_properties_come_as_a_third_frame_if_asked_for(tmp_path: Path) -> None:
    """JSON, with the headers; and without the dot the topic is the routing key."""
    async with bridged(tmp_path, publish=[{"properties": True, "trailing_dot": False}]) as (broker, channel, made):
        socket = subscriber(made, broker, b"k")
        await wanted(broker, "#")
        message = _message(b"b", content_type="text/plain", headers={"n": 1})
        await (await channel.get_exchange("x")).publish(message, "k")
        ((topic, body, properties),) = await take(socket, 1)
        assert (topic, body) == (b"k", b"b")
        assert b'"content_type": "text/plain"' in properties
        assert b'"headers": {"n": 1}' in properties


async def test_more_subscriptions_than_the_limit_become_everything(tmp_path: Path) -> None:
    """Nothing is missed while the bridge changes over, and it comes back when there are fewer."""
    async with bridged(tmp_path, publish=[{"subscriptions_max": 4}]) as (broker, channel, made):
        socket = subscriber(made, broker, *(b"%d." % number for number in range(4)))
        await wanted(broker, "0.#", "1.#", "2.#", "3.#")
        changes = Changes(broker)
        socket.set(zmq.SUBSCRIBE, b"4.")
        await wanted(broker, "#")
        await publish(await channel.get_exchange("x"), ["4.a", "9.b"])
        assert await take(socket, 1) == [[b"4.a.", b"0 4.a"]]
        for number in (4, 3):
            socket.set(zmq.UNSUBSCRIBE, b"%d." % number)
        await wanted(broker, "0.#", "1.#", "2.#")
        assert [change for change in changes.found if "+" in change or change == "-#"][-1] == "-#"
        assert changes.found[0] == "+#"


async def test_a_slow_subscriber_is_dropped_alone_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Others get everything; how often it was full is counted and logged once a second."""
    body = b"x" * 200_000
    async with bridged(tmp_path, publish=[{"high_water_messages": 2}]) as (broker, channel, made):
        subscriber(made, broker, b"slow.", RCVHWM=1, RCVBUF=4096)
        fast = subscriber(made, broker, b"")
        await wanted(broker, "#", "slow.#")
        exchange = await channel.get_exchange("x")
        for number in range(60):
            await exchange.publish(_message(body), f"slow.{number}")
            ((topic, _),) = await take(fast, 1)
            assert topic == b"slow.%d." % number
        assert bridge_rows(broker)[0]["full"] > 0
        await until(lambda: "zmq.subscriber_slow" in caplog.text, "the log line")


async def test_all_wait_for_a_slow_subscriber_if_the_settings_say_so(tmp_path: Path) -> None:
    """It misses nothing as long as the queue of the bridge has room; what that drops is counted exactly."""
    body = b"x" * 200_000
    settings = {"slow": "wait", "high_water_messages": 2, "queue_max_messages": 100}
    async with bridged(tmp_path, publish=[settings]) as (broker, channel, made):
        slow = subscriber(made, broker, b"", RCVHWM=1, RCVBUF=4096)
        await wanted(broker, "#")
        exchange = await channel.get_exchange("x")
        for number in range(60):
            await exchange.publish(_message(body), str(number))
        assert [topic for topic, _ in await take(slow, 60)] == [b"%d." % number for number in range(60)]
        row = bridge_rows(broker)[0]
        assert (row["full"], row["lost"]) == (0, 0)


async def test_what_the_queue_drops_is_counted(tmp_path: Path) -> None:
    """Sent, waiting or dropped: together they are what was published."""
    settings = {"slow": "wait", "high_water_messages": 1, "queue_max_messages": 5}
    body = b"x" * 100_000
    async with bridged(tmp_path, publish=[settings]) as (broker, channel, made):
        stuck = subscriber(made, broker, b"", RCVHWM=1, RCVBUF=4096)
        await wanted(broker, "#")
        exchange = await channel.get_exchange("x")
        for number in range(150):
            await exchange.publish(_message(body), str(number))
        found = await take(stuck, 1)
        while found[-1][0] != b"149.":  # the newest one is never dropped
            found += await take(stuck, 1)
        bridge = bridge_of(broker)

        def counted() -> bool:
            bridge.tick()  # while an ack is on its way it finds one less
            return (bridge.sent, bridge.facts()["lost"]) == (len(found), 150 - len(found))

        assert len(found) < 150
        await until(counted, "the exact count")


async def test_rights_of_the_user_hold(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A user that is missing or may not read keeps the bridge down; a forbidden subscription is refused alone."""
    async with bridged(tmp_path, wait=False, publish=[{"user": "limited"}]) as (broker, channel, made):
        socket = subscriber(made, broker, b"b.", b"a.", b"c.", b"a.1.")
        await until(lambda: "Login was refused" in bridge_rows(broker)[0]["problem"], "the refusal")
        administration = broker.server.administration
        await administration.change(lambda draft: draft.users.add("limited", "secret"))
        await administration.change(lambda draft: draft.permissions.topics.set("limited", "/", "x", "", "^a[.]"))
        await administration.change(lambda draft: draft.permissions.set("limited", "/", "^amq[.]gen", ".*", ".*"))
        await wanted(broker, "a.#", "a.1.#")
        await until(lambda: bridge_rows(broker)[0]["refused"] == 2, "both refusals")
        assert sorted(re.findall(r"zmq.subscription_refused .* key='(.*?)' code=403", caplog.text)) == [
            "b.#",
            "c.#",
        ]
        await publish(await channel.get_exchange("x"), ["b.1", "a.1"])
        assert await take(socket, 1) == [[b"a.1.", b"1 a.1"]]
        socket.set(zmq.UNSUBSCRIBE, b"b.")
        socket.set(zmq.UNSUBSCRIBE, b"a.")
        await wanted(broker, "a.1.#")


async def test_a_user_that_may_not_have_everything_has_no_limit(tmp_path: Path) -> None:
    """Each subscription is a binding then, and goes with its last subscriber."""
    settings = {"user": "limited", "subscriptions_max": 2}
    async with bridged(tmp_path, wait=False, publish=[settings]) as (broker, _channel, made):
        administration = broker.server.administration
        await administration.change(lambda draft: draft.users.add("limited", "secret"))
        await administration.change(lambda draft: draft.permissions.topics.set("limited", "/", "x", "", "^[abc][.]"))
        await administration.change(lambda draft: draft.permissions.set("limited", "/", ".*", ".*", ".*"))
        socket = subscriber(made, broker, b"a.", b"b.")
        await wanted(broker, "a.#", "b.#")
        socket.set(zmq.SUBSCRIBE, b"c.")
        await wanted(broker, "a.#", "b.#", "c.#")
        socket.set(zmq.UNSUBSCRIBE, b"a.")
        await wanted(broker, "b.#", "c.#")


async def test_an_exchange_that_is_declared_later_or_again(tmp_path: Path) -> None:
    """The bridge says what is missing and tries again; a new exchange of the name gets the bindings."""
    async with bridged(tmp_path, publish=[{"exchange": "y"}], wait=False) as (broker, channel, made):
        socket = subscriber(made, broker, b"a.")
        await until(lambda: "no exchange 'y'" in bridge_rows(broker)[0]["problem"], "the problem")
        await channel.declare_exchange("y", "topic")
        await until(lambda: bindings(broker, "y") == ["a.#"], "the binding")
        await channel.exchange_delete("y")
        exchange = await channel.declare_exchange("y", "fanout")
        await until(lambda: len(bindings(broker, "y")) == 1, "the binding again")
        await publish(exchange, ["b.1", "a.1"])
        assert await take(socket, 1) == [[b"a.1.", b"1 a.1"]]
        await channel.exchange_delete("y")
        await channel.declare_exchange("y", "direct")
        await until(lambda: "is a direct exchange" in bridge_rows(broker)[0]["problem"], "the problem")


async def test_a_stop_sends_what_was_published(tmp_path: Path) -> None:
    """Messages that were confirmed before the stop reach a subscriber, from the bridge's queue and from ØMQ's."""
    body = b"x" * 200_000
    settings = {"slow": "wait", "high_water_messages": 20}
    patient = {"server": {"drain_timeout_ms": 9000}}
    with peers() as made:
        async with bridged(tmp_path, sections=patient, publish=[settings]) as (broker, channel, _made):
            socket = subscriber(made, broker, b"", RCVHWM=1, RCVBUF=4096)
            await wanted(broker, "#")
            exchange = await channel.get_exchange("x")
            for number in range(60):
                await exchange.publish(_message(body), str(number))
            reader = asyncio.ensure_future(take(socket, 60))
        assert [topic for topic, _ in await reader] == [b"%d." % number for number in range(60)]


async def test_a_stop_does_not_wait_for_ever_for_libzmq(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A socket that stays open keeps libzmq from ending, as its own rare hang does: the broker stops, and says so."""
    async with bridged(tmp_path, publish=[{}]) as (broker, _channel, _made):
        left: Any = broker.server.zmq.bridges._context.socket(zmq.PAIR)  # type: ignore[union-attr]
    left.close()
    assert "zmq.not_ended" in caplog.text


async def test_a_subscription_that_arrives_between_two_sends_is_read(tmp_path: Path) -> None:
    """A send uses up what the descriptor of the socket told, so the bridge looks again by itself."""
    async with bridged(tmp_path, publish=[{}]) as (broker, _channel, made):
        socket = subscriber(made, broker, b"a.")
        await wanted(broker, "a.#")
        bridge = bridge_of(broker)
        socket.set(zmq.SUBSCRIBE, b"b.")
        bridge.socket.send([b"nobody", b""])
        while not bridge.socket._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            bridge.socket.send([b"nobody", b""])
        await wanted(broker, "a.#", "b.#")


async def test_a_bridge_comes_back_when_its_connection_is_closed(tmp_path: Path) -> None:
    """An operator's close is not the end; subscriptions count again."""
    async with bridged(tmp_path, publish=[{}]) as (broker, channel, made):
        socket = subscriber(made, broker, b"a.")
        await wanted(broker, "a.#")
        broker.server.listener.force_close(lambda session: session.name.startswith("zmq "), "test")
        await until(lambda: bridge_rows(broker)[0]["state"] == "down", "the end")
        await until(lambda: bridge_rows(broker)[0]["state"] == "up", "the return")
        await wanted(broker, "a.#")
        await publish(await channel.get_exchange("x"), ["a.1"])
        assert await take(socket, 1) == [[b"a.1.", b"0 a.1"]]
