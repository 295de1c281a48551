"""Connections: login, virtual hosts, negotiated limits, closing, channels."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest

from tests.broker_process import BrokerAddress
from tests.integration.pika.conversation import connection_closed, drain, parameters

Connect = Callable[..., pika.BlockingConnection]

LOGIN_REFUSED = (
    "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
)


def test_client_by_url_alone(broker: BrokerAddress) -> None:
    """A client needs nothing but a URL."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    assert connection.channel().is_open
    connection.close()


@pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("guest", ""), ("nobody", "guest"), ("", "")])
def test_wrong_credentials(broker: BrokerAddress, user: str, password: str) -> None:
    """A wrong password and an unknown user are refused with the same 403, so that names cannot be guessed."""
    credentials = pika.PlainCredentials(user, password)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError) as caught:
        pika.BlockingConnection(parameters(broker, credentials=credentials))
    assert LOGIN_REFUSED in str(caught.value)


def test_unknown_virtual_host(broker: BrokerAddress) -> None:
    """Opening a missing virtual host closes the connection with 530."""
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
        pika.BlockingConnection(parameters(broker, virtual_host="nowhere"))
    assert "(530) 'NOT_ALLOWED - vhost nowhere not found'" in str(caught.value)


def test_broker_introduces_itself(connection: pika.BlockingConnection) -> None:
    """The broker announces its capabilities, so that clients use them."""
    assert connection.publisher_confirms_supported
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported
    properties = connection._impl.server_properties
    assert {"product", "version", "platform", "capabilities"} <= set(properties)
    for capability in ("publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked"):
        assert properties["capabilities"][capability] is True
    assert properties["capabilities"]["authentication_failure_close"] is True
    assert properties["capabilities"]["per_consumer_qos"] is True


def test_offered_limits(connect: Connect) -> None:
    """A client that asks for nothing gets the broker's limits."""
    impl = connect(heartbeat=None)._impl
    assert (impl.params.channel_max, impl.params.frame_max, impl.params.heartbeat) == (2047, 131_072, 60)


@pytest.mark.parametrize("frame_max", [4096, 8192, 131_072])
def test_smaller_frames_by_agreement(connect: Connect, name: str, frame_max: int) -> None:
    """A client may negotiate smaller frames, down to 4096 bytes, and then sends and receives no larger ones."""
    connection = connect(frame_max=frame_max)
    assert connection._impl.params.frame_max == frame_max
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"x" * 3 * frame_max)
    assert drain(channel, name) == [b"x" * 3 * frame_max]


def test_fewer_channels_by_agreement(connect: Connect) -> None:
    """A client may negotiate fewer channels and gets this many."""
    connection = connect(channel_max=4)
    assert connection._impl.params.channel_max == 4
    channels = [connection.channel() for _ in range(4)]
    assert [channel.channel_number for channel in channels] == [1, 2, 3, 4]
    channels[2].close()
    assert connection.channel().channel_number == 3


def test_channel_numbers_may_be_used_again(connection: pika.BlockingConnection) -> None:
    """A closed channel's number is free at once, a hundred times over."""
    for _ in range(100):
        channel = connection.channel(7)
        channel.queue_declare("", exclusive=True)
        channel.close()


def test_many_channels(connection: pika.BlockingConnection, name: str) -> None:
    """Hundreds of channels of one connection work side by side."""
    channels = [connection.channel() for _ in range(300)]
    channels[0].queue_declare(name, exclusive=True)
    for number, channel in enumerate(channels):
        channel.basic_publish("", name, str(number).encode())
    for channel in channels:
        channel.close()
    reader = connection.channel()
    assert sorted(drain(reader, name), key=int) == [str(number).encode() for number in range(300)]


def test_client_closes(connect: Connect) -> None:
    """The broker answers a client's close and ends the connection."""
    connection = connect()
    connection.channel()
    connection.close(200, "done")
    assert connection.is_closed


def test_hard_error_leaves_other_connections_alone(connect: Connect, name: str) -> None:
    """A hard error closes one connection and leaves the client's other connections open."""
    good, bad = connect(), connect()
    with connection_closed(540, "NOT_IMPLEMENTED - prefetch_size!=0 (7)"):
        bad.channel().basic_qos(prefetch_size=7)
    assert bad.is_closed
    channel = good.channel()
    channel.queue_declare(name, exclusive=True)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"works")
    assert drain(channel, name) == [b"works"]


def test_update_secret(connection: pika.BlockingConnection) -> None:
    """connection.update-secret is answered."""
    connection.update_secret("guest", "rotation")
    assert connection.channel().is_open


def test_channel_flow(connection: pika.BlockingConnection) -> None:
    """channel.flow active is answered with flow-ok; switching it off is not implemented, as in RabbitMQ."""
    channel = connection.channel()
    answers: list[bool] = []
    channel._impl._rpc(
        pika.spec.Channel.Flow(True), lambda frame: answers.append(frame.method.active), [pika.spec.Channel.FlowOk]
    )
    channel.queue_declare("", exclusive=True)
    assert answers == [True]
    with connection_closed(540, "NOT_IMPLEMENTED - active=false"):
        channel._impl._rpc(pika.spec.Channel.Flow(False), lambda _frame: None, [pika.spec.Channel.FlowOk])
        channel.queue_declare("", exclusive=True)
