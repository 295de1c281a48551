"""Messages over the management API: published, taken, looked at, dropped, moved, and those that consumers hold."""

from __future__ import annotations

import asyncio
import errno
import json
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aio_pika
import pytest

from broker.server import BrokerServer
from broker.testing import Broker as Timed
from tests.deadline import wait_until_async
from tests.http_talk import Web
from tests.in_process import client_of
from tests.manage.api_talk import HTTP, Api, managed

PROPERTIES: dict[str, Any] = {
    "content_type": "text/plain", "content_encoding": "e",
    "headers": {"a": 1, "b": [1, {"c": None}], "f": 1.5, "t": True}, "delivery_mode": 2, "priority": 3,
    "correlation_id": "co", "reply_to": "r", "expiration": "60000", "message_id": "m", "timestamp": 17,
    "type": "ty", "user_id": "guest", "app_id": "a", "cluster_id": "c",
}  # fmt: skip
LIST = {"count": 100, "encoding": "auto"}


async def publish(api: Api, queue: str, *payloads: str, **properties: Any) -> None:
    """Publish texts to a queue."""
    for payload in payloads:
        body = {"properties": properties, "routing_key": queue, "payload": payload, "payload_encoding": "string"}
        assert await api.expect(200, "POST", "exchanges/%2F/amq.default/publish", body) == {"routed": True}


async def payloads(api: Api, queue: str) -> list[str]:
    """Return the payloads of the messages that are ready."""
    return [row["payload"] for row in await api.expect(200, "GET", f"queues/%2F/{queue}/peek?count=100")]


@pytest.mark.parametrize("timestamp", [253_402_300_799, 253_402_300_800, 1_796_000_000_000, (1 << 64) - 1])
async def test_a_timestamp_beyond_the_calendar_stays(api: Api, timestamp: int) -> None:
    """JavaScript publishes milliseconds: the number is shown, comes back, and is hashed like any other."""
    arguments = {"hash-property": "timestamp"}
    await api.expect(201, "PUT", "exchanges/%2F/h", {"type": "x-consistent-hash", "arguments": arguments})
    for number in range(4):
        await api.expect(201, "PUT", f"queues/%2F/q{number}", {"durable": True})
        await api.expect(201, "POST", f"bindings/%2F/e/h/q/q{number}", {"routing_key": "10"})
    stamps = [timestamp - number for number in range(40)]
    for stamp in stamps:
        body = {
            "properties": {"timestamp": stamp},
            "routing_key": "k",
            "payload": "x",
            "payload_encoding": "string",
        }
        assert await api.expect(200, "POST", "exchanges/%2F/h/publish", body) == {"routed": True}
    found = [await api.expect(200, "GET", f"queues/%2F/q{number}/peek?count=100") for number in range(4)]
    assert min(map(len, found)) > 0
    assert sorted(row["properties"]["timestamp"] for rows in found for row in rows) == sorted(stamps)


async def test_a_message_is_published_and_comes_back_as_it_was(api: Api) -> None:
    """Every property survives, text stays text, and other octets travel in base64."""
    await api.expect(201, "PUT", "queues/%2F/q", {"durable": True})
    to = "exchanges/%2F/amq.default/publish"
    octets = b"hello\xff\xc3"
    for payload, encoding in (("héllo", "string"), (b64encode(octets).decode(), "base64")):
        body = {"properties": PROPERTIES, "routing_key": "q", "payload": payload, "payload_encoding": encoding}
        assert await api.expect(200, "POST", to, body) == {"routed": True}
    missed = {**body, "routing_key": "nowhere"}
    assert await api.expect(200, "POST", to, missed) == {"routed": False}
    first, second = await api.expect(200, "POST", "queues/%2F/q/get", {**LIST, "ackmode": "ack_requeue_true"})
    envelope = {"redelivered": False, "exchange": "", "routing_key": "q", "properties": PROPERTIES}
    assert first == {
        **envelope, "message_count": 1, "payload_bytes": 6, "payload": "héllo", "payload_encoding": "string",
    }  # fmt: skip
    assert second == {
        **envelope, "message_count": 0, "payload_bytes": 7, "payload": b64encode(octets).decode(),
        "payload_encoding": "base64",
    }  # fmt: skip
    [cut, _other] = await api.expect(
        200, "POST", "queues/%2F/q/get", {**LIST, "ackmode": "reject_requeue_true", "truncate": 2}
    )
    assert (cut["payload"], cut["payload_bytes"], cut["redelivered"]) == ("h", 6, True)  # é is not cut in two


async def test_what_cannot_be_published_is_refused(tmp_path: Path) -> None:
    """Every bad field is 400 with its name; a missing exchange is 404; an alarm is 503."""
    async with managed(tmp_path) as (broker, api):
        good = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
        to = "exchanges/%2F/amq.default/publish"
        for name in good:
            refused = await api.expect(400, "POST", to, {key: good[key] for key in good if key != name})
            assert refused == {"error": "bad_request", "reason": f"missing: {name}"}
        for change in (
            {"payload_encoding": "rot13"},
            {"payload_encoding": "base64", "payload": "!"},
            {"payload": 5},
            {"properties": 5},
            {"properties": {"priority": "x"}},
            {"properties": {"priority": 256}},
            {"properties": {"nonsense": "x"}},
            {"properties": {"user_id": "somebody"}},
            {"properties": {"headers": {"x": 1 << 70}}},
            {"routing_key": "k" * 256},
        ):
            assert (await api.expect(400, "POST", to, {**good, **change}))["error"] == "bad_request"
        long = "é" * 128
        for method, path, body in (
            ("PUT", f"queues/%2F/{long}", {}),
            ("PUT", f"exchanges/%2F/{long}", {}),
            ("POST", f"exchanges/%2F/{long}/publish", good),
            ("POST", "bindings/%2F/e/amq.topic/q/q", {"routing_key": long}),
            ("PUT", "exchanges/%2F/e", {"type": long}),
        ):
            assert "has at most 255 bytes" in (await api.expect(400, method, quote(path, "/%"), body))["reason"]
        refused = await api.expect(404, "POST", "exchanges/%2F/none/publish", good)
        assert refused == {"error": "not_found", "reason": "no exchange 'none' in vhost '/'"}
        await api.expect(
            201, "PUT", "queues/%2F/full", {"arguments": {"x-max-length": 0, "x-overflow": "reject-publish"}}
        )
        assert (await api.expect(400, "POST", to, {**good, "routing_key": "full"}))["reason"] == (
            "Unable to publish message. Check queue limits."
        )
        assert not broker.listener.transports  # each request has closed its connection
    async with managed(tmp_path / "2", memory={"alarm_bytes": 1}) as (_broker, api):
        refused = await api.expect(503, "POST", to, good)
        assert refused == {"error": "unavailable", "reason": "the memory alarm blocks publishing"}
        await api.expect(503, "GET", "aliveness-test/%2F")


@pytest.mark.interpreted("a method of the listener is replaced")
async def test_a_broker_without_descriptors_says_so(
    broker: BrokerServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that cannot get its connection within the broker is 503, and the next one succeeds."""

    async def attach(_end: object, _peer: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(broker.listener, "attach", attach)
        refused = await api.expect(503, "PUT", "queues/%2F/q", {})
    assert refused == {"error": "unavailable", "reason": "no connection within the broker: Too many open files"}
    await api.expect(201, "PUT", "queues/%2F/q", {})


async def test_the_ack_mode_decides_what_becomes_of_messages(api: Api) -> None:
    """Acked and rejected messages are gone, rejected ones to the dead letter exchange; the others keep their places."""
    await api.expect(201, "PUT", "queues/%2F/dead", {})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await api.expect(201, "PUT", "queues/%2F/q", {"arguments": arguments})
    await publish(api, "q", "1", "2", "3")
    for mode, count, left in (
        ("ack_requeue_true", 2, ["1", "2", "3"]),
        ("reject_requeue_true", "2", ["1", "2", "3"]),
        ("ack_requeue_false", 1, ["2", "3"]),
        ("reject_requeue_false", 1, ["3"]),
    ):
        body = {"ackmode": mode, "encoding": "auto", "count": count}
        assert len(await api.expect(200, "POST", "queues/%2F/q/get", body)) == int(count)
        assert await payloads(api, "q") == left
    assert await payloads(api, "dead") == ["2"]
    good = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for change in ({"ackmode": "later"}, {"encoding": "rot13"}, {"count": "x"}, {"truncate": -1}):
        await api.expect(400, "POST", "queues/%2F/q/get", {**good, **change})
    assert await api.expect(200, "POST", "queues/%2F/q/get", {**good, "count": -1}) == []
    await api.expect(404, "POST", "queues/%2F/none/get", good)


async def test_a_look_changes_nothing(broker: BrokerServer, api: Api) -> None:
    """A peeked message is not delivered: it is neither redelivered nor unacked afterwards."""
    await api.expect(201, "PUT", "queues/%2F/q", {"arguments": {"x-max-priority": 5}})
    await publish(api, "q", "low", priority=1)
    await publish(api, "q", "high", priority=4, type="ty")
    for _ in range(2):
        rows = await api.expect(200, "GET", "queues/%2F/q/peek?count=5&truncate=2")
        assert [row["payload"] for row in rows] == ["hi", "lo"]
        assert rows[0] == {
            "id": rows[0]["id"], "priority_level": 4, "redelivered": False, "exchange": "", "routing_key": "q",
            "properties": {"priority": 4, "type": "ty"}, "payload_bytes": 4, "payload_complete": False,
            "payload": "hi", "payload_encoding": "string",
        }  # fmt: skip
    [row] = await api.expect(200, "GET", "queues/%2F/q/peek?encoding=base64")
    assert (row["payload"], row["payload_encoding"]) == (b64encode(b"high").decode(), "base64")
    queue = broker.vhosts["/"].queues["q"]
    assert (queue.ready, queue.unacked) == (2, 0)
    for query in ("count=1001", "count=x", "truncate=-1", "encoding=rot13", "limit=1"):
        await api.expect(400, "GET", f"queues/%2F/q/peek?{query}")
    slots = await api.expect(200, "GET", "queues/%2F/q/slots")
    assert (slots["ready"], slots["levels"], slots["slot_count"]) == (2, 6, len(slots["slots"]))


async def test_messages_are_dropped_moved_and_held_back(broker: BrokerServer, api: Api) -> None:
    """Purge drops all or the first ones, move takes them to another queue, and a paused queue delivers nothing."""
    for queue in ("q", "r"):
        await api.expect(201, "PUT", f"queues/%2F/{queue}", {"durable": True})
    await publish(api, "q", *"123456789")
    assert await api.expect(200, "POST", "queues/%2F/q/purge?limit=2") == {"messages": 2}
    assert await payloads(api, "q") == list("3456789")
    moved = await api.expect(200, "POST", "queues/%2F/q/move", {"to": "queue:r", "limit": 3, "match": ["key=q"]})
    assert (moved["moved"], moved["left"], moved["stopped"]) == (3, 4, None)
    assert (await payloads(api, "r"), await payloads(api, "q")) == (list("345"), list("6789"))
    await api.expect(201, "POST", "bindings/%2F/e/amq.topic/q/r", {"routing_key": "new.#"})
    moved = await api.expect(200, "POST", "queues/%2F/q/move", {"to": "exchange:amq.topic:new.key", "limit": 1})
    assert (moved["moved"], moved["to"]) == (1, {"exchange": "amq.topic", "routing_key": "new.key"})
    for body in (
        {"to": "q"},
        {"to": "none"},
        {},
        {"to": "r", "limit": 0},
        {"to": "r", "match": ["x"]},
        {"to": "r", "x": 1},
    ):
        await api.expect(400, "POST", "queues/%2F/q/move", body)
    take = {"ackmode": "ack_requeue_false", "encoding": "auto", "count": 9}
    await api.expect(204, "POST", "queues/%2F/q/pause")
    assert await api.expect(200, "POST", "queues/%2F/q/get", take) == []
    assert broker.vhosts["/"].queues["q"].paused
    await api.expect(204, "POST", "queues/%2F/q/resume")
    assert len(await api.expect(200, "POST", "queues/%2F/q/get", take)) == 3
    assert await api.expect(200, "POST", "queues/%2F/r/purge") == {"messages": 4}
    assert await api.expect(200, "POST", "queues/%2F/r/purge?limit=5") == {"messages": 0}
    await publish(api, "r", "1", "2")
    await api.expect(204, "DELETE", "queues/%2F/r/contents?limit=1")
    await api.expect(400, "DELETE", "queues/%2F/r/contents?limits=1")  # a misspelt limit must not drop all
    assert await payloads(api, "r") == ["2"]
    for action, status in (("sync", 204), ("cancel_sync", 204), ("explode", 400)):
        await api.expect(status, "POST", "queues/%2F/r/actions", {"action": action})
    for path in ("purge", "move", "pause", "resume", "actions", "requeue-dead-letters"):
        await api.expect(404, "POST", f"queues/%2F/none/{path}", {"to": "q", "action": "sync"})


async def test_delayed_messages_are_counted_and_released(broker: BrokerServer, api: Api) -> None:
    """A queue that holds messages says how many and until when; an operator delivers them before their time."""
    await api.expect(201, "PUT", "queues/%2F/q", {"durable": True})
    policy = {"pattern": "^q$", "apply-to": "queues", "definition": {"hold-until-header": "wait:soon"}}
    refusal = await api.expect(400, "PUT", "policies/%2F/p", policy)
    assert '<<"wait:soon">> is not a valid hold-until-header' in refusal["reason"]
    definition = {"hold-until-header": "wait:countdown-s", "delayed-retry-type": "all", "delayed-retry-min": 50}
    await api.expect(201, "PUT", "policies/%2F/p", {**policy, "definition": definition})
    await publish(api, "q", "1", headers={"wait": 3600})
    await publish(api, "q", "2", headers={"wait": 1800})
    await publish(api, "q", "3")
    names = "messages", "messages_ready", "messages_delayed", "delayed_retry"
    for path in ("queues/%2F/q", "queues"):
        found = await api.expect(200, "GET", path)
        row = found[0] if isinstance(found, list) else found
        assert [row[name] for name in names] == [3, 1, 2, "all (min: 50ms, max: 50ms)"]
        assert row["last_delayed_at"] - row["next_delayed_at"] == pytest.approx(1_800_000, abs=60_000)
    assert (await api.expect(200, "GET", "overview"))["queue_totals"]["messages"] == 3
    await api.expect(400, "POST", "queues/%2F/q/release?limit=0")
    assert await api.expect(200, "POST", "queues/%2F/q/release?limit=1") == {"messages": 1}
    queue = broker.vhosts["/"].queues["q"]

    async def released() -> bool:
        return queue.ready == 2

    await wait_until_async(released, "the message")
    assert await payloads(api, "q") == ["3", "2"]
    assert await api.expect(200, "POST", "queues/%2F/q/release") == {"messages": 1}
    assert await api.expect(200, "POST", "queues/%2F/q/release") == {"messages": 0}
    await api.expect(404, "POST", "queues/%2F/none/release")


async def test_dead_letters_go_home(api: Api) -> None:
    """Dead letters return to the queue that they died in, those of a reason first if asked."""
    await api.expect(201, "PUT", "queues/%2F/dead", {})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await api.expect(201, "PUT", "queues/%2F/q", {"arguments": arguments})
    await publish(api, "q", "1", "2")
    take = {"ackmode": "reject_requeue_false", "encoding": "auto", "count": 2}
    await api.expect(200, "POST", "queues/%2F/q/get", take)
    again = "queues/%2F/dead/requeue-dead-letters"
    assert (await api.expect(200, "POST", again, {"reasons": ["expired"]}))["moved"] == 0
    assert (await api.expect(200, "POST", again, {"reasons": ["rejected"], "limit": 1}))["moved"] == 1
    assert (await api.expect(200, "POST", again))["moved"] == 1
    assert await payloads(api, "q") == ["1", "2"]
    await api.expect(400, "POST", again, {"into": "space"})


async def test_unacked_messages_are_listed_with_their_age_and_consumer() -> None:
    """The list names who holds each message and for how long, the oldest first; it costs the delivery path nothing."""
    timed = Timed(http=HTTP, amqp={"consumer_timeout_ms": 0})
    async with timed:
        broker: BrokerServer = timed._server  # type: ignore[assignment]
        api = Api(broker)
        connection: Any = await aio_pika.connect(timed.url, client_properties={"connection_name": "worker"})
        channel = await connection.channel()
        queue = await channel.declare_queue("q")
        await publish(api, "q", "1", "2", "3", type="ty")
        held = [await queue.get(no_ack=False)]
        timed.clock.advance(60)
        got: asyncio.Queue[Any] = asyncio.Queue()
        await queue.consume(got.put, consumer_tag="tag")
        held += [await got.get(), await got.get()]
        timed.clock.advance(5)
        await held[1].ack()
        timed.clock.advance(2)
        first, second = await api.expect(200, "GET", "queues/%2F/q/unacked?truncate=10")
        assert [first["age_ms"], second["age_ms"]] == [pytest.approx(67_000, abs=1000), pytest.approx(7000, abs=1000)]
        assert [first["consumer_tag"], second["consumer_tag"]] == [None, "tag"]
        assert [first["payload"], second["payload"]] == ["1", "3"]
        assert second == second | {
            "id": 3, "priority_level": 0, "delivery_tag": 3, "redelivered": False, "channel": 1, "user": "guest",
            "exchange": "", "routing_key": "q", "payload_bytes": 1, "properties": {"type": "ty"},
        }  # fmt: skip
        assert second["connection"].startswith("127.0.0.1:")
        assert len(await api.expect(200, "GET", "queues/%2F/q/unacked?count=1")) == 1
        assert await api.expect(200, "GET", "queues/%2F/q/unacked?count=0") == []
        await api.expect(400, "GET", "queues/%2F/q/unacked?count=1001")
        watcher = await api.with_user("eve", "management", configure="")
        rows = await watcher.expect(200, "GET", "queues/%2F/q/unacked?truncate=10")
        assert not {"payload", "properties"}.intersection(*rows)  # eve may not read the queue
        await watcher.expect(401, "GET", "queues/%2F/q/peek")
        await held[0].ack()
        await held[2].ack()
        await timed.idle()
        assert await api.expect(200, "GET", "queues/%2F/q/unacked") == []
        await connection.close()
        api.close()


async def test_a_route_is_tried_out(broker: BrokerServer, api: Api) -> None:
    """The answer names the queues that a message would reach, each binding that leads there, and what found it."""
    for queue in ("eu", "all", "spare"):
        await api.expect(201, "PUT", f"queues/%2F/{queue}", {})
    await api.expect(201, "PUT", "exchanges/%2F/orders", {"type": "topic", "arguments": {"alternate-exchange": "rest"}})
    await api.expect(201, "PUT", "exchanges/%2F/audit", {"type": "headers"})
    await api.expect(201, "PUT", "exchanges/%2F/rest", {"type": "fanout"})
    for path, body in (
        ("orders/q/eu", {"routing_key": "eu.#"}),
        ("orders/q/eu", {"routing_key": "*.new"}),
        ("orders/q/eu", {"routing_key": "us.#"}),
        ("orders/e/audit", {"routing_key": "#.new"}),
        ("audit/q/all", {"arguments": {"x-match": "all", "region": "eu"}}),
        ("rest/q/spare", {}),
    ):
        await api.expect(201, "POST", f"bindings/%2F/e/{path}", body)

    async def tried(exchange: str, **message: Any) -> tuple[list[str], list[tuple[str, str, str]]]:
        said = await api.expect(200, "POST", f"exchanges/%2F/{exchange}/route", message)
        assert said["routed"] == bool(said["queues"])
        assert said["match_count"] == len(said["matches"])
        found = [(m["source"], m["destination"], m["routing_key"]) for m in said["matches"]]
        return sorted(said["queues"]), sorted(found)  # an index has an order of its own

    orders = [("orders", "audit", "#.new"), ("orders", "eu", "*.new"), ("orders", "eu", "eu.#")]
    assert await tried("orders", routing_key="eu.new") == (["eu"], orders)
    found = (["all", "eu"], [("audit", "all", ""), *orders])
    assert await tried("orders", routing_key="eu.new", headers={"region": "eu"}) == found
    assert await tried("orders", routing_key="asia.old") == (["spare"], [("rest", "spare", "")])
    assert await tried("amq.default", routing_key="eu") == (["eu"], [("", "eu", "eu")])
    assert await tried("amq.default", routing_key="none") == ([], [])
    said = await api.expect(200, "POST", "exchanges/%2F/orders/route", {"routing_key": "asia.old"})
    assert (said["matches"][0]["alternate_of"], said["matches"][0]["index"]) == ("orders", "all bindings")
    said = await api.expect(200, "POST", "exchanges/%2F/orders/route", {"routing_key": "eu.new"})
    assert said["matches"][0]["index"] == broker.vhosts["/"].exchanges["orders"].index_name
    await api.expect(400, "POST", "exchanges/%2F/orders/route", {"routing_key": "k" * 256})
    await api.expect(404, "POST", "exchanges/%2F/none/route", {})
    assert all(queue.ready == 0 for queue in broker.vhosts["/"].queues.values())  # nothing was published


async def test_rights_over_http_are_those_over_amqp(api: Api) -> None:
    """A user may do to queues, exchanges and messages what the user may do over AMQP, whatever the tag."""
    for queue in ("mine", "other"):
        await api.expect(201, "PUT", f"queues/%2F/{queue}", {})
    await publish(api, "other", "secret")
    await api.expect(201, "PUT", "vhosts/hidden")
    ada = await api.with_user("ada", "administrator", configure="^mine", write="^mine", read="^mine")
    publishes = {"properties": {}, "routing_key": "mine", "payload": "x", "payload_encoding": "string"}
    take = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    for method, path, body in (  # that nothing happened; who may do what is tested route by route
        ("DELETE", "queues/%2F/other", None),
        ("DELETE", "queues/%2F/other/contents", None),
        ("POST", "queues/%2F/other/get", take),
        ("POST", "queues/%2F/other/move", {"to": "mine"}),
        ("PUT", "queues/hidden/mine", {}),
    ):
        refused = await ada.expect(401, method, path, body)
        assert refused["error"] == "not_authorised", path
    assert await payloads(api, "other") == ["secret"]
    await ada.expect(204, "PUT", "queues/%2F/mine", {})
    await ada.expect(201, "PUT", "exchanges/%2F/mine.e", {"type": "topic"})
    await ada.expect(201, "POST", "bindings/%2F/e/mine.e/q/mine", {"routing_key": "#"})
    assert await ada.expect(200, "POST", "exchanges/%2F/mine.e/publish", publishes) == {"routed": True}
    moved = await ada.expect(200, "POST", "queues/%2F/mine/move", {"to": "exchange:mine.e"})
    assert moved["moved"] == 1
    await api.expect(201, "PUT", "topic-permissions/%2F/ada", {"exchange": "mine.e", "write": "^a", "read": ""})
    for to, status in (("exchange:mine.e", 200), ("exchange:mine.e:b", 401), ("exchange:mine.e:a", 200)):
        answer = await ada.expect(status, "POST", "queues/%2F/mine/move", {"to": to})
        if status == 200:  # without a key those stay that have one which the user may not use
            assert (answer["moved"], answer["refused"]) == ((1, 0) if to.endswith(":a") else (0, 1))
    await ada.expect(401, "POST", "exchanges/%2F/mine.e/publish", publishes)
    await ada.expect(201, "PUT", "exchanges/%2F/mine.i", {"type": "fanout", "internal": True})
    await ada.expect(401, "POST", "queues/%2F/mine/move", {"to": "exchange:mine.i"})
    await ada.expect(401, "POST", "exchanges/%2F/mine.i/publish", publishes)
    await ada.expect(200, "POST", "queues/%2F/mine/get", take)


async def test_an_exclusive_queue_is_its_connections(broker: BrokerServer, api: Api) -> None:
    """Permissions do not suffice for the messages of another connection's queue: that takes a tag."""
    async with client_of(broker) as channel:
        queue = await channel.declare_queue("mine", exclusive=True)
        await publish(api, "mine", "1", "2")
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        ada = await api.with_user("ada", "management", **rights)
        eve = await api.with_user("eve", "monitoring", **rights)
        take = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        for user, peeks in ((ada, 401), (eve, 200)):
            await user.expect(peeks, "GET", "queues/%2F/mine/peek")
            for method, path, body in (
                ("DELETE", "contents", None),
                ("POST", "purge", None),
                ("POST", "move", {"to": "mine"}),
                ("POST", "pause", None),
            ):
                await user.expect(401, method, f"queues/%2F/mine/{path}", body)
            await user.expect(400, "POST", "queues/%2F/mine/get", take)  # as over AMQP: the resource is locked
        assert await api.expect(200, "POST", "queues/%2F/mine/purge?limit=1") == {"messages": 1}
        assert queue.name in broker.vhosts["/"].queues


async def test_connections_are_closed_by_their_user_or_an_administrator(broker: BrokerServer, api: Api) -> None:
    """A client is told the reason; another user without the tag administrator may not close it."""
    ada = await api.with_user("ada", "monitoring", configure=".*")
    async with client_of(broker):
        [name] = [session.name for session in broker.listener.sessions()]
        path = "connections/" + name.replace(" ", "%20").replace(">", "%3E")
        await ada.expect(401, "DELETE", path)
        await ada.expect(401, "DELETE", "connections/username/guest")
        await ada.expect(204, "DELETE", "connections/username/ada")
        await ada.expect(404, "DELETE", "connections/none")
        assert broker.listener.sessions()
        await api.expect(204, "DELETE", path, X_Reason="maintenance")
        await broker.listener.wait_empty()
    web = Web(broker.manage.port())
    assert (await web.later("DELETE", "/api/connections/username/nobody")).status == 204
    web.close()
    assert json.loads((await api.ask("GET", "connections")).body) == []
