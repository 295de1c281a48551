"""The Exchange class from the client's side: answers, codes and texts."""

from __future__ import annotations

import pytest
from pamqp import commands

from broker.amqp.codec import Method
from broker.core.auth.users import User
from tests.unit.core.room import Client, Room

Declare, Delete = commands.Exchange.Declare, commands.Exchange.Delete
Bind, Unbind = commands.Exchange.Bind, commands.Exchange.Unbind
INEQUIVALENT = "channel 406 PRECONDITION_FAILED - inequivalent arg "
FAILED = "channel 406 PRECONDITION_FAILED - "
NO_INDEX = f"{FAILED}Invalid argument, 'x-topic-index' must be one of auto, bitmap, trie, dfa, "
TOPIC = Declare(exchange="x", exchange_type="topic")
MQTT = Declare(exchange="x", exchange_type="topic", arguments={"x-topic-dialect": "mqtt"})
HASH = Declare(exchange="x", exchange_type="x-consistent-hash")
ALTERNATE = Declare(exchange="x", exchange_type="topic", arguments={"alternate-exchange": "other"})
DEFAULT = "channel 403 ACCESS_REFUSED - operation not permitted on the default exchange"

REFUSALS: list[tuple[str, list[Method], Method, str]] = [
    ("type differs", [TOPIC], Declare(exchange="x", exchange_type="fanout"),
     INEQUIVALENT + "'type' for exchange 'x' in vhost '/': received 'fanout' but current is 'topic'"),
    ("durable differs", [TOPIC], Declare(exchange="x", exchange_type="topic", durable=True),
     INEQUIVALENT + "'durable' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
    ("auto_delete differs", [TOPIC], Declare(exchange="x", exchange_type="topic", auto_delete=True),
     INEQUIVALENT + "'auto_delete' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
    ("internal differs", [TOPIC], Declare(exchange="x", exchange_type="topic", internal=True),
     INEQUIVALENT + "'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
    ("predeclared, differs", [], Declare(exchange="amq.topic", exchange_type="topic"),
     INEQUIVALENT + "'durable' for exchange 'amq.topic' in vhost '/': received 'false' but current is 'true'"),
    ("reserved name", [], Declare(exchange="amq.x", exchange_type="topic"),
     "channel 403 ACCESS_REFUSED - exchange name 'amq.x' contains reserved prefix 'amq.*'"),
    ("unknown type", [], Declare(exchange="x", exchange_type="x-jms-topic"),
     "channel 406 PRECONDITION_FAILED - unknown exchange type 'x-jms-topic'"),
    ("default exchange", [], Declare(exchange=""), DEFAULT),
    ("default exchange, passive", [], Declare(exchange="", passive=True), DEFAULT),
    ("passive, not there", [], Declare(exchange="x", passive=True),
     "channel 404 NOT_FOUND - no exchange 'x' in vhost '/'"),
    ("alternate exchange of a wrong type", [], Declare(exchange="x", arguments={"alternate-exchange": 1}),
     FAILED + "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"),
    ("alternate exchange differs", [ALTERNATE], TOPIC,
     INEQUIVALENT + "'alternate-exchange' for exchange 'x' in vhost '/': "
     "received none but current is the value 'other' of type 'longstr'"),
    ("dialect differs", [TOPIC], Declare(exchange="x", exchange_type="topic", arguments={"x-topic-dialect": "mqtt"}),
     INEQUIVALENT + "'x-topic-dialect' for exchange 'x' in vhost '/': "
     "received the value 'mqtt' of type 'longstr' but current is none"),
    ("unknown dialect", [], Declare(exchange="x", exchange_type="topic", arguments={"x-topic-dialect": "stomp"}),
     "channel 406 PRECONDITION_FAILED - Invalid argument, 'x-topic-dialect' must be one of amqp, mqtt, not 'stomp'"),
    ("index differs", [TOPIC], Declare(exchange="x", exchange_type="topic", arguments={"x-topic-index": "trie"}),
     INEQUIVALENT + "'x-topic-index' for exchange 'x' in vhost '/': "
     "received the value 'trie' of type 'longstr' but current is none"),
    ("unknown index", [], Declare(exchange="x", exchange_type="topic", arguments={"x-topic-index": "linear"}),
     NO_INDEX + "not 'linear'"),
    ("an index that is only compared with", [],
     Declare(exchange="x", exchange_type="topic", arguments={"x-topic-index": "conventional"}),
     NO_INDEX + "not 'conventional'"),
    ("delayed without a type", [], Declare(exchange="x", exchange_type="x-delayed-message"),
     "channel 406 PRECONDITION_FAILED - Invalid argument, 'x-delayed-type' must be an existing exchange type"),
    ("delayed of an unknown type", [],
     Declare(exchange="x", exchange_type="x-delayed-message", arguments={"x-delayed-type": "x-jms-topic"}),
     "channel 406 PRECONDITION_FAILED - unknown exchange type 'x-jms-topic'"),
    ("delete the default exchange", [], Delete(exchange=""), DEFAULT),
    ("delete a predeclared one", [], Delete(exchange="amq.topic"),
     "channel 403 ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed"),
    ("delete one in use",
     [TOPIC, commands.Queue.Declare(queue="q"), commands.Queue.Bind(queue="q", exchange="x", routing_key="#")],
     Delete(exchange="x", if_unused=True), "channel 406 PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"),
    ("bind: no source", [TOPIC], Bind(destination="x", source="y"),
     "channel 404 NOT_FOUND - no exchange 'y' in vhost '/'"),
    ("bind: no destination", [TOPIC], Bind(destination="y", source="x"),
     "channel 404 NOT_FOUND - no exchange 'y' in vhost '/'"),
    ("bind: neither", [], Bind(destination="x", source="y"), "channel 404 NOT_FOUND - no exchange 'y' in vhost '/'"),
    ("bind: default source", [TOPIC], Bind(destination="x", source=""), DEFAULT),
    ("bind: default destination", [TOPIC], Bind(destination="", source="x"), DEFAULT),
    ("bind: x-match", [TOPIC], Bind(destination="x", source="amq.match", arguments={"x-match": 1}),
     "channel 406 PRECONDITION_FAILED - Invalid x-match field type signedint (value 1); expected longstr"),
    ("bind: no weight", [HASH], Bind(destination="amq.topic", source="x", routing_key="k"),
     'channel 406 PRECONDITION_FAILED - The binding key must be an integer: <<"k">>'),
    ("bind: weight zero", [HASH], Bind(destination="amq.topic", source="x", routing_key="0"),
     "channel 406 PRECONDITION_FAILED - The binding key must be greater than 0"),
    ("bind: no topic filter", [MQTT], Bind(destination="amq.topic", source="x", routing_key="a/#/b"),
     FAILED + "binding key 'a/#/b' is not a topic filter: '#' must be the last level"),
    ("bind: too many hashes", [], Bind(destination="amq.fanout", source="amq.topic", routing_key="#.a.#.b.#"),
     FAILED + "binding key '#.a.#.b.#' has 3 '#' words, the limit is 2"),
    ("unbind: default source", [TOPIC], Unbind(destination="x", source=""), DEFAULT),
    ("unbind: default destination", [TOPIC], Unbind(destination="", source="x"), DEFAULT),
]  # fmt: skip


@pytest.mark.parametrize(("before", "method", "close"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_a_method_that_cannot_be_done_closes_with_rabbitmqs_text(
    before: list[Method], method: Method, close: str
) -> None:
    """Every refusal has RabbitMQ's code and text."""
    client = Room().enter()
    for earlier in before:
        client.tell(1, earlier)
    assert client.refused(method) == close


@pytest.mark.parametrize("type_", ["direct", "fanout", "topic", "headers"])
def test_each_type_is_declared_found_again_and_deleted(type_: str) -> None:
    """A repeated declare changes nothing, a passive declare finds the exchange, and delete removes it."""
    room = Room()
    client = room.enter()
    for method in (
        Declare(exchange="x", exchange_type=type_, durable=True),
        Declare(exchange="x", exchange_type=type_, durable=True),
        Declare(exchange="x", exchange_type="whatever", passive=True),
    ):
        client.call(1, method, commands.Exchange.DeclareOk)
    assert room.vhost.exchanges["x"].type == type_
    client.call(1, Delete(exchange="x"), commands.Exchange.DeleteOk)
    assert "x" not in room.vhost.exchanges


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_the_predeclared_exchanges_are_there(name: str, type_: str) -> None:
    """Declaring a predeclared exchange with its own properties succeeds."""
    Room().enter().call(1, Declare(exchange=name, exchange_type=type_, durable=True), commands.Exchange.DeclareOk)


def test_deleting_what_is_not_there_is_no_error() -> None:
    """Deleting an unknown exchange is answered as a success."""
    Room().enter().call(1, Delete(exchange="x"), commands.Exchange.DeleteOk)


@pytest.mark.parametrize("method", [Declare(exchange="x", nowait=True), Delete(exchange="x", nowait=True)])
def test_nowait_is_not_answered(method: Method) -> None:
    """A method with nowait takes effect and has no answer."""
    assert Room().enter().tell(1, method) == []


def test_an_internal_exchange_is_declared_but_takes_no_publish() -> None:
    """A publish to an internal exchange is 403, as in RabbitMQ."""
    client = Room().enter()
    client.call(1, Declare(exchange="x", exchange_type="fanout", internal=True), commands.Exchange.DeclareOk)
    assert client.publish("x", "k") == [
        "channel 403 ACCESS_REFUSED - cannot publish to internal exchange 'x' in vhost '/'"
    ]


@pytest.mark.parametrize(
    ("destination", "source"), [("x", "gone"), ("gone", "x"), ("gone", "gone"), ("x", "amq.topic"), ("x", "x")]
)
def test_unbinding_what_is_not_bound_is_no_error(destination: str, source: str) -> None:
    """Unbinding succeeds without a binding, also when the source or the destination is missing."""
    client = Room().enter()
    client.tell(1, TOPIC)
    client.call(1, Unbind(destination=destination, source=source), commands.Exchange.UnbindOk)


def test_an_exchange_is_bound_once_and_unbound() -> None:
    """Binding twice is binding once. A message passes on to bound exchanges; both ends may be internal."""
    room = Room()
    client = room.enter()
    client.tell(1, Declare(exchange="x", exchange_type="fanout", internal=True))
    client.tell(1, commands.Queue.Declare(queue="q"))
    client.tell(1, commands.Queue.Bind(queue="q", exchange="x"))
    for _ in range(2):
        client.call(1, Bind(destination="x", source="amq.topic", routing_key="a.#"), commands.Exchange.BindOk)
    assert room.vhost.exchanges["amq.topic"].binding_count == 1
    client.publish("amq.topic", "a.b")
    client.publish("amq.topic", "b")
    assert room.vhost.queues["q"].ready == 1
    client.call(1, Unbind(destination="x", source="amq.topic", routing_key="a.#"), commands.Exchange.UnbindOk)
    client.publish("amq.topic", "a.b")
    assert room.vhost.queues["q"].ready == 1


@pytest.mark.parametrize(
    "method",
    [
        Bind(destination="amq.fanout", source="amq.topic", nowait=True),
        Unbind(destination="amq.fanout", source="amq.topic", nowait=True),
    ],
)
def test_binding_with_nowait_is_not_answered(method: Method) -> None:
    """A bind with nowait takes effect and has no answer."""
    assert Room().enter().tell(1, method) == []


def limited_client(configure: str, write: str, read: str) -> Client:
    """Return a client of bob, who has only these rights."""
    client = Room().enter()
    client.users.put(User("bob"))
    client.permissions.set("bob", "/", configure, write, read)
    client.session.user = User("bob")
    return client


@pytest.mark.parametrize(
    ("rights", "method", "refused"),
    [
        (("", "", "amq.topic"), Bind(destination="x", source="amq.topic"), "access to exchange 'x'"),
        (("", "x", ""), Bind(destination="x", source="amq.topic"), "access to exchange 'amq.topic'"),
        (("", "", "amq.topic"), Unbind(destination="x", source="amq.topic"), "access to exchange 'x'"),
        (("", "x", ""), Unbind(destination="x", source="amq.topic"), "access to exchange 'amq.topic'"),
        (("x", "other", ""), ALTERNATE, "access to exchange 'x'"),
        (("x", "", "x"), ALTERNATE, "access to exchange 'other'"),
        (("y", "y", "y"), Declare(exchange="x", passive=True), "exchange 'x'"),
    ],
)
def test_a_right_that_is_missing_is_named(rights: tuple[str, str, str], method: Method, refused: str) -> None:
    """A refusal names the missing right: write on the destination and read on the source; an alternate needs both."""
    told = limited_client(*rights).refused(method)
    assert told.startswith("channel 403 ACCESS_REFUSED - ")
    assert refused in told


def test_whoever_may_not_bind_a_topic_cannot_bind_exchanges_by_it() -> None:
    """A bind between exchanges needs the topic right on the source."""
    client = limited_client("", ".*", ".*")
    client.permissions.topics.set("bob", "/", "amq.topic", ".*", "^mine\\.")
    client.call(1, Bind(destination="amq.fanout", source="amq.topic", routing_key="mine.a"), commands.Exchange.BindOk)
    told = client.refused(Bind(destination="amq.fanout", source="amq.topic", routing_key="yours.a"))
    assert told == (
        "channel 403 ACCESS_REFUSED - "
        "access to topic 'yours.a' in exchange 'amq.topic' in vhost '/' refused for user 'bob'"
    )
