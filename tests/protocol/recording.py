"""A client that drives a Connection without a socket, and sessions that record every call.

The broker's output is decoded with pamqp and its input encoded here, neither with the broker's own codec.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from pamqp import base, body, commands, frame, header, heartbeat
from pamqp.common import FieldValue

from broker.amqp.channel import Channel
from broker.amqp.codec import publish_fields
from broker.amqp.connection import Connection
from broker.amqp.errors import ConnectionFault, Refused
from broker.amqp.handshake import ConnectionLimits
from tests.counting_taker import CountingTaker

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES: dict[str, FieldValue] = {"authentication_failure_close": True, "connection.blocked": True}
FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT = 1, 2, 3, 8

Event = tuple[Any, ...]


def raw_frame(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    """Return a frame in the layout of the specification."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


def method_frame(channel: int, method: base.Frame) -> bytes:
    """Return the frame of a method."""
    return frame.marshal(method, channel)


def header_payload(body_bytes: int, **properties: Any) -> bytes:
    """Return the payload of a content header."""
    return header.ContentHeader(body_size=body_bytes, properties=commands.Basic.Properties(**properties)).marshal()


def publish_frames(channel: int, text: bytes, *, pieces: int = 1, **properties: Any) -> bytes:
    """Return the frames of a publish to exchange `x` with key `k`; `pieces` is the number of body frames."""
    size = -(-len(text) // pieces) or 1
    bodies = [raw_frame(FRAME_BODY, channel, text[at : at + size]) for at in range(0, len(text), size)]
    return b"".join(
        [
            method_frame(channel, commands.Basic.Publish(exchange="x", routing_key="k")),
            raw_frame(FRAME_HEADER, channel, header_payload(len(text), **properties)),
            *bodies,
        ]
    )


class RecordingChannelSession:
    """Records the calls of its channel, and raises the exceptions set by the test."""

    def __init__(self, owner: RecordingSession, channel: Channel) -> None:
        self.owner = owner
        self.channel = channel

    def method(self, method: base.Frame) -> None:
        self.owner.events.append(("method", self.channel.number, method.name, dict(method)))
        self.owner.raise_for(method.name)

    def publish_run(self, payloads: list[bytes], headers: list[bytes], bodies: list[bytes], start: int) -> int:
        """Accept no publish, so that each is passed to `publish`."""
        return start

    def publish(self, payload: bytes, header: bytes, body: bytes) -> None:
        event = (self.channel.number, publish_fields(payload), header, body, self.channel.facts.persistent)
        self.owner.events.append(("publish", *event))
        self.owner.raise_for("Basic.Publish")

    def leave(self) -> None:
        self.owner.events.append(("channel left", self.channel.number))

    def close(self) -> None:
        self.owner.events.append(("channel closed", self.channel.number))
        self.owner.raise_for("channel closed")


class RecordingSession:
    """Admits guest to the virtual host `/`, records every call, and raises the exceptions set by the test."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self.crashes: list[Exception] = []
        self.raises: dict[str, Exception] = {}

    def raise_for(self, name: str) -> None:
        if name in self.raises:
            raise self.raises[name]

    def authenticate(self, mechanism: str, response: bytes) -> None:
        self.events.append(("authenticate", mechanism, response))
        self.raise_for("authenticate")
        if response != b"\0guest\0guest":
            raise Refused("user 'x' - invalid credentials")

    def open(self, vhost: str) -> None:
        self.events.append(("open", vhost))
        if vhost != "/":
            raise ConnectionFault(530, f"vhost {vhost} not found")

    def open_channel(self, channel: Channel) -> RecordingChannelSession:
        self.events.append(("channel opened", channel.number))
        self.raise_for("channel opened")
        return RecordingChannelSession(self, channel)

    def update_secret(self, secret: bytes, reason: str) -> None:
        self.events.append(("secret", secret, reason))
        self.raise_for("secret")

    def close(self) -> None:
        self.events.append(("closed",))
        self.raise_for("closed")

    def crashed(self, error: Exception) -> None:
        self.crashes.append(error)


class Peer:
    """A client that drives a Connection."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.taker = CountingTaker()
        self.errors: list[tuple[int, str]] = []
        self.session: RecordingSession
        self.connection = Connection(
            self._session,
            limits or ConnectionLimits(),
            {"product": "SlotMQ"},
            self.taker,
            lambda _, channel, error: self.errors.append((channel, str(error))),
        )

    def _session(self, connection: Connection) -> RecordingSession:
        self.session = RecordingSession(connection)
        return self.session

    @property
    def events(self) -> list[Event]:
        return self.session.events

    def say(self, *what: bytes | base.Frame, channel: int = 0) -> list[tuple[int, Any]]:
        """Feed bytes, or methods on a channel, and return the broker's answers."""
        for item in what:
            self.connection.feed(item if isinstance(item, bytes) else method_frame(channel, item))
        return self.answers()

    def answers(self) -> list[tuple[int, Any]]:
        """Return the output since the last call: channel and method, Properties, octets or heartbeat."""
        return list(read_frames(b"".join(self.connection.take_output())))

    def log_in(self, *, until: str = "running", frame_max: int = 131072, channel_max: int = 2047) -> Peer:
        """Do the handshake up to a state, and discard the answers."""
        steps: list[tuple[str, bytes | base.Frame]] = [
            ("starting", PROTOCOL_HEADER),
            ("tuning", commands.Connection.StartOk({"capabilities": CAPABILITIES}, "PLAIN", "\0guest\0guest")),
            ("opening", commands.Connection.TuneOk(channel_max, frame_max, 60)),
            ("running", commands.Connection.Open("/")),
        ]
        for state, step in steps:
            if self.connection.state.value != until:
                self.say(step)
                assert self.connection.state.value == state
        return self

    def open_channel(self, number: int = 1) -> Peer:
        """Open a channel, and discard the answer."""
        answers = self.say(commands.Channel.Open(), channel=number)
        assert [type(answer) for _, answer in answers] == [commands.Channel.OpenOk]
        return self


def read_frames(octets: bytes) -> Iterable[tuple[int, Any]]:
    """Yield the contents of the frames, which must be complete."""
    if octets.startswith(b"AMQP"):
        yield 0, octets
        return
    while octets:
        assert octets[7 + struct.unpack_from(">I", octets, 3)[0]] == 0xCE
        size, channel, value = frame.unmarshal(octets)
        octets = octets[size:]
        if isinstance(value, body.ContentBody):
            yield channel, value.value
        elif isinstance(value, header.ContentHeader):
            yield channel, value.properties
        else:
            assert isinstance(value, base.Frame | heartbeat.Heartbeat)
            yield channel, value


def closes(answers: list[tuple[int, Any]]) -> list[tuple[int, int, str]]:
    """Return the close methods among the answers as channel, code and text; connection.close has channel 0."""
    kinds = (commands.Connection.Close, commands.Channel.Close)
    return [
        (number, answer.reply_code or 0, answer.reply_text) for number, answer in answers if isinstance(answer, kinds)
    ]
