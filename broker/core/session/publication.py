"""A publish that was checked and routed on the slow path, and what remains to be done for it. A transaction stores
publications until it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from broker.amqp.errors import ChannelError, ProtocolError
from broker.amqp.header_edit import edit_header
from broker.amqp.header_facts import MISSING, HeaderFacts
from broker.core.auth.users import User
from broker.core.message.message import Envelope
from broker.core.postponed import Postponed
from broker.core.publishing.producers import Producer, Producers
from broker.core.publishing.publish_entry import PublishEntry
from broker.core.publishing.reply_to import DIRECT_REPLY_TO, ReplyConsumer, ReplyTarget
from broker.core.publishing.retainer import Retainer
from broker.core.queue.queue import Queue
from broker.core.session.client import SessionClient
from broker.routing.exchange import Exchange

BASIC_PUBLISH: Final = (60, 40)
IMPERSONATOR: Final = "impersonator"  # RabbitMQ's tag of users who may publish in another user's name


def republish(
    session: SessionClient, channel: int, publish: Callable[[], None], postponed: Postponed | None = None
) -> None:
    """Resume a connection that was held for a publish, and publish the message."""
    connection = session.connection
    connection.release()
    try:
        if postponed is not None:
            postponed.check()
        publish()
    except ProtocolError as error:
        error.blame(*BASIC_PUBLISH)
        connection.fail(error, channel)


class Publication:
    """One checked and routed publish.

    Units: `delay_ms` is None unless the exchange delays the message.
    Shapes: `sequence` is the number that `producer` gave the message; `producer` is None if the message has no number.
        `original` is the header, including the number, with which an unroutable message is returned.
    """

    __slots__ = ("body", "delay_ms", "envelope", "exchange", "facts", "header", "mandatory", "original", "producer",
                 "queues", "replies", "retainer", "sequence")  # fmt: skip

    def __init__(
        self,
        entry: PublishEntry,
        facts: HeaderFacts,
        header: bytes,
        body: bytes,
        queues: Sequence[Queue],
        replies: Sequence[ReplyTarget] = (),
        delay_ms: int | None = None,
    ) -> None:
        self.envelope: Envelope = entry.envelope
        self.exchange: Exchange = entry.exchange
        self.mandatory = entry.mandatory
        self.facts = facts
        self.header = self.original = header
        self.body = body
        self.queues = queues
        self.replies = replies
        self.delay_ms = delay_ms
        self.producer: Producer | None = None
        self.sequence = 0
        self.retainer: Retainer | None = None  # set if the message is to be retained

    @property
    def used(self) -> bool:
        """Whether an earlier publish has used the number."""
        return self.producer is not None and self.sequence in self.producer.sequences

    def set_number(self, producer: Producer, sequence: int, original: bytes) -> None:
        """Set the producer and the number of the message, and the header with the number."""
        self.producer, self.sequence, self.original = producer, sequence, original

    def retain_with(self, retainer: Retainer) -> None:
        self.retainer = retainer

    def renew(self, producers: Producers) -> None:
        """Claim the producer again if it was forgotten. Raises: Postponed, in a cluster; ChannelError."""
        producer = self.producer
        if producer is not None and producer.forgotten:
            producers.require(producer.name, producer.owner)
            self.producer = producers.of(producer.name, producer.owner)

    def use_number(self, now_ms: int) -> bytes:
        """Mark the number as used, and return the octets that record it; empty without a number or a known producer."""
        if self.producer is None or self.producer.forgotten:
            return b""
        self.producer.sequences.add(self.sequence, now_ms)
        return self.producer.target(self.sequence)


def check_user_id(user: User, claimed: str | None) -> None:
    """Check that a publish does not claim another user's name. Raises: ChannelError 406."""
    if claimed is not None and claimed != user.name and IMPERSONATOR not in user.tags:
        raise ChannelError(406, f"user_id property set to '{claimed}' but authenticated user was '{user.name}'")


def as_delivered(facts: HeaderFacts, header: bytes, replies: ReplyConsumer | None) -> bytes:
    """Return the header for consumers: with the unique name of the reply consumer, and without BCC."""
    if replies is not None and facts.reply_to == DIRECT_REPLY_TO:
        header = edit_header(header, set_properties={"reply_to": replies.name})
    if facts.bcc is not MISSING:
        header = edit_header(header, drop_headers=("BCC",))
    return header
