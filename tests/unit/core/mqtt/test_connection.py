"""MQTT connections without a socket."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from broker.amqp.errors import ProtocolError
from broker.amqp.handshake import ConnectionLimits
from broker.core.auth.logins import Logins
from broker.core.auth.peer import Peer
from broker.core.auth.permissions import Permissions
from broker.core.auth.usage import Usage
from broker.core.auth.users import Users
from broker.core.mqtt.connection import MqttConnection
from broker.core.mqtt.context import INTERVAL_MS, MqttClients, MqttContext
from broker.core.mqtt.mapping import MessageMapping
from broker.core.mqtt.retained import RetainedMessages
from broker.core.mqtt.session import MqttSessionOfConnection
from broker.core.publishing.publish_entry import WIDE_QUEUES
from broker.settings.mqtt import Mqtt
from tests.counting_taker import CountingTaker
from tests.mqtt.raw_mqtt import connect, publish, subscribe
from tests.unit.core.room import GUEST, Room


@pytest.fixture
def context() -> MqttContext:
    """Return the state that the connections share."""
    return MqttContext(Mqtt(), MessageMapping(64), MqttClients(), RetainedMessages, default_vhost="/", qos_max=2)


def entered(room: Room, context: MqttContext, client_id: str = "client", version: int = 5) -> MqttConnection:
    """Return the connection of a client that has logged in."""
    users = Users([GUEST])
    permissions = Permissions(users)
    session = partial(
        MqttSessionOfConnection,
        logins=Logins(users),
        permissions=permissions,
        usage=Usage(users),
        vhosts={room.vhost.name: room.vhost},
        peer=Peer("127.0.0.1"),
    )
    machine = MqttConnection(session, ConnectionLimits(), CountingTaker(), lambda *_: None, context, ["PLAIN"])
    machine.feed(connect(client_id, version))
    return machine


@pytest.mark.parametrize("sizes", [[10], [10] * 3, [10, 2000, 10], [2000, 10, 10, 2000], [5, 10, 300, 10, 5]], ids=str)
def test_each_size_of_a_run_is_counted(room: Room, context: MqttContext, sizes: list[int]) -> None:
    """Messages that arrive together count by their own sizes, although equal headers are one object."""
    machine, tally = entered(room, context), room.vhost.tally.sizes
    machine.feed(publish("t", b""))  # the first publish to a topic is resolved, which may end a run
    machine.feed(b"".join(publish("t", bytes(size)) for size in sizes))
    assert tally.total_bytes == sum(sizes)
    assert tally.counts[:2] == [1 + sum(size <= 100 for size in sizes), sum(100 < size <= 1000 for size in sizes)]
    assert sum(tally.counts) == 1 + len(sizes)


def test_later_subscriptions_do_not_delay_the_figures_of_others(room: Room, context: MqttContext) -> None:
    """A subscription below `$SYS` gets its figures in each interval, however often another client subscribes."""
    entered(room, context, "first").feed(subscribe(1, ("$SYS/broker/uptime", 0)))
    other = entered(room, context, "other")
    level = room.vhost.queues["mqtt-subscription-firstqos0"].level
    for half in range(1, 7):
        other.feed(subscribe(1, ("$SYS/broker/uptime", 0)))
        room.turn(INTERVAL_MS // 2)
        assert level.published == 1 + half // 2


def full_queue(room: Room, context: MqttContext) -> None:
    """Let a queue get every message and refuse all but one."""
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    room.vhost.queues.declare("full", arguments=arguments)
    room.vhost.bindings.bind("full", "amq.topic", "#")
    room.enter().publish("amq.topic", "first")


def alarm(room: Room, context: MqttContext) -> None:
    """Let the vhost refuse publishes."""
    room.vhost.set_limits({"max-blocked-seconds": 0})
    room.vhost.set_alarm("low on disk")


def last_place(room: Room, context: MqttContext) -> None:
    """Let another client use the last place for a retained message while a wide publish waits for its turn."""
    for number in range(WIDE_QUEUES):
        room.vhost.queues.declare(f"q{number}")
        room.vhost.bindings.bind(f"q{number}", "amq.topic", "#")
    entered(room, context, "other").feed(publish("other", b"first", 1, flags=1))


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (full_queue, "a queue is full"),
        (alarm, "low on disk: the message was not accepted, publish it again later"),
        (last_place, "1 messages are retained: mqtt.retained_max allows no more"),
    ],
)
def test_an_old_client_is_disconnected_for_the_reason_of_the_refusal(
    room: Room, cause: Callable[[Room, MqttContext], None], text: str
) -> None:
    """MQTT 3.1.1 cannot answer a publish that is refused, so the log says why the connection ends."""
    context = MqttContext(
        Mqtt(retained_max=1), MessageMapping(64), MqttClients(), RetainedMessages, default_vhost="/", qos_max=2
    )
    machine = entered(room, context, version=4)
    cause(room, context)
    machine.feed(publish("t", b"refused", 1, None, flags=1))
    for _ in range(3):
        room.turn()
        room.committer.sync()
    room.turn()
    assert isinstance(machine.failure, ProtocolError)
    assert machine.failure.reply_text == f"PRECONDITION_FAILED - {text}"
