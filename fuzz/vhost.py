"""Fuzzes a whole vhost: well-formed methods with hostile arguments and headers, through the sessions and the workers.

Every input must end in an answer, or in a close that the broker chose. An exception in a session would be a 541; an
exception in a later step, where messages expire and are dead-lettered, would end the broker.

python -m fuzz.vhost --inputs 100000 --seed 7
"""

from __future__ import annotations

import struct
import sys
from random import Random

import structlog
from pamqp import base, commands

from broker.amqp.errors import ProtocolError
from broker.core.session.connection import SessionOfConnection
from fuzz.campaign import main
from fuzz.grammar import counted, frame, short_string, table, value
from tests.unit.core.room import Client, Room, describe

EXCHANGES = [b"", b"x1", b"x2", b"x3", b"amq.topic", b"amq.headers", b"amq.fanout"] * 6 + [b"nowhere", b"amq.nothing"]
QUEUES = [b"q1", b"q2", b"q3"] * 6 + [b"", b"amq.delayed.x3", b"amq.rabbitmq.reply-to", b"amq.rabbitmq.reply-to.x"]
KEYS = [b"", b"q1", b"q2", b"a", b"a.b", b"#", b"*.#", b"a.*", b"." * 255, b"#." * 20, b"1", b"k" * 255, b"\xff"]
TYPES = [b"direct", b"fanout", b"topic", b"headers", b"x-delayed-message", b"x-consistent-hash", b"stream"]
# The names that the broker reads in an argument table or a headers table.
READ = [
    *(b"x-message-ttl", b"x-expires", b"x-max-length", b"x-max-length-bytes", b"x-overflow", b"x-max-priority"),
    *(b"x-dead-letter-exchange", b"x-dead-letter-routing-key", b"x-delivery-limit", b"x-queue-type", b"x-queue-mode"),
    *(b"x-single-active-consumer", b"alternate-exchange", b"x-delayed-type", b"x-topic-dialect", b"hash-header"),
    *(b"hash-property", b"x-match", b"x-priority", b"CC", b"BCC", b"x-delay", b"x-death", b"x-delivery-count"),
]
TEXTS = [
    *(b"x1", b"x2", b"amq.topic", b"", b"q1", b"k" * 255, b"k" * 300, b"\xff", b"all", b"any", b"any-with-x", b"mqtt"),
    *(b"drop-head", b"reject-publish", b"reject-publish-dlx", b"quorum", b"classic", b"direct", b"topic", b"rejected"),
    *(b"1", b"-1", b"99999999999999999999", b"NaN", b"1e400", b"#.#", b"message_id"),
]
NUMBERS = [0, 1, 2, 3, 5, 255, 256, 1000, -1, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, -(1 << 63)]
DEATH = [b"count", b"reason", b"queue", b"time", b"exchange", b"routing-keys", b"original-expiration"]


def plausible(rng: Random, depth: int = 3) -> bytes:
    """Return a typed value that the broker might accept."""
    roll = rng.random()
    if roll < 0.35:
        return b"l" + struct.pack(">q", rng.choice(NUMBERS))
    if roll < 0.7:
        return b"S" + counted(rng.choice(TEXTS))
    if roll < 0.75:
        return b"t" + bytes([rng.randrange(2)])
    if roll < 0.9 and depth:
        entries = b"".join(plausible(rng, depth - 1) for _ in range(rng.choice([0, 1, 2, 5])))
        return b"A" + counted(entries)
    if roll < 0.95 and depth:
        return b"F" + counted(entries_of(rng, DEATH, depth - 1))
    return value(rng, 2)


def entries_of(rng: Random, names: list[bytes], depth: int = 3) -> bytes:
    """Return the entries of a table with some of these names, sometimes with one repeated."""
    chosen = rng.choices(names, k=rng.choice([0, 1, 2, 4]))
    return b"".join(bytes([len(name)]) + name + plausible(rng, depth) for name in chosen)


def arguments(rng: Random) -> bytes:
    """Return an argument table: none, one of a queue whose messages expire soon, or a random one of known names."""
    roll = rng.random()
    if roll < 0.4:
        return counted(b"")
    if roll < 0.7:
        return counted(mortal(rng))
    return counted(entries_of(rng, READ)) if roll < 0.95 else table(rng)


def mortal(rng: Random) -> bytes:
    """Return the arguments of a queue whose messages expire, with their dead-letter exchange."""
    octets = b"\x16x-dead-letter-exchangeS" + counted(rng.choice(EXCHANGES))
    if rng.random() < 0.8:
        octets += b"\x19x-dead-letter-routing-keyS" + counted(rng.choice([*TEXTS, b"q2", b"q3", b"q1"]))
    name = rng.choice([b"x-message-ttl", b"x-message-ttl", b"x-max-length", b"x-max-length-bytes"])
    return octets + bytes([len(name)]) + name + b"l" + struct.pack(">q", rng.choice([0, 1, 3]))


def headers(rng: Random) -> bytes:
    """Return a headers table whose deaths mostly have the right form, as a malicious publisher would forge them."""
    octets = entries_of(rng, [b"CC", b"BCC", b"x-delay", b"x-death", b"x-first-death-queue", b"n"])
    if rng.random() < 0.4:
        deaths = b"".join(b"F" + counted(entries_of(rng, DEATH)) for _ in range(rng.choice([1, 2, 50])))
        octets += b"\x07x-deathA" + counted(deaths)
    return counted(octets)


def named(rng: Random, names: list[bytes]) -> bytes:
    """Return a short string, mostly one of these names."""
    name = rng.choice(names)
    return bytes([len(name)]) + name if rng.random() < 0.97 else short_string(rng)


def method(rng: Random, kind: type[base.Frame]) -> bytes:
    """Return the payload of a method on names that other methods use, too."""
    octets, bits = struct.pack(">I", kind.index), False
    for name in kind.attributes():
        field = kind.amqp_type(name)
        if field == "bit":
            octets += b"" if bits else bytes([rng.choice([0, 0, 1, 2, 4, 8, 16]) & ~1 | (rng.random() < 0.05)])
        elif field == "shortstr":
            pool = {"queue": QUEUES, "routing_key": KEYS, "exchange_type": TYPES, "consumer_tag": [b"", b"c1", b"c2"]}
            octets += named(rng, pool.get(name, EXCHANGES))
        elif field == "table":
            octets += arguments(rng)
        elif field == "longlong":
            octets += struct.pack(">Q", rng.choice([0, 1, 1, 2, 3, 1 << 63]))
        elif field == "longstr":
            octets += counted(b"secret")
        else:
            octets += bytes({"octet": 1, "short": 2, "long": 4}[field])
        bits = field == "bit"
    return octets


def publish(rng: Random) -> bytes:
    """Return the frames of a publish whose properties affect the broker."""
    properties = b""
    flags = 0
    for bit, octets in (
        (13, headers(rng)),
        (12, bytes([rng.choice([1, 2, 2, 3])])),
        (11, bytes([rng.randrange(256)])),
        (9, named(rng, [b"amq.rabbitmq.reply-to", b"q1"])),
        (8, named(rng, [b"0", b"1", b"5", b"1000", b"-1", b"x", b"99999999999"])),
        (4, named(rng, [b"guest", b"alice"])),
    ):
        if rng.random() < (0.8 if bit == 13 else 0.2):
            flags |= 1 << bit
            properties += octets
    body = b"x" * rng.choice([0, 1, 100])
    content = frame(2, 1, struct.pack(">HHQH", 60, 0, len(body), flags) + properties)
    return frame(1, 1, method(rng, commands.Basic.Publish)) + content + (frame(3, 1, body) if body else b"")


METHODS: list[type[base.Frame]] = [
    *(commands.Exchange.Declare, commands.Exchange.Bind, commands.Exchange.Unbind, commands.Exchange.Delete),
    *(commands.Queue.Declare, commands.Queue.Declare, commands.Queue.Bind, commands.Queue.Bind, commands.Queue.Unbind),
    *(commands.Queue.Purge, commands.Queue.Delete, commands.Basic.Get, commands.Basic.Get, commands.Basic.Get),
    *(commands.Basic.Nack, commands.Basic.Reject, commands.Basic.Reject, commands.Basic.Ack, commands.Basic.Consume),
    *(commands.Basic.Cancel, commands.Basic.Recover, commands.Basic.Qos, commands.Tx.Select, commands.Tx.Commit),
    *(commands.Tx.Rollback, commands.Confirm.Select),
]


class Actor:
    """One client that reconnects after each close."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.client = self._enter()

    def _enter(self) -> Client:
        client = self._room.enter()
        session: SessionOfConnection = client.session
        assert session.vhost is self._room.vhost
        return client

    def say(self, octets: bytes) -> str:
        """Send frames, and return the broker's close, if there was one."""
        machine = self.client.machine
        machine.feed(octets)
        said = [describe(answer) for _, answer in self.client.replies() if "Close" in answer.name]
        failure = machine.failure
        if isinstance(failure, ProtocolError):
            assert failure.reply_code != 541, "a session raised what nobody expected"
            machine.lost()
            self.client = self._enter()
        elif said:
            machine.feed(frame(1, 1, b"\x00\x14\x00\x29"))
            self.client.open_channel(1)
        return said[0] if said else ""


def check(rng: Random) -> str:
    """Let two clients use a vhost, and return the code of the last close."""
    room = Room()
    actors = [Actor(room), Actor(room)]
    for name in (b"q1", b"q2", b"q3"):
        octets = b"\x00\x32\x00\x0a\x00\x00" + bytes([2]) + name + b"\x00" + counted(mortal(rng))
        if actors[0].say(frame(1, 1, octets)):  # refused arguments: declare it without any
            assert not actors[0].say(frame(1, 1, b"\x00\x32\x00\x0a\x00\x00\x02" + name + bytes(5)))
    for name, kind in ((b"x1", b"topic"), (b"x2", b"headers"), (b"x3", b"x-delayed-message")):
        known = counted(b"\x0ex-delayed-typeS" + counted(b"fanout"))
        octets = b"\x00\x28\x00\x0a\x00\x00" + bytes([2]) + name + bytes([len(kind)]) + kind + b"\x00" + known
        assert not actors[0].say(frame(1, 1, octets))
    for name in (b"q1", b"q2", b"q3"):
        for exchange in (b"amq.fanout", b"x3"):
            octets = b"\x00\x32\x00\x14\x00\x00\x02" + name + bytes([len(exchange)]) + exchange + bytes(6)
            assert not actors[0].say(frame(1, 1, octets))
    outcome = "nothing"
    for _ in range(rng.choice([5, 20, 40])):
        actor = rng.choice(actors)
        said = actor.say(publish(rng) if rng.random() < 0.4 else frame(1, 1, method(rng, rng.choice(METHODS))))
        if said:
            outcome = " ".join(said.split()[:2])
        if rng.random() < 0.3:
            room.clock.now_ms += rng.choice([1, 10, 2000])
            room.deadlines.run(room.clock.now_ms)
    for actor in actors:
        actor.client.machine.lost()
    assert not any(queue.exclusive_owner for queue in room.vhost.queues.values()), (
        "exclusive queues go with their owner"
    )
    return outcome


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    sys.exit(main("vhost", check))
