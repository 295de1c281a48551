"""Publishing with ever new routing keys: the exchange is looked up once, and every change to it takes effect."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from pamqp import commands

from broker.core.session.connection import SessionOfConnection
from broker.core.topology.exchanges import Exchanges
from tests.raw_client import body_frame, frame, header_frame
from tests.unit.core.room import Client, Room, describe
from tests.unit.core.session.publishing import declare, publish, ready

NEW = count()
METHOD = 1


def new_key() -> str:
    """Return a routing key that no one has used."""
    return f"new.{next(NEW)}"


def topic(room: Room, client: Client) -> None:
    """Declare topic exchange x and queue q for all keys that begin with `new`, and publish to it."""
    client.call(1, commands.Exchange.Declare(exchange="x", exchange_type="topic"), commands.Exchange.DeclareOk)
    declare(client, "q")
    client.call(1, commands.Queue.Bind(queue="q", exchange="x", routing_key="new.#"), commands.Queue.BindOk)
    assert publish(client, new_key(), exchange="x") == []
    assert ready(room, "q") == [1]


def bob(room: Room) -> Client:
    """Return a client of bob, who has no rights; the vhost follows changes of them."""
    client = room.enter_without_rights()
    client.permissions.listeners.append(lambda user, _vhost: room.vhost.publish_caches.drop(user))
    return client


@pytest.mark.interpreted("methods of the session are replaced")
def test_an_exchange_is_looked_up_once(monkeypatch: pytest.MonkeyPatch, room: Room, client: Client) -> None:
    """The exchange name and the rights are checked once for all keys, whether a key is routable or not."""
    topic(room, client)
    asked: list[str] = []
    find, check = Exchanges.find, SessionOfConnection.check_topic

    def noted(name: str, asking: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            asked.append(name)
            return asking(*arguments)

        return ask

    monkeypatch.setattr(Exchanges, "find", noted("exchange", find))
    monkeypatch.setattr(SessionOfConnection, "check", noted("rights", SessionOfConnection.check))
    monkeypatch.setattr(SessionOfConnection, "check_topic", noted("topic", check))
    for _ in range(20):
        publish(client, new_key(), exchange="x")
        publish(client, "other." + new_key(), exchange="x")
    assert asked == []
    publish(client, new_key(), exchange="amq.topic")
    assert asked == ["rights", "exchange"]
    assert ready(room, "q") == [21]


def test_keys_that_lead_nowhere_are_confirmed_and_returned_if_mandatory(room: Room, client: Client) -> None:
    """Each unroutable key is handled by itself; a message that is not mandatory makes no copy and no record."""
    topic(room, client)
    client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    for _ in range(3):
        assert publish(client, "other." + new_key(), exchange="x") == []
    assert publish(client, "lost.1", exchange="x", mandatory=True) == ["Basic.Return"]
    (publisher,) = room.committer.waiting
    assert (publisher.published, publisher.logged) == (4, 0)
    frames = header_frame(1, 0)
    client.machine.feed(method(b"\x01x", b"\x06lost.2", b"\x01") + frames)
    ((_, returned),) = client.replies()
    assert isinstance(returned, commands.Basic.Return)
    assert (returned.exchange, returned.routing_key, returned.reply_code) == ("x", "lost.2", 312)
    assert room.records() == []
    assert ready(room, "q") == [1]


def test_properties_are_looked_at_though_the_key_leads_nowhere(room: Room, client: Client) -> None:
    """Properties of an unroutable publish still count: CC routes a copy, and a false user id is refused."""
    topic(room, client)
    for _ in range(3):
        assert publish(client, "other." + new_key(), exchange="x", headers={"CC": [new_key()]}) == []
    assert ready(room, "q") == [4]
    (answer,) = publish(client, "other." + new_key(), exchange="x", user_id="alice")
    assert answer.startswith("channel 406 PRECONDITION_FAILED - user_id property set to 'alice'")


def method(exchange: bytes, key: bytes, flags: bytes = b"\0") -> bytes:
    """Return the frame of a basic.publish with exactly these arguments."""
    return frame(METHOD, 1, struct.pack(">HHH", 60, 40, 0) + exchange + key + flags)


@pytest.mark.parametrize(
    ("octets", "answer"),
    [
        (method(b"\x01x", b"\x01k", b"\x02"), "connection 540 NOT_IMPLEMENTED - immediate=true"),
        (method(b"\x01x", b"\x01k", b"\x03"), "connection 540 NOT_IMPLEMENTED - immediate=true"),
        (method(b"\x01x", b"\x02k\xff", b"\x02"), "connection 501 FRAME_ERROR - Malformed UTF-8 in shortstr"),
        (method(b"\x01x", b"\x01\xff"), "connection 501 FRAME_ERROR - Malformed UTF-8 in shortstr"),
        (method(b"\x01\xff", b"\x01k"), "connection 501 FRAME_ERROR - Malformed UTF-8 in shortstr"),
        (method(b"\x01x", b"\x02k"), "connection 502"),
        (method(b"\x01x", b"\x01kk"), "connection 502"),
        (method(b"\x01x", b"\x03k"), "connection 502"),
        (method(b"\x01x", b"\x00", b""), "connection 502"),
        (method(b"\x01x", b"", b""), "connection 502"),
        (method(b"\x02x", b"", b""), "connection 502"),
        (method(b"", b"", b""), "connection 502"),
        (frame(METHOD, 1, b"\x00\x3c\x00\x28"), "connection 502"),
        (frame(METHOD, 1, b"\x00\x3c\x00\x28\x00"), "connection 502"),
    ],
)
def test_a_known_exchange_does_not_excuse_a_bad_method(octets: bytes, answer: str) -> None:
    """A malformed publish to a known exchange has the code and text of a first publish."""
    answers = []
    for known in (False, True):
        room = Room()
        client = room.enter()
        if known:
            topic(room, client)
        else:
            client.call(1, commands.Exchange.Declare(exchange="x", exchange_type="topic"), commands.Exchange.DeclareOk)
        client.machine.feed(octets + header_frame(1, 1) + body_frame(1, b"b"))
        ((_, close),) = client.replies()
        answers.append(describe(close))
    assert answers[0] == answers[1]
    assert answers[0].startswith(answer)


def test_a_deleted_exchange_is_not_found(room: Room, client: Client) -> None:
    """A publish to a deleted exchange is 404, and a new exchange of that name routes by its own type."""
    topic(room, client)
    room.vhost.exchanges.delete("x")
    text = "channel 404 NOT_FOUND - no exchange 'x' in vhost '/'"
    assert publish(client, new_key(), exchange="x") == [text]
    client.reopen_channel()
    room.vhost.exchanges.declare("x", "fanout")
    room.vhost.bindings.bind("q", "x", "")
    assert publish(client, new_key(), exchange="x") == []
    room.vhost.exchanges.delete("x")
    room.vhost.exchanges.declare("x", "direct", internal=True)
    assert publish(client, new_key(), exchange="x") == [
        "channel 403 ACCESS_REFUSED - cannot publish to internal exchange 'x' in vhost '/'"
    ]
    assert ready(room, "q") == [2]


def test_a_way_on_is_followed_from_the_moment_it_is_there(room: Room, client: Client) -> None:
    """A new alternate exchange or exchange binding applies to the next new key."""
    topic(room, client)
    declare(client, "other", "bound")
    vhost = room.vhost
    vhost.exchanges.declare("ae", "fanout")
    vhost.bindings.bind("other", "ae", "")
    assert publish(client, "other." + new_key(), exchange="x") == []
    vhost.exchanges["x"].set_alternate("ae")
    assert publish(client, "other." + new_key(), exchange="x") == []
    assert ready(room, "q", "other") == [1, 1]
    vhost.exchanges["x"].set_alternate(None)
    assert publish(client, "other." + new_key(), exchange="x") == []
    vhost.exchanges.declare("on", "fanout")
    vhost.bindings.bind_exchange("on", "x", "#")
    vhost.bindings.bind("bound", "on", "")
    assert publish(client, "other." + new_key(), exchange="x") == []
    vhost.bindings.unbind_exchange("on", "x", "#")
    assert publish(client, "other." + new_key(), exchange="x") == []
    assert ready(room, "q", "other", "bound") == [1, 1, 1]


def test_a_bound_queue_gets_the_next_new_key(room: Room, client: Client) -> None:
    """A key that was unroutable reaches a queue as soon as the queue is bound."""
    topic(room, client)
    declare(client, "late")
    for _ in range(3):
        publish(client, "late.key", exchange="x")
    room.vhost.bindings.bind("late", "x", "late.*")
    publish(client, "late.key", exchange="x")
    room.vhost.bindings.unbind("late", "x", "late.*")
    publish(client, "late.key", exchange="x")
    assert ready(room, "late") == [1]


def test_rights_that_are_taken_hold_for_the_next_new_key(room: Room) -> None:
    """Revoked rights to the exchange, and topic rights set later, apply to the next new key."""
    topic(room, room.enter())
    client = bob(room)
    client.permissions.set("bob", "/", "", "^x$", "")
    assert publish(client, new_key(), exchange="x") == []
    client.permissions.topics.set("bob", "/", "x", "^new", "")
    assert publish(client, new_key(), exchange="x") == []
    refused = "channel 403 ACCESS_REFUSED - access to "
    assert publish(client, "other.1", exchange="x") == [
        f"{refused}topic 'other.1' in exchange 'x' in vhost '/' refused for user 'bob'"
    ]
    client.reopen_channel()
    client.permissions.topics.clear("bob", "/", "x")
    assert publish(client, "other.2", exchange="x") == []
    client.permissions.set("bob", "/", "", "", "")
    assert publish(client, new_key(), exchange="x") == [f"{refused}exchange 'x' in vhost '/' refused for user 'bob'"]
    assert ready(room, "q") == [3]


def test_what_others_may_do_is_not_shared(room: Room) -> None:
    """A cached exchange of one user does not let another user publish to it."""
    topic(room, room.enter())
    assert publish(bob(room), new_key(), exchange="x") == [
        "channel 403 ACCESS_REFUSED - access to exchange 'x' in vhost '/' refused for user 'bob'"
    ]


def test_in_a_transaction_new_keys_are_routed_at_the_commit(room: Room, client: Client) -> None:
    """An unroutable key is kept without traces of another key, and the keys of CC are routed at the commit."""
    topic(room, client)
    client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    assert publish(client, "other." + new_key(), exchange="x") == []
    assert publish(client, "other." + new_key(), exchange="x", headers={"CC": [new_key()]}) == []
    assert publish(client, new_key(), exchange="x") == []
    assert ready(room, "q") == [1]
    client.tell(1, commands.Tx.Commit())
    assert ready(room, "q") == [3]


def test_ever_new_keys_are_not_kept(room: Room, client: Client) -> None:
    """A new key is not cached, whether it is routable or not; a repeated key is."""
    topic(room, client)
    assert client.session.user is not None
    entries = room.vhost.publish_caches.of(client.session.user.name).entries
    for _ in range(50):
        publish(client, new_key(), exchange="x")
        publish(client, "other." + new_key(), exchange="x")
    assert len(entries) == 0
    for key in ("new.again", "other.again"):
        for _ in range(4):
            publish(client, key, exchange="x")
    assert [entry.envelope.key for entry in entries.values()] == ["new.again", "other.again"]
    assert ready(room, "q") == [1 + 50 + 4]
