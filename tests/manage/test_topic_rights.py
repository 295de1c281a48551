"""Topic permissions: each verb in which a user, or a header of his message, names a routing key asks for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from broker.testing import Broker
from tests.http_talk import Web

DELAYED = {"x-delayed-type": "topic"}
TYPES: dict[str, tuple[str, dict[str, Any]]] = {
    "topic": ("topic", {}),
    "mqtt": ("topic", {"x-topic-dialect": "mqtt"}),
    "delayed": ("x-delayed-message", DELAYED),
}
ALICE = ("alice", "alice")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Provide a broker with exchanges of each kind, and alice, who may use keys that begin with an a."""
    with Broker(http={"enabled": True}) as running:
        root = Web(running.server.manage.port())
        rights = {"configure": ".*", "write": "^(?!secret)", "read": ".*"}
        for path, body in (
            ("users/alice", {"password": "alice", "tags": "administrator"}),
            ("permissions/%2F/alice", rights),
            ("queues/%2F/q", {}),
            ("queues/%2F/all", {}),
            ("exchanges/%2F/onward", {"type": "fanout"}),
            ("exchanges/%2F/secret", {"type": "fanout"}),
            ("exchanges/%2F/inner", {"type": "fanout", "internal": True}),
            *((f"exchanges/%2F/{name}", {"type": kind, "arguments": given}) for name, (kind, given) in TYPES.items()),
            *(("topic-permissions/%2F/alice", {"exchange": name, "write": "^a", "read": "^a"}) for name in TYPES),
        ):
            assert root.ask("PUT", f"/api/{path}", body).status < 300, path
        for name in (*TYPES, "secret", "inner"):
            assert root.ask("POST", f"/api/bindings/%2F/e/{name}/q/all", {"routing_key": "#"}).status == 201
        root.close()
        yield running


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    """Provide a channel of alice, with confirms."""
    parameters = pika.URLParameters(broker.url)
    parameters.credentials = pika.PlainCredentials(*ALICE)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


@pytest.fixture
def web(broker: Broker) -> Iterator[Web]:
    """Provide alice's HTTP client."""
    client = Web(broker.server.manage.port(), ALICE)
    yield client
    client.close()


def publish(channel: BlockingChannel, exchange: str, key: str, **headers: Any) -> None:
    """Publish a message with headers."""
    channel.basic_publish(exchange, key, b"x", pika.BasicProperties(headers=headers))


Step = Callable[[BlockingChannel, str, str], Any]
OVER_AMQP: dict[str, Step] = {
    "publish": publish,
    "publish, delayed": lambda channel, exchange, key: publish(channel, exchange, key, **{"x-delay": 1}),
    "CC": lambda channel, exchange, key: publish(channel, exchange, "a", CC=["a.1", key]),
    "BCC": lambda channel, exchange, key: publish(channel, exchange, "a", BCC=[key]),
    "bind a queue": lambda channel, exchange, key: channel.queue_bind("q", exchange, key),
    "unbind a queue": lambda channel, exchange, key: channel.queue_unbind("q", exchange, key),
    "bind an exchange": lambda channel, exchange, key: channel.exchange_bind("onward", exchange, key),
    "unbind an exchange": lambda channel, exchange, key: channel.exchange_unbind("onward", exchange, key),
}


@pytest.mark.parametrize("exchange", TYPES)
@pytest.mark.parametrize("step", OVER_AMQP)
def test_a_method_names_only_permitted_keys(channel: BlockingChannel, exchange: str, step: str) -> None:
    """A key that the expression allows passes, another is 403; so it is with the headers CC and BCC."""
    OVER_AMQP[step](channel, exchange, "a.b")
    with pytest.raises(ChannelClosedByBroker) as refused:
        OVER_AMQP[step](channel, exchange, "b.a")
    topic = f"access to topic 'b.a' in exchange '{exchange}' in vhost '/' refused for user 'alice'"
    assert (refused.value.reply_code, refused.value.reply_text) == (403, f"ACCESS_REFUSED - {topic}")


def test_other_exchanges_have_no_topics(channel: BlockingChannel) -> None:
    """The expressions do not count where keys are not topics, as in RabbitMQ."""
    publish(channel, "onward", "b.a")
    channel.queue_bind("q", "onward", "b.a")
    channel.queue_unbind("q", "onward", "b.a")


def test_what_topic_permissions_do_not_see(broker: Broker, channel: BlockingChannel) -> None:
    """A binding, an alternate exchange and a dead letter exchange lead past them, as in RabbitMQ."""
    channel.exchange_bind("topic", "onward", "")
    channel.exchange_declare("aside", "direct", arguments={"alternate-exchange": "topic"})
    channel.queue_declare("full", arguments={"x-max-length": 0, "x-dead-letter-exchange": "topic"})
    channel.queue_purge("all")
    for exchange, key in (("onward", "b.onward"), ("aside", "b.aside")):
        publish(channel, exchange, key)
    channel.basic_publish("", "full", b"x")
    keys = set()
    while (found := channel.basic_get("all", auto_ack=True))[0] is not None:
        keys.add(found[0].routing_key)
    assert keys == {"b.onward", "b.aside", "full"}
    channel.exchange_unbind("topic", "onward", "")


def forged(exchange: str, *keys: str) -> dict[str, Any]:
    """Return a header as if a queue had dead-lettered a message."""
    return {
        "x-death": [{"queue": "q", "exchange": exchange, "reason": "rejected", "count": 1, "routing-keys": [*keys]}]
    }


@pytest.mark.parametrize(
    ("exchange", "keys", "allowed"),
    [
        *((name, ["a.b"], True) for name in TYPES),
        *((name, ["b.a"], False) for name in TYPES),
        *((name, ["a.b", "b.a"], False) for name in TYPES),
        ("onward", ["b.a"], True),
        ("secret", ["k"], False),
        ("inner", ["k"], False),
    ],
)
@pytest.mark.parametrize("how", ["api", "control"])
def test_an_invented_death_leads_nowhere_else(
    channel: BlockingChannel, web: Web, exchange: str, keys: list[str], how: str, *, allowed: bool
) -> None:
    """Dead letters go into an exchange only with keys with which the user could publish; the others stay."""
    channel.queue_purge("q")
    channel.queue_purge("all")
    channel.queue_bind("q", "onward", "")
    try:
        publish(channel, "", "q", **forged(exchange, *keys))
        if how == "api":
            said = web.ask("POST", "/api/queues/%2F/q/requeue-dead-letters", {"into": "exchange"}).json
        else:
            said = command(web, "requeue_dead_letters", queue="q", into="exchange")["result"]
        counted = (1, 0) if allowed else (0, 1)
        assert (said["moved"], said["refused"]) == counted
        if exchange != "onward":
            assert (channel.queue_declare("all", passive=True).method.message_count) == counted[0]
    finally:
        channel.queue_unbind("q", "onward", "")


@pytest.mark.parametrize("exchange", TYPES)
def test_http_names_only_permitted_keys(channel: BlockingChannel, web: Web, exchange: str) -> None:
    """Publish, bind, move and add a tap over HTTP, by /api and by the verbs of the control socket."""
    channel.queue_purge("q")
    publish(channel, "", "q")  # its own key is q
    for key, allowed in (("b.a", False), ("a.b", True)):
        status = 200 if allowed else 401
        body = {"properties": {}, "routing_key": key, "payload": "x", "payload_encoding": "string"}
        assert web.ask("POST", f"/api/exchanges/%2F/{exchange}/publish", body).status == status
        copied = {**body, "routing_key": "a", "properties": {"headers": {"CC": [key]}}}
        assert web.ask("POST", f"/api/exchanges/%2F/{exchange}/publish", copied).status == status
        bound = web.ask("POST", f"/api/bindings/%2F/e/{exchange}/q/q", {"routing_key": key})
        assert bound.status == (201 if allowed else 401)
        tap = {"exchange": exchange, "pattern": key}
        made = web.ask("PUT", f"/api/slotmq/pipeline/taps/%2F/{exchange}", tap)
        assert made.status == (201 if allowed else 401)
        to = f"{exchange}:{key}"
        copies = {"headers": {"CC": [key]}}
        for name, given in (
            ("publish", {"to": to, "bodies": ["eA=="]}),
            ("publish", {"to": f"{exchange}:a", "bodies": ["eA=="], "properties": copies}),
            ("bind", {"exchange": exchange, "destination": "q", "key": key}),
            ("unbind", {"exchange": exchange, "destination": "q", "key": key}),
            ("tap_add", {"exchange": exchange, "pattern": key, "name": exchange}),
            ("move", {"queue": "all", "to": to, "limit": 1}),
        ):
            said = command(web, name, **given)
            assert said["ok"] is allowed, (name, key, said)
            assert allowed or "access to topic 'b.a' in exchange" in said["error"], name
        assert web.ask("POST", "/api/queues/%2F/all/move", {"to": to, "limit": 1}).status == status
    channel.queue_purge("q")
    publish(channel, "", "q")
    kept = web.ask("POST", "/api/queues/%2F/q/move", {"to": f"exchange:{exchange}"}).json
    assert (kept["moved"], kept["refused"], kept["left"]) == (0, 1, 1)


def command(web: Web, verb: str, **arguments: Any) -> dict[str, Any]:
    """Return the answer of a verb of the control socket, asked for over HTTP."""
    answer: dict[str, Any] = json.loads(
        web.ask("POST", "/v1/control", {"verb": verb, **arguments}).body.splitlines()[-1]
    )
    return answer


def test_topic_permissions_of_the_default_exchange(web: Web) -> None:
    """A path names the default exchange amq.default; permissions that were set for this name are removed first."""
    path = "/api/topic-permissions/%2F/guest"
    for name in ("", "amq.default"):
        assert web.ask("PUT", path, {"exchange": name, "write": "", "read": ""}).status in (201, 204)
    for left in ([""], []):
        assert web.ask("DELETE", f"{path}/amq.default").status == 204
        found = json.loads(web.get("/api/topic-permissions").body)
        assert [row["exchange"] for row in found if row["user"] == "guest"] == left
    assert web.ask("DELETE", f"{path}/amq.default").status == 404
