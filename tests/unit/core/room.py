"""A vhost with nothing around it, and a client that talks to its sessions through the pure connection machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from struct import Struct
from types import SimpleNamespace
from typing import Any, TypeVar

from pamqp import commands

from broker.amqp.codec import Method, content_frames, decode_method, encode_method
from broker.amqp.connection import Connection, ConnectionLimits
from broker.amqp.content_header import facts_of
from broker.amqp.framing import FRAME_METHOD
from broker.core.auth.logins import Logins
from broker.core.auth.peer import Peer
from broker.core.auth.permissions import Permissions
from broker.core.auth.users import User, Users
from broker.core.deadlines import Deadlines
from broker.core.message import Envelope, Message
from broker.core.queue import Queue, QueuePorts
from broker.core.session.connection import SessionOfConnection
from broker.core.vhost import Vhost
from broker.routing.pattern import PatternLimits
from broker.slots.slot import Owner

GUEST = User("guest", "guest", ("administrator",))
Reply = TypeVar("Reply")
FRAME_HEAD = Struct(">BHI")
NO_PROPERTIES = b"\x00\x3c" + bytes(12)  # a content header of an empty body


class RecordingLog:
    """Keeps the records that would go to disk."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.groups: list[list[bytes]] = []
        self.position = 0
        self.synced = 0

    def append(self, record: bytes) -> int:
        self.records.append(record)
        self.position = len(self.records)
        return self.position - 1

    @contextmanager
    def group(self) -> Iterator[None]:
        """Notes which records were appended inside."""
        begin = len(self.records)
        yield
        self.groups.append(self.records[begin:])


class RecordingStore:
    """Keeps what the queues would write, and which queues it was told to forget."""

    def __init__(self) -> None:
        self.log = RecordingLog()
        self.forgotten: list[int] = []

    def forget_queue(self, number: int, *, at_once: bool) -> None:
        self.forgotten.append(number)

    def drop_entries(self, number: int, first: int, end: int, *, at_once: bool) -> None:
        """Has no entries to drop."""

    def add_live(self, segment: int, number: int) -> None:
        """Counts nothing."""

    def drop_live(self, segment: int, number: int) -> None:
        """Counts nothing."""


class IdleWorker:
    """Owns leases and delivers nothing."""

    owner = Owner("node", "worker")

    def wake(self, queue: Queue) -> None:
        """Sleeps on."""

    def serve(self, queue: Queue) -> None:
        """Delivers nothing."""


class IdleCommitter:
    """Remembers who waits for a confirm."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def wait(self, publisher: Any) -> None:
        self.waiting.append(publisher)


class Room:
    """One vhost, the changes it journalled, and the queues that were given a worker and that lost it."""

    def __init__(self, name: str = "/", pattern_limits: PatternLimits | None = None) -> None:
        self.journal: list[dict[str, Any]] = []
        self.retired: list[str] = []
        self.store = RecordingStore()
        store: Any = self.store
        names = (f"{number:022}" for number in count(1))
        worker = IdleWorker()
        self.assigned: list[int] = []

        def assign(queue: Queue) -> IdleWorker:
            self.assigned.append(queue.number)
            return worker

        self.clock = SimpleNamespace(now_ms=0)
        self.deadlines = Deadlines()
        ports = QueuePorts(
            store=store,
            assign=assign,
            retire=lambda queue: self.retired.append(queue.name),
            kept=lambda _queue, _slot: None,
            clock=self.clock,
            read=lambda _stream, _slot, _then: None,
            measure=lambda _stream, _slot: None,
            deadlines=self.deadlines,
            bury=self._bury,
            unused=self._unused,
        )
        self.committer = IdleCommitter()
        self.vhost = Vhost(
            name,
            ports=ports,
            committer=self.committer,
            journal=self.journal.append,
            generate=lambda: next(names),
            pattern_limits=pattern_limits,
        )

    def _bury(self, queue: Queue, message: Message, reason: str) -> None:
        self.vhost.dead_letters.bury(queue, message, reason)

    def _unused(self, queue: Queue) -> None:
        self.vhost.queue_unused(queue)

    def enter(self, user: User = GUEST, peer_address: str = "127.0.0.1") -> Client:
        """Returns a client of its own connection with channel 1 open."""
        client = self.knock(peer_address)
        client.log_in(user.name, user.password)
        client.call(0, commands.Connection.Open(self.vhost.name), commands.Connection.OpenOk)
        client.open_channel(1)
        return client

    def knock(self, peer_address: str = "127.0.0.1") -> Client:
        """Returns a client that said hello and nothing else."""
        users = Users([GUEST, User("alice", "secret")])
        return Client(self, users, Permissions(users), peer_address)


class Client:
    """Speaks AMQP to a connection machine, in memory."""

    def __init__(self, room: Room, users: Users, permissions: Permissions, peer_address: str) -> None:
        self.users = users
        self.permissions = permissions
        self.sessions: list[SessionOfConnection] = []

        def enter(connection: Connection) -> SessionOfConnection:
            session = SessionOfConnection(
                connection,
                logins=Logins(users),
                permissions=permissions,
                vhosts={room.vhost.name: room.vhost},
                peer=Peer(peer_address),
            )
            self.sessions.append(session)
            return session

        self.machine = Connection(enter, ConnectionLimits(), {}, lambda _connection: None)
        self.machine.feed(b"AMQP\x00\x00\x09\x01")
        list(self.replies())

    @property
    def session(self) -> SessionOfConnection:
        """The broker's side of this connection."""
        return self.sessions[0]

    def log_in(self, name: str, password: str) -> None:
        """Says who it is, and agrees to all limits."""
        self.start(b"\0" + name.encode() + b"\0" + password.encode())
        self.tell(0, commands.Connection.TuneOk(2047, 131072, 0))

    def start(self, response: bytes, mechanism: str = "PLAIN") -> list[tuple[int, Method]]:
        """Answers the login question and returns what the broker says to that."""
        properties: dict[str, Any] = {
            "capabilities": {"authentication_failure_close": True, "consumer_cancel_notify": True}
        }
        start_ok = commands.Connection.StartOk(properties, mechanism, response.decode(), "en_US")
        return self.tell(0, start_ok)

    def open_channel(self, number: int) -> None:
        """Opens a channel."""
        self.call(number, commands.Channel.Open(), commands.Channel.OpenOk)

    def tell(self, channel: int, method: Method) -> list[tuple[int, Method]]:
        """Sends a method and returns every method that comes back with its channel."""
        self.machine.feed(encode_method(channel, method))
        return list(self.replies())

    def call(self, channel: int, method: Method, reply: type[Reply]) -> Reply:
        """Sends a method and returns the one method that answers it, which has to be of that type."""
        ((at, answer),) = self.tell(channel, method)
        assert at == channel, f"answered on channel {at}"
        assert isinstance(answer, reply), f"{method.name} was answered with {describe(answer)}"
        return answer

    def refused(self, method: Method, channel: int = 1) -> str:
        """Sends a method and returns the close that answers it as `level: text`, level being channel or connection."""
        ((at, answer),) = self.tell(channel, method)
        assert isinstance(answer, commands.Channel.Close | commands.Connection.Close), describe(answer)
        assert [answer.class_id, answer.method_id] == [method.index >> 16, method.index & 0xFFFF]
        assert at == (channel if isinstance(answer, commands.Channel.Close) else 0)
        return describe(answer)

    def publish(self, exchange: str, key: str, body: bytes = b"", channel: int = 1) -> list[str]:
        """Publishes a message and returns what comes back, as text."""
        header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x00\x00"
        frames = encode_method(channel, commands.Basic.Publish(exchange=exchange, routing_key=key))
        self.machine.feed(frames + content_frames(channel, header, body, 0))
        return [describe(method) for _, method in self.replies()]

    def replies(self) -> Iterator[tuple[int, Method]]:
        """Returns the methods in the output."""
        octets, at = self.machine.take_output(), 0
        while at < len(octets):
            kind, channel, size = FRAME_HEAD.unpack_from(octets, at)
            if kind == FRAME_METHOD:
                yield channel, decode_method(octets[at + 7 : at + 7 + size])
            at += 8 + size

    def leave(self) -> None:
        """Closes the connection in order."""
        self.call(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)


def describe(method: Method) -> str:
    """Returns a close as `level code text`, anything else by its name."""
    if isinstance(method, commands.Channel.Close | commands.Connection.Close):
        return f"{method.name.partition('.')[0].lower()} {method.reply_code} {method.reply_text}"
    return method.name


def put(queue: Queue, number: int = 1) -> None:
    """Has a queue accept transient messages."""
    for _ in range(number):
        queue.stream.accept(Message(Envelope("", queue.name), NO_PROPERTIES, b"", 1, facts_of(NO_PROPERTIES), 0))


class IdleConsumer:
    """Takes nothing and remembers that it was cancelled."""

    exclusive = False
    priority = 0
    parked = False

    def __init__(self) -> None:
        self.cancelled = False

    def room(self) -> int:
        return 0

    def cancelled_by_broker(self) -> None:
        self.cancelled = True


def consume(queue: Queue) -> IdleConsumer:
    """Gives a queue a consumer that takes nothing."""
    idle = IdleConsumer()
    consumer: Any = idle
    queue.add_consumer(consumer)
    return idle
