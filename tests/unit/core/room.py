"""A vhost with a store in memory, and a client that talks to it through a Connection without a socket."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Any, TypeVar, cast

from pamqp import commands

from broker.amqp.codec import Method, content_frames, decode_method, encode_method
from broker.amqp.connection import Connection
from broker.amqp.content_header import facts_of
from broker.amqp.framing import FRAME_METHOD
from broker.amqp.handshake import ConnectionLimits
from broker.core.answers import Answers
from broker.core.auth.logins import Logins
from broker.core.auth.password import SHA256, salted_sha256
from broker.core.auth.peer import Peer
from broker.core.auth.permissions import Permissions
from broker.core.auth.usage import Usage
from broker.core.auth.users import User, Users
from broker.core.deadlines import Clock, Deadlines
from broker.core.message.message import Envelope, Message
from broker.core.publishing.local_store import LocalStore
from broker.core.queue.consumer import Consumer
from broker.core.queue.kinds import kind_of
from broker.core.queue.level import Level
from broker.core.queue.level_owner import QueueWorker
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.session.basic import BasicSession
from broker.core.session.channel import SessionOfChannel
from broker.core.session.connection import SessionOfConnection
from broker.core.topology.changes import Journal
from broker.core.vhost import Vhost
from broker.routing.pattern import PatternLimits
from broker.slots.states import Owner
from broker.store.memory_files import MemoryFiles
from broker.store.record import HEAD, KIND_AT, MARK, PREFIX_BYTES, TRANSACTION, inner_records, is_whole
from broker.store.segment import HEADER_BYTES, OFFSET_BITS
from broker.store.store import VhostStore
from tests.counting_taker import CountingTaker

GUEST = User("guest", "guest", ("administrator",))
Reply = TypeVar("Reply")
FOLDER = Path("/data/vhosts/v")
FRAME_HEAD = Struct(">BHI")
NO_PROPERTIES = b"\x00\x3c" + bytes(12)  # the content header of an empty body


class IdleWorker(QueueWorker[Queue]):
    """A worker that owns leases and delivers nothing."""

    def __init__(self) -> None:
        self.owner = Owner("node", "worker")

    def wake(self, queue: Queue) -> None:
        """Do nothing."""

    def serve(self, queue: Queue) -> None:
        """Deliver nothing."""

    def serve_first(self, queue: Queue) -> int:
        """Deliver nothing."""
        return 0


class IdleCommitter:
    """Records the publishers that wait for a confirm; other answers wait only while it is `slow`."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.slow = False

    def wait(self, publisher: Any) -> None:
        if isinstance(publisher, Answers) and not self.slow:
            confirm(publisher)
        else:
            self.waiting.append(publisher)

    def sync(self) -> None:
        """Confirm the waiting publishers."""
        waiting, self.waiting = self.waiting, []
        for publisher in waiting:
            confirm(publisher)


def confirm(publisher: Any) -> None:
    """Confirm all messages of a publisher."""
    publisher.waiting = False
    publisher.confirm(publisher.published)


class Room:
    """A vhost, the changes it recorded, and the queues that were assigned to a worker or retired."""

    def __init__(
        self, name: str = "/", pattern_limits: PatternLimits | None = None, journal: Journal | None = None
    ) -> None:
        """Record changes in the attribute `journal`, or pass them to another Journal."""
        self.journal: list[dict[str, Any]] = []
        self.retired: list[str] = []
        self.files = MemoryFiles()
        self.store, _ = VhostStore.open(self.files, FOLDER, segment_bytes=1 << 31, sync=True)
        names = (f"{number:022}" for number in count(1))
        worker = IdleWorker()
        self.assigned: list[int] = []

        def assign(queue: Queue) -> IdleWorker:
            self.assigned.append(queue.number)
            return worker

        self.clock = Clock()
        self.deadlines = Deadlines(self.clock)
        ports = QueuePorts[Level, Queue](
            store=self.store,
            assign=assign,
            retire=lambda queue: self.retired.append(queue.name),
            opened=lambda _queue, _slot: None,
            read=lambda _stream, _slot, _then: None,
            moments=lambda _stream, _slot, _then: None,
            fetch=lambda _stream, _wanted, _then: None,
            measure=lambda _stream, _slot: None,
            deadlines=self.deadlines,
            kind_of=kind_of,
            level_of=Level,
        )
        self.committer = IdleCommitter()
        self.vhost = Vhost(
            name,
            ports=ports,
            share=lambda _session: None,
            committer=self.committer,
            journal_of=lambda record: journal or Journal(record),
            record=self.journal.append,
            store_of=lambda _: LocalStore(self.store.recorder),
            generate=lambda: next(names),
            pattern_limits=pattern_limits,
        )

    def turn(self, ms: int = 0) -> None:
        """Advance the clock, and run the deadlines of one turn of the event loop."""
        self.clock.now_ms += ms
        self.deadlines.begin_turn()
        self.deadlines.run(self.clock.now_ms)

    def groups(self) -> list[list[bytes]]:
        """Write the pending records and return every record in the log's file, in order.

        Shapes: one list per transaction and one per standalone record; marks are left out.
        """
        log = self.store.log
        batch = log.take()
        if batch is not None:
            log.write(batch)
            log.complete(batch)
        ((segment, size),) = log.segments.items()
        block = log.read_span(segment << OFFSET_BITS, size)
        found: list[list[bytes]] = []
        at = HEADER_BYTES
        while at < size:
            end = at + PREFIX_BYTES + HEAD.unpack_from(block, at)[0]
            record = block[at:end]
            assert is_whole(record)
            if record[KIND_AT] == TRANSACTION:
                found.append([inner for _, inner in inner_records(record)])
            elif record[KIND_AT] != MARK:
                found.append([record])
            at = end
        return found

    def records(self) -> list[bytes]:
        """Write the pending records and return every record in the log's file, in order."""
        return [record for group in self.groups() for record in group]

    def enter(self, user: User = GUEST, peer_address: str = "127.0.0.1") -> Client:
        """Return a client with its own connection and channel 1 open."""
        client = self.knock(peer_address)
        client.log_in(user.name, user.password)
        client.open(self.vhost.name)
        return client

    def enter_without_rights(self) -> Client:
        """Return a client of the stored user bob, who may open the vhost and nothing else."""
        client = self.knock()
        client.users.put(User("bob", "", (), salted_sha256(b"secret", b"salt"), SHA256))
        client.permissions.set("bob", self.vhost.name, "", "", "")
        client.log_in("bob", "secret")
        client.open(self.vhost.name)
        return client

    def confirming(self) -> Client:
        """Return a client in confirm mode."""
        client = self.enter()
        client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        return client

    def knock(self, peer_address: str = "127.0.0.1") -> Client:
        """Return a client that has sent only the protocol header."""
        users = Users([GUEST, User("alice", "secret")])
        return Client(self, users, Permissions(users), peer_address)


class Client:
    """An AMQP client of a Connection in memory."""

    def __init__(self, room: Room, users: Users, permissions: Permissions, peer_address: str) -> None:
        self.users = users
        self.permissions = permissions
        self.sessions: list[SessionOfConnection] = []
        usage = Usage(users)

        def enter(connection: Connection) -> SessionOfConnection:
            session = SessionOfConnection(
                connection,
                logins=Logins(users),
                permissions=permissions,
                usage=usage,
                vhosts={room.vhost.name: room.vhost},
                peer=Peer(peer_address),
            )
            self.sessions.append(session)
            return session

        self.taker = CountingTaker()
        self.machine = Connection(enter, ConnectionLimits(), {}, self.taker)
        self.machine.feed(b"AMQP\x00\x00\x09\x01")
        list(self.replies())

    @property
    def session(self) -> SessionOfConnection:
        """The broker's side of this connection."""
        return self.sessions[0]

    def log_in(self, name: str, password: str) -> None:
        """Log in and accept the proposed limits."""
        self.start(b"\0" + name.encode() + b"\0" + password.encode())
        self.tell(0, commands.Connection.TuneOk(2047, 131072, 0))

    def start(self, response: bytes, mechanism: str = "PLAIN") -> list[tuple[int, Method]]:
        """Send start-ok and return the broker's answer."""
        properties: dict[str, Any] = {
            "capabilities": {"authentication_failure_close": True, "consumer_cancel_notify": True}
        }
        start_ok = commands.Connection.StartOk(properties, mechanism, response.decode(), "en_US")
        return self.tell(0, start_ok)

    def open(self, vhost: str) -> None:
        """Open a vhost and channel 1."""
        self.call(0, commands.Connection.Open(vhost), commands.Connection.OpenOk)
        self.open_channel(1)

    def open_channel(self, number: int) -> None:
        """Open a channel."""
        self.call(number, commands.Channel.Open(), commands.Channel.OpenOk)

    def reopen_channel(self) -> None:
        """Answer the close of channel 1 and open it again."""
        self.tell(1, commands.Channel.CloseOk())
        self.open_channel(1)

    def tell(self, channel: int, method: Method) -> list[tuple[int, Method]]:
        """Send a method and return every answering method with its channel."""
        self.machine.feed(encode_method(channel, method))
        return list(self.replies())

    def call(self, channel: int, method: Method, reply: type[Reply]) -> Reply:
        """Send a method and return its only answer, which must be of this type."""
        ((at, answer),) = self.tell(channel, method)
        assert at == channel, f"answered on channel {at}"
        assert isinstance(answer, reply), f"{method.name} was answered with {describe(answer)}"
        return answer

    def refused(self, method: Method, channel: int = 1) -> str:
        """Send a method that the broker answers with a close; return the close as text (see `describe`)."""
        ((at, answer),) = self.tell(channel, method)
        assert isinstance(answer, commands.Channel.Close | commands.Connection.Close), describe(answer)
        assert [answer.class_id, answer.method_id] == [method.index >> 16, method.index & 0xFFFF]
        assert at == (channel if isinstance(answer, commands.Channel.Close) else 0)
        return describe(answer)

    def publish(self, exchange: str, key: str, body: bytes = b"", channel: int = 1) -> list[str]:
        """Publish a message and return the answers as text."""
        header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x00\x00"
        frames = encode_method(channel, commands.Basic.Publish(exchange=exchange, routing_key=key))
        self.machine.feed(b"".join((frames, *content_frames(channel, header, body, 0))))
        return [describe(method) for _, method in self.replies()]

    def basic(self, channel: int = 1) -> BasicSession:
        """Return the broker's BasicSession of a channel."""
        return cast("SessionOfChannel", self.machine.channels[channel].session).basic

    def consumer(
        self,
        queue: Queue,
        tag: str = "tag",
        channel: int = 1,
        *,
        prefetch: int = 0,
        priority: int = 0,
        no_ack: bool = False,
    ) -> Consumer:
        """Return a consumer that is not added to its queue."""
        session = self.basic(channel)
        return Consumer(
            tag, queue, session, no_ack=no_ack, exclusive=False, arguments={}, prefetch=prefetch, priority=priority
        )

    def consume(self, queue: str) -> Consumer:
        """Start a consumer on channel 1, and return the broker's Consumer."""
        tag = self.call(1, commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk).consumer_tag
        assert tag is not None
        return self.basic().consumers[tag]

    def replies(self) -> Iterator[tuple[int, Method]]:
        """Return the methods in the output."""
        octets, at = b"".join(self.machine.take_output()), 0
        while at < len(octets):
            kind, channel, size = FRAME_HEAD.unpack_from(octets, at)
            if kind == FRAME_METHOD:
                yield channel, decode_method(octets[at + 7 : at + 7 + size])
            at += 8 + size

    def leave(self) -> None:
        """Close the connection cleanly."""
        self.call(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)


def describe(method: Method) -> str:
    """Return a close as `channel 404 text` or `connection 504 text`, any other method as its name."""
    if isinstance(method, commands.Channel.Close | commands.Connection.Close):
        return f"{method.name.partition('.')[0].lower()} {method.reply_code} {method.reply_text}"
    return method.name


def put(queue: Queue, number: int = 1) -> None:
    """Append transient messages to a queue."""
    for _ in range(number):
        queue.level.append([Message(Envelope("", queue.name), NO_PROPERTIES, b"", 1, facts_of(NO_PROPERTIES), 0)])


def messages(queue: Queue) -> list[Message]:
    """Return the unsettled messages of a queue, which must be in memory."""
    return [message for slot in queue.level.manager.slots.values() for message in slot.contents or () if message]
