"""Fuzzes the connection machine: mutated conversations may produce only legal output.

python -m fuzz.connection --inputs 1000000 --seed 7
"""

from __future__ import annotations

import struct
import sys
from random import Random

from pamqp import commands
from pamqp import frame as pamqp_frame

from broker.amqp.channel import Channel
from broker.amqp.codec import Method, publish_fields
from broker.amqp.connection import Connection
from broker.amqp.content_header import decode_properties
from broker.amqp.errors import CODE_NAMES, ChannelError, ConnectionFault, Refused
from broker.amqp.handshake import ConnectionLimits
from broker.amqp.output import OutputTaker
from fuzz.campaign import main
from fuzz.grammar import PROTOCOL_HEADER, conversation, handshake
from fuzz.mutation import pieces, spoil

LIMITS = ConnectionLimits(max_message_size_bytes=1000)


class Session:
    """Serves a connection with occasional errors and holds, which depend on the events alone."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self.connection = connection
        self.rng = Random(seed)
        self.events: list[tuple[object, ...]] = []
        self.open_sessions = 1

    def happen(self, *event: object) -> None:
        """Record an event, and decide whether it fails."""
        self.events.append(event)
        roll = self.rng.random()
        if roll < 0.02 and event[0] != "open":
            raise ChannelError(self.rng.choice([403, 404, 405, 406]), "text" * self.rng.choice([1, 100]))
        if roll < 0.025:
            raise ConnectionFault(self.rng.choice([530, 540]), "text")
        if roll < 0.06:
            self.connection.hold()

    def authenticate(self, mechanism: str, response: bytes) -> None:
        self.events.append(("authenticate", mechanism, response))
        if response != b"\0guest\0guest":
            raise Refused("wrong password")

    def open(self, vhost: str) -> None:
        self.happen("open", vhost)

    def open_channel(self, channel: Channel) -> ChannelSession:
        self.happen("open channel", channel.number)
        self.open_sessions += 1
        return ChannelSession(self, channel)

    def update_secret(self, secret: bytes, reason: str) -> None:
        self.happen("secret", secret, reason)

    def close(self) -> None:
        self.open_sessions -= 1
        assert self.open_sessions == 0, "the connection's session is closed last, and once"

    def crashed(self, error: Exception) -> None:
        raise AssertionError("an unexpected error reached the machine") from error


class ChannelSession:
    """Serves a channel of such a connection."""

    def __init__(self, owner: Session, channel: Channel) -> None:
        self.owner = owner
        self.channel = channel
        self.closed = False

    def method(self, method: Method) -> None:
        assert not self.closed
        self.owner.happen(self.channel.number, method.name, repr(dict(method)))

    def publish_run(self, payloads: list[bytes], headers: list[bytes], bodies: list[bytes], start: int) -> int:
        """Accept none, so that each publish is called separately."""
        return start

    def publish(self, payload: bytes, header: bytes, body: bytes) -> None:
        assert not self.closed
        assert struct.unpack_from(">Q", header, 4)[0] == len(body) <= LIMITS.max_message_size_bytes
        decode_properties(header)
        fields = publish_fields(payload)
        self.owner.happen(self.channel.number, fields, header, body, self.channel.facts.persistent)
        if self.owner.rng.random() < 0.1:
            self.channel.send_content(commands.Basic.Return(312, "NO_ROUTE", "", ""), header, body)

    def leave(self) -> None:
        assert not self.closed

    def close(self) -> None:
        assert not self.closed, "a channel's session is closed once"
        self.closed = True
        self.owner.open_sessions -= 1


class Taker(OutputTaker):
    """Leaves the output to be taken after each chunk."""

    def output_waits(self) -> None:
        """Do nothing."""


def converse(chunks: list[bytes], seed: int, budget_bytes: int | None) -> tuple[Connection, Session, bytes]:
    """Feed the chunks to a fresh machine, and return it with its session and all its output."""
    sessions: list[Session] = []

    def session_of(connection: Connection) -> Session:
        sessions.append(Session(connection, seed))
        return sessions[0]

    connection = Connection(session_of, LIMITS, {"product": "SlotMQ"}, Taker())
    said = b""
    for chunk in chunks:
        through = connection.feed(chunk, budget_bytes)
        while connection.held or not through:
            connection.release()
            through = connection.feed(b"", budget_bytes)
        assert connection.buffered_bytes <= connection.frame_max + 8, "no more is kept than one frame"
        was_finished = connection.finished
        said += b"".join(connection.take_output())
        assert connection.feed(b"") or was_finished
        assert connection.take_output() == [], "nothing is said without a reason"
    return connection, sessions[0], said


def judge(said: bytes) -> str:
    """Return the last close among the frames, after decoding every frame."""
    outcome = ""
    if said.startswith(b"AMQP"):
        assert said == PROTOCOL_HEADER
        return "another protocol"
    while said:
        kind, channel, size = struct.unpack_from(">BHI", said)
        assert said[7 + size] == 0xCE
        # Contents are relayed unchanged, and may exceed what pamqp decodes.
        value = pamqp_frame.unmarshal(said)[2] if kind == 1 else None
        assert kind in (1, 2, 3)
        said = said[size + 8 :]
        if isinstance(value, commands.Connection.Close):
            assert channel == 0
            assert value.reply_code in CODE_NAMES, value.reply_code
            outcome = f"connection.close {value.reply_code}"
        elif isinstance(value, commands.Channel.Close):
            assert channel
            outcome = f"channel.close {value.reply_code}"
    return outcome


def check(rng: Random) -> str:
    """Run one mutated conversation, and return its outcome."""
    frames = conversation(rng)
    # Most conversations are mutated after the handshake, because earlier mutations end them early.
    spoil(rng, frames, first=len(handshake(Random(0))) if rng.random() < 0.8 else 0)
    octets = PROTOCOL_HEADER + b"".join(frames)
    if rng.random() < 0.02:
        octets = octets[rng.randrange(9) :]
    seed = rng.getrandbits(32)
    chunks = pieces(rng, octets)
    connection, session, said = converse(chunks, seed, rng.choice([None, None, 1, 100, 5000]))
    outcome = judge(said)
    if len(octets) < 1500 and rng.random() < 0.02:
        # Octet by octet, the conversation must have the same outcome.
        _, other, repeated = converse([octets[at : at + 1] for at in range(len(octets))], seed, None)
        assert (other.events, repeated) == (session.events, said), "the cuts of the network made a difference"
    state = connection.state.value
    connection.lost()
    assert session.open_sessions == 0, "every session is closed in the end"
    return f"{state:<9} {outcome}".rstrip()


if __name__ == "__main__":
    sys.exit(main("connection", check))
