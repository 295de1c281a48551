"""The handshake over a real socket: protocol header, login, limits, virtual host."""

from __future__ import annotations

import pytest
from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.deadline import wait_until
from tests.integration.raw.conftest import ControlClient
from tests.raw_client import (
    PROTOCOL_HEADER,
    PeerGone,
    RawClient,
    frame,
    method_frame,
    publish_frames,
)


def test_frames_before_tune_are_small(broker: BrokerAddress, control: ControlClient) -> None:
    """Before the limits are negotiated, a frame of 64 KiB ends the connection: strangers get no memory."""
    with RawClient(broker.host, broker.port) as client:
        client.greet()
        answer = commands.Connection.StartOk(
            client_properties={"junk": "x" * 65_536}, mechanism="PLAIN", response="\0guest\0guest", locale="en_US"
        )
        client.method(0, answer)
        try:
            close = client.expect(commands.Connection.Close, 0)
        except PeerGone:
            return
        assert close.reply_code == 501


def whole_session(queue: str) -> bytes:
    """Return the bytes of a client session that needs no answer in between."""
    return b"".join(
        [
            PROTOCOL_HEADER,
            method_frame(0, commands.Connection.StartOk(mechanism="PLAIN", response="\0guest\0guest", locale="en_US")),
            method_frame(0, commands.Connection.TuneOk(channel_max=10, frame_max=4096, heartbeat=0)),
            method_frame(0, commands.Connection.Open(virtual_host="/")),
            method_frame(1, commands.Channel.Open()),
            method_frame(1, commands.Queue.Declare(queue=queue, exclusive=True)),
            method_frame(1, commands.Confirm.Select()),
            publish_frames(1, "", queue, b"x" * 5000),
            publish_frames(1, "", queue, b""),
            frame(8, 0, b""),
            method_frame(1, commands.Basic.Qos(prefetch_count=1)),
            method_frame(1, commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)),
        ]
    )


def answers(client: RawClient) -> list[str]:
    """Return the names of all answers up to channel.close-ok, except confirms, which may arrive at any time."""
    names: list[str] = []
    while not names or names[-1] != "Channel.CloseOk":
        value = client.next().value
        if isinstance(value, commands.Basic.Ack):
            assert value.delivery_tag in (1, 2)
        else:
            names.append(str(value.name))
    client.close()
    return names


SESSION_ANSWERS = [
    "Connection.Start", "Connection.Tune", "Connection.OpenOk", "Channel.OpenOk", "Queue.DeclareOk", "Confirm.SelectOk",
    "Basic.QosOk", "Channel.CloseOk",
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 7, 8, 4096, 1 << 20])
def test_session_in_pieces(broker: BrokerAddress, name: str, size: int) -> None:
    """A whole session, sent in pieces of any size without waiting, gets the same answers."""
    octets = whole_session(name)
    with RawClient(broker.host, broker.port) as client:
        for at in range(0, len(octets), size):
            client.send(octets[at : at + size])
        assert answers(client) == SESSION_ANSWERS


def test_strangers_that_hang_up(broker: BrokerAddress, control: ControlClient, name: str) -> None:
    """Clients that disconnect after any number of bytes leave nothing but free names."""
    octets = whole_session(name)
    for at in range(0, len(octets), 97):
        with RawClient(broker.host, broker.port) as client:
            client.send(octets[:at])
    control.check()

    def is_free() -> bool:
        with RawClient(broker.host, broker.port).open() as client:
            client.open_channel(1)
            client.method(1, commands.Queue.Declare(queue=name, passive=True))
            return bool(client.expect(commands.Channel.Close, 1).reply_code == 404)

    wait_until(is_free, "the exclusive queues of those who hung up are gone")
    with RawClient(broker.host, broker.port) as client:
        client.send(octets)
        assert answers(client) == SESSION_ANSWERS
