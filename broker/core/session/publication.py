"""A publish after the detailed check: routed, with its remaining work. It serves messages whose properties require work
by the broker, and routes to queues with rules. A transaction keeps publications until it is committed.
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
    """Publish a message that waited while the connection was held; no frame is being processed."""
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

    Units: ``delay_ms`` is None unless its exchange delays it. Shapes: ``producer`` numbered it ``sequence``, if it has
        a number; ``original`` is its header with the number, which is returned to the publisher if the message is
        unroutable.
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
        self.retainer: Retainer | None = None  # retains the message, if it is to be retained

    @property
    def used(self) -> bool:
        """Whether its number was used by an earlier publish."""
        return self.producer is not None and self.sequence in self.producer.sequences

    def set_number(self, producer: Producer, sequence: int, original: bytes) -> None:
        """Set the number that a producer gave the publish, and the header with it."""
        self.producer, self.sequence, self.original = producer, sequence, original

    def retain_with(self, retainer: Retainer) -> None:
        """Set the store that retains the message, in addition to the queues."""
        self.retainer = retainer

    def renew(self, producers: Producers) -> None:
        """Claim its producer again, if this broker has released it meanwhile. Raises: Postponed."""
        producer = self.producer
        if producer is not None and producer.forgotten:
            producers.require(producer.name, producer.owner)
            self.producer = producers.of(producer.name, producer.owner)

    def use_number(self, now_ms: int) -> bytes:
        """Mark its number, if any, as used, and return the targets that this adds to the record."""
        if self.producer is None or self.producer.forgotten:
            return b""
        self.producer.sequences.add(self.sequence, now_ms)
        return self.producer.target(self.sequence)


def check_user_id(user: User, claimed: str | None) -> None:
    """Check that a publish does not claim another user's name. Raises: ChannelError 406."""
    if claimed is not None and claimed != user.name and IMPERSONATOR not in user.tags:
        raise ChannelError(406, f"user_id property set to '{claimed}' but authenticated user was '{user.name}'")


def as_delivered(facts: HeaderFacts, header: bytes, replies: ReplyConsumer | None) -> bytes:
    """Return the header for consumers: with a usable reply name, and without BCC."""
    if replies is not None and facts.reply_to == DIRECT_REPLY_TO:
        header = edit_header(header, set_properties={"reply_to": replies.name})
    if facts.bcc is not MISSING:
        header = edit_header(header, drop_headers=("BCC",))
    return header
