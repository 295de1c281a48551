"""The history of a cluster's clients: what they sent and received, for `analysis` to judge.

Every client thread writes to its own session only, so that recording needs no lock. Units: times are seconds of
`time.monotonic()`.

The time at which a broker sent a delivery is unknown, because bytes wait in the socket until the client reads. So each
delivery has two times: the broker sent it after `since`, when the socket was empty, and before `at`, when the client
had read it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

NEVER: Final = float("inf")
PATTERN_BYTES: Final = 32


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction: it acks deliveries and publishes messages. `committed` is None while unknown."""

    session: Session
    messages: list[Message] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    asked_at: float = NEVER
    committed: bool | None = None
    answered_at: float = NEVER


@dataclass(slots=True, eq=False)
class Message:
    """One publish. `place` counts the messages of its session; `refused` is a basic.nack of the broker."""

    number: int
    session: Session
    place: int
    queues: tuple[str, ...]
    size_bytes: int
    sent_at: float
    transaction: Transaction | None = None
    confirmed_at: float = NEVER
    refused: bool = False

    def body(self) -> bytes:
        """Return the body: the number, and padding that no other message has."""
        head = b"%d " % self.number
        pattern = hashlib.blake2b(head, digest_size=PATTERN_BYTES).digest()
        return head + (pattern * (self.size_bytes // PATTERN_BYTES + 1))[: max(0, self.size_bytes - len(head))]


@dataclass(slots=True, eq=False)
class Delivery:
    """One delivery or basic.get-ok of message `number`, and how its client settled it.

    `settled_at` is when an ack or a reject was sent (in a transaction: its commit), `certain_at` when an answer proved
    that the settlement is committed, `returned_at` when a requeue was sent.
    """

    number: int
    queue: str
    session: Session
    redelivered: bool
    since: float
    at: float
    settled_at: float = NEVER
    certain_at: float = NEVER
    returned_at: float = NEVER
    transaction: Transaction | None = None
    rejected: bool = False
    drained: bool = False


@dataclass(slots=True, eq=False)
class Session:
    """One connection of one client to one node.

    `receipts` are the moments (sent, confirmed) of publishes whose confirm arrived, ascending; `closed_with` is the
    code of the node's connection.close.
    """

    number: int
    client: str
    node: str
    opened_at: float
    messages: list[Message] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    receipts: list[tuple[float, float]] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    closed_with: int | None = None
    ended_at: float = NEVER


class Stop(NamedTuple):
    """A stop of a node by SIGSTOP, from shortly before this signal until shortly before SIGCONT."""

    node: str
    began_at: float
    woken_at: float


class Rewind(NamedTuple):
    """A restore of the database: commits since the copy was made are lost.

    The copy contains what was committed before `began_at`, and nothing that was sent after `copied_at`. Every node has
    joined again by `ended_at`.
    """

    began_at: float
    copied_at: float
    restoring_at: float
    ended_at: float

    def touches(self, since: float, until: float) -> bool:
        """Return whether something that happened between two moments may have been undone."""
        return since <= self.ended_at and until >= self.began_at


class History:
    """Everything that happened in one run. Invariant: a message is recorded before its bytes are sent."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.messages: dict[int, Message] = {}
        self.damaged: list[str] = []
        self.confirms = 0  # progress for waiting threads; concurrent updates may be lost
        self.settlements = 0
        self.changes = 0  # answered changes of definitions
        self._numbers = count(1)
        self._session_numbers = count(1)

    def open(self, client: str, node: str) -> Session:
        """Record a new connection."""
        session = Session(next(self._session_numbers), client, node, time.monotonic())
        self.sessions.append(session)
        return session

    def publish(
        self, session: Session, queues: tuple[str, ...], size_bytes: int, transaction: Transaction | None = None
    ) -> Message:
        """Record a message before it is sent."""
        number, place = next(self._numbers), len(session.messages)
        message = Message(number, session, place, queues, size_bytes, time.monotonic(), transaction)
        self.messages[number] = message
        session.messages.append(message)
        if transaction is not None:
            transaction.messages.append(message)
        return message

    def confirm(self, message: Message, *, refused: bool = False) -> None:
        """Record the broker's answer to a publish. A confirm proves more: see `Session.receipts`."""
        message.confirmed_at = now = time.monotonic()
        message.refused = refused
        self.confirms += 1
        if not refused:
            message.session.receipts.append((message.sent_at, now))

    def deliver(self, session: Session, queue: str, body: bytes, *, redelivered: bool, since: float) -> Delivery:
        """Record a delivery, and check its body."""
        head = body.split(b" ", 1)[0]
        number = int(head) if head.isdigit() else -1
        message = self.messages.get(number)
        if message is not None and message.body() != body:
            self.damaged.append(f"{queue}: message {number}, {len(body)} bytes of {message.size_bytes}")
        delivery = Delivery(number, queue, session, redelivered, since, time.monotonic())
        session.deliveries.append(delivery)
        return delivery

    def deliveries(self) -> Iterator[Delivery]:
        """Yield all deliveries, session by session."""
        for session in [*self.sessions]:  # clients may still add sessions
            yield from [*session.deliveries]

    def transactions(self) -> Iterator[Transaction]:
        """Yield all transactions."""
        for session in [*self.sessions]:
            yield from [*session.transactions]

    def figures(self) -> dict[str, int]:
        """Return the counts for the report of a run."""
        deliveries = list(self.deliveries())
        return {
            "sessions": len(self.sessions),
            "closed by 320": sum(session.closed_with == 320 for session in [*self.sessions]),
            "published": len(self.messages),
            "confirmed": sum(message.confirmed_at < NEVER for message in [*self.messages.values()]),
            "deliveries": len(deliveries),
            "redelivered": sum(delivery.redelivered for delivery in deliveries),
            "certainly settled": sum(delivery.certain_at < NEVER for delivery in deliveries),
            "changes": self.changes,
            "refused": sum(message.refused for message in [*self.messages.values()]),
            "committed": sum(transaction.committed is True for transaction in self.transactions()),
        }
