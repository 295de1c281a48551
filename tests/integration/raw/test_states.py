"""Every method of AMQP 0-9-1 and its extensions, in every state of a connection and of a channel.

A state is defined by the steps that reach it. One table holds the expected answer for each state and method, kept
short by naming the exceptions. RabbitMQ 3.10 gives the same answers, except where a line says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.integration.raw.conftest import ControlClient
from tests.raw_client import (
    METHOD,
    PeerGone,
    RawClient,
    described,
    frame,
    header_frame,
    method_frame,
)

Connection, Channel, Exchange, Queue, Basic, Tx, Confirm = (
    commands.Connection,
    commands.Channel,
    commands.Exchange,
    commands.Queue,
    commands.Basic,
    commands.Tx,
    commands.Confirm,
)
CLOSE: dict[str, Any] = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}

END = "end of the connection"
"""The connection ends, after a connection.close or without one: who is not let in yet is owed no explanation."""
NOTHING = "nothing"
"""No answer; the connection is as it was."""


def every_method(name: str) -> dict[str, bytes]:
    """Return each method's frame with well-formed and, for a request, valid arguments; `name` is a queue."""
    get_ok = Basic.GetOk(delivery_tag=1, redelivered=False, exchange="", routing_key="", message_count=0)
    deliver = Basic.Deliver(consumer_tag="t", delivery_tag=1, redelivered=False, exchange="", routing_key="")
    methods: list[Any] = [
        Connection.Start(),
        Connection.StartOk(mechanism="PLAIN", response="\0guest\0guest", locale="en_US"),
        Connection.Secure(challenge=""), Connection.SecureOk(response=""),
        Connection.Tune(channel_max=2047, frame_max=131072, heartbeat=0),
        Connection.TuneOk(channel_max=2047, frame_max=131072, heartbeat=0),
        Connection.Open(virtual_host="/"), Connection.OpenOk(), Connection.Close(**CLOSE), Connection.CloseOk(),
        Connection.Blocked(reason=""), Connection.Unblocked(),
        Connection.UpdateSecret(new_secret="guest", reason=""), Connection.UpdateSecretOk(),
        Channel.Open(), Channel.OpenOk(), Channel.Flow(active=True), Channel.FlowOk(active=True),
        Channel.Close(**CLOSE), Channel.CloseOk(),
        Exchange.Declare(exchange="amq.direct", durable=True), Exchange.DeclareOk(),
        Exchange.Delete(exchange=f"{name}.none"), Exchange.DeleteOk(),
        Exchange.Bind(destination="amq.topic", source="amq.direct", routing_key=name), Exchange.BindOk(),
        Exchange.Unbind(destination="amq.topic", source="amq.direct", routing_key=name), Exchange.UnbindOk(),
        Queue.Declare(queue=name, exclusive=False), Queue.DeclareOk(queue=name, message_count=0, consumer_count=0),
        Queue.Bind(queue=name, exchange="amq.direct", routing_key=name), Queue.BindOk(),
        Queue.Purge(queue=name), Queue.PurgeOk(message_count=0),
        Queue.Delete(queue=f"{name}.none"), Queue.DeleteOk(message_count=0),
        Queue.Unbind(queue=name, exchange="amq.direct", routing_key=name), Queue.UnbindOk(),
        Basic.Qos(), Basic.QosOk(),
        Basic.Consume(queue=name), Basic.ConsumeOk(consumer_tag="t"),
        Basic.Cancel(consumer_tag="t"), Basic.CancelOk(consumer_tag="t"),
        Basic.Publish(exchange="amq.direct", routing_key=f"{name}.none"),
        Basic.Return(reply_code=312, reply_text="", exchange="", routing_key=""), deliver,
        Basic.Get(queue=name), get_ok, Basic.GetEmpty(),
        Basic.Ack(delivery_tag=0, multiple=True), Basic.Reject(delivery_tag=77), Basic.Nack(multiple=True),
        Basic.Recover(requeue=True), Basic.RecoverOk(),
        Tx.Select(), Tx.SelectOk(), Tx.Commit(), Tx.CommitOk(), Tx.Rollback(), Tx.RollbackOk(),
        Confirm.Select(), Confirm.SelectOk(),
    ]  # fmt: skip
    octets = {method.name: method_frame(0, method) for method in methods}
    octets["Basic.RecoverAsync"] = frame(METHOD, 0, b"\0\x3c\0\x64\x01")  # pamqp warns that it is deprecated
    return octets


CONTENT = {"Basic.Publish", "Basic.Return", "Basic.Deliver", "Basic.GetOk"}
NAMES = sorted(every_method("names"))


def test_the_table_is_complete() -> None:
    """Every method that pamqp knows is in the table."""
    assert set(NAMES) == {cast("Any", method).name for method in commands.INDEX_MAPPING.values()}


@dataclass(frozen=True)
class State:
    """The steps to reach a state, the channel for the methods, and the expected answers."""

    name: str
    enter: Callable[[RawClient], None]
    channel: int
    otherwise: int | str
    """What every method gets that `answers` does not name: a code, END or NOTHING."""
    answers: Mapping[str, int | str] = field(default_factory=dict)


def opened(client: RawClient) -> None:
    """Open the connection."""
    client.open()


def channel_open(client: RawClient) -> None:
    """Open channel 1."""
    client.open()
    client.open_channel(1)


def started(client: RawClient) -> None:
    """Proceed to connection.start."""
    client.greet()


def tuning(client: RawClient) -> None:
    """Proceed to connection.tune."""
    client.greet()
    client.authenticate()
    client.expect(Connection.Tune, 0)


def tuned(client: RawClient) -> None:
    """Proceed to tune-ok."""
    tuning(client)
    client.method(0, Connection.TuneOk(channel_max=2047, frame_max=131072, heartbeat=0))


def confirming(client: RawClient) -> None:
    """Open channel 1 with confirms."""
    channel_open(client)
    client.call(1, Confirm.Select(), Confirm.SelectOk)


def transactional(client: RawClient) -> None:
    """Open channel 1 with transactions."""
    channel_open(client)
    client.call(1, Tx.Select(), Tx.SelectOk)


def connection_closing(client: RawClient) -> None:
    """Make the broker close the connection, and do not answer."""
    channel_open(client)
    client.method(0, Connection.Open(virtual_host="/"))
    client.expect(Connection.Close, 0)


def channel_closing(client: RawClient) -> None:
    """Make the broker close channel 1, and do not answer."""
    channel_open(client)
    client.method(1, Queue.Declare(queue="no-such-queue", passive=True))
    client.expect(Channel.Close, 1)


def channel_closed(client: RawClient) -> None:
    """Make the broker close channel 1, and answer."""
    channel_closing(client)
    client.method(1, Channel.CloseOk())


def channel_left(client: RawClient) -> None:
    """Close channel 1."""
    channel_open(client)
    client.call(1, Channel.Close(**CLOSE), Channel.CloseOk)


def header_awaited(client: RawClient) -> None:
    """Send a basic.publish without its content."""
    channel_open(client)
    client.method(1, Basic.Publish(exchange="amq.direct", routing_key="nobody"))


def body_awaited(client: RawClient) -> None:
    """Send a basic.publish and the content header of a body of 10 octets."""
    header_awaited(client)
    client.send(header_frame(1, 10))


RUNNING = {"Connection.Close": "Connection.CloseOk", "Connection.UpdateSecret": "Connection.UpdateSecretOk"}
REQUESTS: dict[str, int | str] = {
    "Channel.Open": 504,
    "Basic.Publish": NOTHING,
    "Basic.Ack": NOTHING,
    "Basic.Nack": NOTHING,
    "Basic.RecoverAsync": NOTHING,
    "Basic.Reject": 406,
    "Basic.Get": "Basic.GetEmpty",
    **{
        name: f"{name}Ok"
        for name in NAMES
        if f"{name}Ok" in NAMES and not name.startswith("Connection.") and name not in ("Channel.Open", "Basic.Get")
    },
    "Tx.Commit": 406,  # the channel is not transactional
    "Tx.Rollback": 406,
}

STATES = [
    State("nothing said", lambda _client: None, 0, END),
    State("start received", started, 0, END, {"Connection.StartOk": "Connection.Tune"}),
    State("start received, on a channel", started, 1, END),
    State("tune received", tuning, 0, END, {"Connection.TuneOk": NOTHING}),
    State("tune received, on a channel", tuning, 1, END),
    State("tuned", tuned, 0, 504, {"Connection.Open": "Connection.OpenOk"}),
    State("tuned, on a channel", tuned, 1, 505),
    State("running", opened, 0, 504, RUNNING),
    State("running, with a channel", channel_open, 0, 504, RUNNING),
    State("no channel", opened, 1, 504, {"Channel.Open": "Channel.OpenOk"}),
    State("channel open", channel_open, 1, 503, REQUESTS),
    State("channel with confirms", confirming, 1, 503, {**REQUESTS, "Basic.Publish": "Basic.Ack", "Tx.Select": 406}),
    State(
        "channel with transactions", transactional, 1, 503,
        {**REQUESTS, "Tx.Commit": "Tx.CommitOk", "Tx.Rollback": "Tx.RollbackOk", "Confirm.Select": 406},
    ),
    State("channel closed by the broker", channel_closed, 1, 504, {"Channel.Open": "Channel.OpenOk"}),
    State("channel closed by the client", channel_left, 1, 504, {"Channel.Open": "Channel.OpenOk"}),
    State("channel closing", channel_closing, 1, NOTHING, {"Channel.Open": 504, "Channel.Close": "Channel.CloseOk"}),
    State("channel closing, on channel 0", channel_closing, 0, 504, RUNNING),
    State("content header awaited", header_awaited, 1, 505),
    State("content header awaited, on channel 0", header_awaited, 0, 504, RUNNING),
    State("body awaited", body_awaited, 1, 505),
    State("body awaited, on channel 0", body_awaited, 0, 504, RUNNING),
    State(
        "connection closing", connection_closing, 0, NOTHING,
        {"Connection.Close": "Connection.CloseOk", "Connection.CloseOk": END},
    ),
    State("connection closing, on a channel", connection_closing, 1, NOTHING),
]  # fmt: skip

RABBITMQ: dict[tuple[str, str], int | str] = {
    # RabbitMQ answers connection.close in no state before `running`; it disconnects.
    ("tuned", "Connection.Close"): 504,
}
OURS: dict[tuple[str, str], int | str] = {
    ("start received", "Connection.Close"): "Connection.CloseOk",
    ("tune received", "Connection.Close"): "Connection.CloseOk",
    ("tuned", "Connection.Close"): "Connection.CloseOk",
}


def expected(state: State, name: str, oracle: bool) -> int | str:
    """Return the expected answer to a method in a state."""
    exceptions = RABBITMQ if oracle else OURS
    return exceptions.get((state.name, name), state.answers.get(name, state.otherwise))


def on_channel(octets: bytes, channel: int) -> bytes:
    """Return a method frame for another channel."""
    return octets[:1] + channel.to_bytes(2, "big") + octets[3:]


def sent(state: State, name: str, octets: bytes) -> bytes:
    """Return the frames to send: the method, its content if it has one, and a request that is always answered."""
    pieces = [on_channel(octets, state.channel)]
    if name in CONTENT and state.channel:
        pieces.append(header_frame(state.channel, 0))
    return b"".join(pieces)


def answer(client: RawClient, state: State, wanted: int | str, oracle: bool) -> int | str:
    """Return the answer: the name of a method, a code, END or NOTHING."""
    if wanted == NOTHING:
        return sign_of_life(client, state, oracle)
    try:
        value = client.next().value
    except PeerGone:
        return END
    if isinstance(value, Connection.Close):
        client.method(0, Connection.CloseOk())
        client.expect_end()
        return END if wanted == END else int(value.reply_code or 0)
    if isinstance(value, Channel.Close):
        return int(value.reply_code or 0)
    return str(value.name) if hasattr(value, "name") else "protocol header"


def sign_of_life(client: RawClient, state: State, oracle: bool) -> int | str:
    """Return NOTHING when the next answer belongs to a request made now."""
    if oracle:
        client.readable(0.3)  # RabbitMQ's channels are processes: one may answer later than the reader
    if state.enter is tuning:
        client.method(0, Connection.Open(virtual_host="/"))
        received = client.next()
        return NOTHING if isinstance(received.value, Connection.OpenOk) else described(received)
    if state.enter is connection_closing:
        client.method(0, Connection.CloseOk())
        try:
            return described(client.next())
        except PeerGone:
            return NOTHING
    client.method(9, Channel.Open())
    received = client.next()
    if isinstance(received.value, (Connection.Close, Channel.Close)):
        return int(received.value.reply_code or 0)
    return NOTHING if isinstance(received.value, Channel.OpenOk) and received.channel == 9 else described(received)


@pytest.fixture
def shared_queue(control: ControlClient, name: str) -> Iterator[str]:
    """Provide a queue that every connection may use; bindings under its name are removed in the end."""
    control.client.call(1, Queue.Declare(queue=name), Queue.DeclareOk)
    yield name
    unbind = Exchange.Unbind(destination="amq.topic", source="amq.direct", routing_key=name)
    control.client.call(1, unbind, Exchange.UnbindOk)
    control.client.call(1, Queue.Delete(queue=name), Queue.DeleteOk)


@pytest.mark.parametrize("state", STATES, ids=[state.name for state in STATES])
def test_every_method_in_every_state(
    broker: BrokerAddress, control: ControlClient, shared_queue: str, state: State, oracle: bool
) -> None:
    """Each method gets the answer of the state's table, and the control client is not affected."""
    octets = every_method(shared_queue)
    wrong: dict[str, str] = {}
    with ExitStack() as stack:
        clients: dict[str, RawClient] = {}
        # All are sent before the first answer is awaited, because a broker may delay the disconnection of strangers.
        for name in NAMES:
            client = clients[name] = stack.enter_context(RawClient(broker.host, broker.port))
            state.enter(client)
            client.send(sent(state, name, octets[name]))
        for name, client in clients.items():
            wanted = expected(state, name, oracle)
            got = answer(client, state, wanted, oracle)
            if got != wanted:
                wrong[name] = f"expected {wanted}, got {got}"
            client.socket.close()
    assert wrong == {}
    control.check()
