"""A publish after the detailed check: routed, with its remaining work. It serves messages whose properties require work
by the broker, and routes to queues with rules. A transaction keeps publications until it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from broker.amqp.content_header import MISSING, HeaderFacts, HeaderFields, facts_of
from broker.amqp.errors import ChannelError, ProtocolError
from broker.amqp.header_edit import edit_header
from broker.amqp.header_facts import ProducerMark
from broker.amqp.wire import PROPERTIES_AT
from broker.core.auth.users import User
from broker.core.message.delay import delay_of
from broker.core.message.fields import further_keys
from broker.core.message.message import Envelope
from broker.core.postponed import Postponed
from broker.core.publishing.producers import Producer, Producers
from broker.core.publishing.publish_entry import PublishEntry
from broker.core.publishing.reply_to import DIRECT_REPLY_TO, REPLY_PREFIX, ReplyConsumer, ReplyTarget
from broker.core.publishing.retainer import Retainer
from broker.core.queue.queue import Queue
from broker.core.session.client import SessionClient
from broker.core.vhost import Vhost
from broker.routing.exchange import Exchange

BASIC_PUBLISH: Final = (60, 40)
IMPERSONATOR: Final = "impersonator"  # RabbitMQ's tag of users who may publish in another user's name


def publish_later(
    session: SessionClient, channel: int, producers: Producers, mark: ProducerMark | None, publish: Callable[[], None]
) -> bool:
    """Return False if a publish may use its producer now; otherwise hold the connection, and call `publish` later."""
    assert session.user is not None
    try:
        if mark is not None:
            producers.require(mark.producer, session.user.name)
    except Postponed as postponed:
        session.connection.hold()
        postponed.begin(partial(republish, session, channel, publish, postponed))
        return True
    return False


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

    def take_number(self, producer: Producer, sequence: int, original: bytes) -> None:
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


def look_closely(
    session: SessionClient,
    vhost: Vhost,
    entry: PublishEntry,
    facts: HeaderFacts,
    header: bytes,
    body: bytes,
    replies: ReplyConsumer | None,
) -> Publication:
    """Check the properties of a publish, and return it with the header that consumers will get.

    `replies` is the reply consumer of the publishing channel.
    Raises: ChannelError 403, 406. The order of the checks is RabbitMQ's.
    """
    exchange = entry.exchange
    keys = [entry.envelope.key]
    delay_ms = None
    blind = facts.bcc is not MISSING  # no other broker of the overlay gets the message by such a key
    if facts.special:
        if facts.reply_to == DIRECT_REPLY_TO and replies is None:
            raise ChannelError(406, "fast reply consumer does not exist")
        assert session.user is not None
        check_user_id(session.user, facts.user_id)
        if facts.fault is not None:
            raise ChannelError(406, facts.fault)
        keys = list(dict.fromkeys([*keys, *further_keys(facts)]))
        if exchange.delayed:
            delay_ms = delay_of(facts.delay)
        delivered = _as_delivered(facts, header, replies)
        if delivered is not header:
            header, facts = delivered, facts_of(delivered)
    if exchange.by_topic:
        resource = vhost.exchange_resource(exchange.name)
        for key in keys[1:]:
            session.check_topic(resource, key, "write")
    if delay_ms is not None:
        return Publication(entry, facts, header, body, (), delay_ms=delay_ms)
    answered: list[ReplyTarget] = []
    if exchange.name == "":
        answered = [found for key in keys if (found := vhost.replies.find(key)) is not None]
        keys = [key for key in keys if not key.startswith(REPLY_PREFIX)]
    queues = _route(vhost, entry, keys, header)
    if blind and any(queue.is_overlay for queue in queues):
        shown = _route(vhost, entry, [entry.envelope.key, *further_keys(facts)], header)
        queues = tuple(queue for queue in queues if not queue.is_overlay or queue in shown)
    return Publication(entry, facts, header, body, queues, answered)


def look_at_numbered(
    session: SessionClient,
    vhost: Vhost,
    entry: PublishEntry,
    mark: ProducerMark,
    header: bytes,
    body: bytes,
    replies: ReplyConsumer | None,
) -> Publication:
    """Check a publish that has the number of a producer, and return it without the number in its header.

    Raises: ChannelError 403, 406.
    """
    assert session.user is not None
    sequence = mark.sequence(header)
    producer = vhost.producers.of(mark.producer, session.user.name)
    vhost.producers.check_room(producer, sequence)
    bare = header[:PROPERTIES_AT] + mark.bare
    publication = look_closely(session, vhost, entry, mark.facts, bare, body, replies)
    publication.take_number(producer, sequence, header)
    return publication


def _as_delivered(facts: HeaderFacts, header: bytes, replies: ReplyConsumer | None) -> bytes:
    """Return the header for consumers: with a usable reply name, and without BCC."""
    if replies is not None and facts.reply_to == DIRECT_REPLY_TO:
        header = edit_header(header, set_properties={"reply_to": replies.name})
    if facts.bcc is not MISSING:
        header = edit_header(header, drop_headers=("BCC",))
    return header


def check_user_id(user: User, claimed: str | None) -> None:
    """Check that a publish does not claim another user's name. Raises: ChannelError 406."""
    if claimed is not None and claimed != user.name and IMPERSONATOR not in user.tags:
        raise ChannelError(406, f"user_id property set to '{claimed}' but authenticated user was '{user.name}'")


def _route(vhost: Vhost, entry: PublishEntry, keys: Sequence[str], header: bytes) -> tuple[Queue, ...]:
    """Return the queues that the keys lead to, each once."""
    if not keys:
        return ()
    if len(keys) == 1 and keys[0] == entry.envelope.key and not entry.dynamic:
        return entry.queues
    queues: tuple[Queue, ...] = vhost.router.match(entry.exchange, keys[0], HeaderFields(header), keys[1:])
    if vhost.sweep.pending:
        vhost.sweep.update_rules(queues)
    return queues
