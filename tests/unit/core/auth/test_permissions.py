"""Permissions: who is configured may do everything, who is not may do nothing, in RabbitMQ's words."""

from __future__ import annotations

import pytest
from pamqp import commands

from broker.amqp.codec import Method
from broker.amqp.errors import ChannelError, ConnectionFault
from broker.core.auth.permissions import Permissions
from broker.core.auth.users import User
from broker.core.resource import Resource
from tests.unit.core.room import Room

ALICE, MALLORY = User("alice", "a"), User("mallory", "m")
PERMISSIONS = Permissions({"alice"})
QUEUE = Resource("queue", "/", "q")


def test_a_configured_user_may_do_everything() -> None:
    """Nothing is raised."""
    PERMISSIONS.check_vhost(ALICE, "/")
    PERMISSIONS.check_topic(ALICE, Resource("exchange", "/", "x"), "a.b", "read")
    for kind in ("configure", "write", "read"):
        PERMISSIONS.check(ALICE, QUEUE, kind)


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        (QUEUE, "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'mallory'"),
        (Resource("exchange", "/", "x"),
         "ACCESS_REFUSED - access to exchange 'x' in vhost '/' refused for user 'mallory'"),
        (Resource("exchange", "v", ""),
         "ACCESS_REFUSED - access to exchange 'amq.default' in vhost 'v' refused for user 'mallory'"),
    ],
)  # fmt: skip
def test_another_user_may_touch_nothing(resource: Resource, text: str) -> None:
    """403; the default exchange is called amq.default."""
    with pytest.raises(ChannelError) as refused:
        PERMISSIONS.check(MALLORY, resource, "write")
    assert refused.value.reply_text == text


def test_another_user_may_open_no_vhost_and_use_no_topic() -> None:
    """530 and 403."""
    with pytest.raises(ConnectionFault) as refused:
        PERMISSIONS.check_vhost(MALLORY, "/")
    assert refused.value.reply_text == "NOT_ALLOWED - access to vhost '/' refused for user 'mallory'"
    with pytest.raises(ChannelError) as topic:
        PERMISSIONS.check_topic(MALLORY, Resource("exchange", "/", "x"), "a.b", "write")
    assert topic.value.reply_text == (
        "ACCESS_REFUSED - access to topic 'a.b' in exchange 'x' in vhost '/' refused for user 'mallory'"
    )


class Ledger(Permissions):
    """Allows everything and writes down what it was asked."""

    def __init__(self) -> None:
        super().__init__({"guest"})
        self.asked: list[tuple[str, ...]] = []

    def check(self, user: User, resource: Resource, kind: str) -> None:
        self.asked.append((kind, resource.kind, resource.name))

    def check_topic(self, user: User, exchange: Resource, key: str, kind: str) -> None:
        self.asked.append((kind, "topic", key))


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        (commands.Exchange.Declare(exchange="x"), [("configure", "exchange", "x")]),
        (commands.Exchange.Declare(exchange="amq.topic", passive=True), []),
        (commands.Exchange.Delete(exchange="x"), [("configure", "exchange", "x")]),
        (commands.Queue.Declare(queue="new"), [("configure", "queue", "new")]),
        (commands.Queue.Declare(queue="q", passive=True), []),
        (commands.Queue.Delete(queue="q"), [("configure", "queue", "q")]),
        (commands.Queue.Purge(queue="q"), [("read", "queue", "q")]),
        (commands.Queue.Bind(queue="q", exchange="amq.direct", routing_key="k"),
         [("write", "queue", "q"), ("read", "exchange", "amq.direct")]),
        (commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="k"),
         [("write", "queue", "q"), ("read", "exchange", "amq.topic"), ("read", "topic", "k")]),
        (commands.Queue.Unbind(queue="q", exchange="amq.direct", routing_key="k"),
         [("write", "queue", "q"), ("read", "exchange", "amq.direct")]),
        (commands.Basic.Get(queue="q"), [("read", "queue", "q")]),
        (commands.Basic.Consume(queue="q"), [("read", "queue", "q")]),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)  # fmt: skip
def test_each_method_asks_for_the_rights_that_rabbitmq_asks_for(method: Method, asked: list[tuple[str, ...]]) -> None:
    """One object is asked at every place, so finer rules need no other change."""
    client = Room().enter()
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    client.session.permissions = ledger = Ledger()
    client.tell(1, method)
    assert ledger.asked == asked


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (commands.Exchange.Declare(exchange=""), "operation not permitted on the default exchange"),
        (commands.Exchange.Delete(exchange=""), "operation not permitted on the default exchange"),
        (commands.Exchange.Delete(exchange="amq.topic"),
         "deletion of system exchange 'amq.topic' in vhost '/' not allowed"),
        (commands.Queue.Declare(queue="amq.q"), "queue name 'amq.q' contains reserved prefix 'amq.*'"),
    ],
)  # fmt: skip
def test_what_nobody_may_do_is_told_before_what_this_user_may_not(method: Method, text: str) -> None:
    """The reason that holds for everybody comes first, as in RabbitMQ."""
    client = Room().enter()
    client.session.permissions = Permissions(set())
    assert client.refused(method) == f"channel 403 ACCESS_REFUSED - {text}"


def test_a_bind_without_the_right_to_the_queue_is_refused_before_its_exchange_is_looked_at() -> None:
    """The right to write to the queue comes before everything else, as in RabbitMQ."""
    client = Room().enter()
    client.session.permissions = Permissions(set())
    close = client.refused(commands.Queue.Bind(queue="q", exchange=""))
    assert close == "channel 403 ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'guest'"


class QueuesOnly(Permissions):
    """Allows queues and no exchange."""

    def check(self, user: User, resource: Resource, kind: str) -> None:
        if resource.kind == "exchange":
            raise ChannelError(403, "no right")


def test_a_bind_to_the_default_exchange_is_refused_before_the_right_to_it_is_asked() -> None:
    """Nobody can bind to it."""
    client = Room().enter()
    client.session.permissions = QueuesOnly(set())
    for method in (commands.Queue.Bind(queue="q", exchange="x"), commands.Queue.Bind(queue="q", exchange="")):
        close = client.refused(method)
        client.tell(1, commands.Channel.CloseOk())
        client.open_channel(1)
    assert close == "channel 403 ACCESS_REFUSED - operation not permitted on the default exchange"


def test_a_publish_asks_for_the_right_to_write() -> None:
    """To the exchange that it names."""
    client = Room().enter()
    client.session.permissions = ledger = Ledger()
    assert client.publish("amq.direct", "k") == []
    assert ledger.asked == [("write", "exchange", "amq.direct")]
