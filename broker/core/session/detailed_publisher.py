"""The slow path of publishing on one channel: messages, routes and queues that need more than a cached route."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from broker.amqp.channel import Channel
from broker.amqp.content_header import HeaderFields, facts_of
from broker.amqp.errors import ChannelError
from broker.amqp.header_facts import MISSING, HeaderFacts, ProducerMark
from broker.amqp.lenient_methods import BasicReturn
from broker.amqp.wire import PROPERTIES_AT
from broker.core.firehose import origin_of
from broker.core.message.delay import delay_of
from broker.core.message.message import OVERHEAD_BYTES, Message, further_keys, new_message
from broker.core.postponed import Postponed
from broker.core.publishing.message_store import MessageStore
from broker.core.publishing.posting import all_admit
from broker.core.publishing.producers import Producer
from broker.core.publishing.publish_entry import PublishEntry, reach_of
from broker.core.publishing.reply_to import DIRECT_REPLY_TO, REPLY_PREFIX, ReplyConsumer, ReplyTarget
from broker.core.publishing.retainer import check_retained
from broker.core.publishing.sequences import BLOCK_SHIFT
from broker.core.queue.queue import Queue
from broker.core.queue.rules import REJECT_PUBLISH
from broker.core.session.channel_confirms import QUEUE_FULL, ChannelConfirms
from broker.core.session.class_session import ClassSession
from broker.core.session.client import SessionClient
from broker.core.session.publication import Publication, as_delivered, check_user_id, republish
from broker.core.statistics.publish_tally import ChannelPublishes
from broker.core.statistics.vhost_tally import AMQP
from broker.core.vhost import Vhost
from broker.event_log import get_logger
from broker.store.record import TARGET

_log = get_logger()

pack_target: Final = TARGET.pack


class DetailedPublisher(ClassSession):
    """Publish the messages of one channel that its publisher cannot include in a run.

    Shapes: `replies` is the channel's consumer of direct replies, or None if it has none.
    """

    def __init__(
        self, channel: Channel, session: SessionClient, vhost: Vhost, confirms: ChannelConfirms, tally: ChannelPublishes
    ) -> None:
        super().__init__(channel, session, vhost)
        self._share = session.publish_share
        self._clock = vhost.ports.clock
        self._deadlines = vhost.ports.deadlines
        self._store: MessageStore = vhost.store
        self._confirms = confirms
        self._tally = tally
        self._user_name = session.known_user.name
        self._producers = vhost.producers
        self._producer: Producer | None = None  # the producer of the last numbered publish
        self.replies: ReplyConsumer | None = None

    def set_reply_consumer(self, consumer: ReplyConsumer | None) -> None:
        self.replies = consumer

    def is_producer_ready(self, mark: ProducerMark | None) -> bool:
        """Return whether a publish with this mark can proceed without a call of `await_producer`."""
        producer = self._producer
        return mark is None or (producer is not None and not producer.forgotten and producer.name == mark.producer)

    def await_producer(self, publish: Callable[[], None]) -> bool:
        """Return whether the current publish has to wait until this node of a cluster has the producer. If so, hold the
        connection, and call `publish` once the node has it.
        """
        mark = self._channel.facts.mark
        try:
            if mark is not None:
                self._producers.require(mark.producer, self._user_name)
        except Postponed as postponed:
            self._session.connection.hold()
            postponed.begin(partial(republish, self._session, self._channel.number, publish, postponed))
            return True
        return False

    def publish(self, entry: PublishEntry, header: bytes, body: bytes) -> None:
        """Publish one message whose route is resolved. Raises: ChannelError 403, 406."""
        facts = self._channel.facts
        mark = facts.mark
        self._confirms.published_one(body)
        if mark is None or not mark.plain or not entry.straight:
            if not entry.nowhere or facts.special:
                begun = self._vhost.wide.begun
                self.send(self._examine(entry, header, body))
                if self._vhost.wide.begun != begun:
                    self._confirms.wait_for_queues()
                if self._deadlines.units_left <= 0:  # wait until the queues are within their limits
                    connection = self._session.connection
                    connection.hold()
                    self._deadlines.next_turn(("held", connection), connection.release)
            else:
                self._tally.reached(entry.tally, 0, dropped=True)
                self._confirms.note_unrouted()
        elif number := self._use_number(mark, header):
            if entry.strict and mark.facts.priority >= 0:
                entry = entry.at_priority(mark.facts.priority)
            self._publish_numbered(entry, header[:PROPERTIES_AT] + mark.bare, body, mark.facts, number)

    # -- numbered publishes -------------------------------------------------------------------------------------------

    def _publish_numbered(
        self, entry: PublishEntry, header: bytes, body: bytes, facts: HeaderFacts, number: bytes
    ) -> None:
        """Publish a numbered message to plain queues, after its number was checked."""
        charge = OVERHEAD_BYTES + (len(header) + len(body)) // len(entry.levels)
        message = Message(entry.envelope, header, body, charge, facts, self._clock.now_ms)
        lagged = self._share.credit.lagged
        left = self._share.begin() - len(entry.levels)
        store = self._store
        if self._confirms.confirming:
            store.note_origin((self._confirms, self._confirms.published))
        store.accept([message], [entry], [1], number)
        store.note_origin(None)
        self._share.end(left, lagged)
        self._tally.reached(entry.tally, entry.reach)
        if entry.durable if facts.persistent else entry.persisting:
            self._confirms.wait_for_disk()

    def _use_number(self, mark: ProducerMark, header: bytes) -> bytes:
        """Mark the number of a publish as used, and return the octets that record it; empty for a duplicate. HOT.

        A duplicate is confirmed no earlier than its original. Raises: ChannelError 403, 406.
        """
        sequence: int = mark.unpack(header, mark.sequence_at)[0]
        if sequence < 0:
            mark.sequence(header)  # raises the error
        producer = self._producer
        if producer is None or producer.forgotten or producer.name != mark.producer:
            producer = self._producer = self._producers.of(mark.producer, self._user_name)
        sequences = producer.sequences
        if sequence >> BLOCK_SHIFT != sequences.index:
            self._producers.check_room(producer, sequence)
        if sequences.add(sequence, self._clock.now_ms):
            return pack_target(producer.mark, sequence)
        self._wait_for_original(producer, sequence)
        return b""

    def _wait_for_original(self, producer: Producer, sequence: int) -> None:
        confirms, store = self._confirms, self._store
        if store.needs_sync:
            confirms.wait_for_disk()
        if confirms.confirming:
            store.used_before(producer.mark, sequence, confirms)
        confirms.drop_last()

    # -- the detailed check -------------------------------------------------------------------------------------------

    def examine(self, entry: PublishEntry, header: bytes, body: bytes) -> Publication:
        """Check a publish now, and return it for a later `send`. Raises: as `publish`."""
        self._tally.published(body, self._confirms.confirming)
        return self._examine(entry, header, body)

    def send(self, publication: Publication, *, admitted: bool = False) -> None:
        """Perform a publication, or refuse it if there is no room for the message.

        With `admitted`, queues are not checked for room. A mandatory message without a queue is returned before its
        confirm, as in RabbitMQ. A numbered message enters all its queues or none, so that it can be sent again; if its
        number was already used, it is dropped.
        """
        if publication.used:
            assert publication.producer is not None
            self._wait_for_original(publication.producer, publication.sequence)
            return
        header, body, envelope = publication.header, publication.body, publication.envelope
        if publication.retainer is not None and (lack := self._lack_of_room(publication)):
            self.refuse_last(lack)
            return
        queues = [queue for queue in publication.queues if not queue.deleted]
        message = new_message(envelope, header, body, publication.facts, self._clock.now_ms, len(queues))
        lagged = self._share.credit.lagged
        left = self._share.begin() - len(queues)
        reach = reach_of(queues)
        nowhere = publication.delay_ms is None and not publication.replies and not reach
        number = b""
        if publication.producer is not None and not (nowhere and (publication.mandatory or not queues)):
            if not admitted and not all_admit(message, queues):
                self.refuse_last()
                return
            admitted = True
            number = publication.use_number(message.timestamp_ms)
        self._tally.reached(publication.exchange.tally, reach, dropped=nowhere and not publication.mandatory)
        progress = self._store.progress
        if publication.delay_ms is not None:
            self._vhost.delays.hold(publication.exchange, message, publication.delay_ms, number)
        else:
            if queues and not self._post(message, queues, number, admitted=admitted):
                self.refuse_last(kept=all(queue.rules.overflow != REJECT_PUBLISH for queue in queues))
            if nowhere and publication.mandatory:
                returned = BasicReturn(312, "NO_ROUTE", envelope.exchange, envelope.key)
                self._channel.send_return(returned, publication.original, body)
                self._tally.returned()
            elif nowhere:
                self._confirms.note_unrouted()
        if publication.retainer is not None:
            publication.retainer.retain(envelope.key, header, body)
        for replies in publication.replies:
            replies.deliver(envelope, header, body)
        self._share.end(left, lagged)
        if self._store.progress != progress:  # the confirm also waits for a delayed message or a dead letter
            self._confirms.wait_for_disk()

    def _check_retained(self, publication: Publication, asked: Any) -> None:
        """Check that a message can be retained, if its header requests that. A user property with the name of that
        header, from an MQTT client, is ignored. Raises: ChannelError 406.
        """
        if asked is not True and self._session.connection.protocol != AMQP:
            return
        retainer = self._vhost.retainer
        if retainer is not None and check_retained(retainer, publication.envelope, asked):
            publication.retain_with(retainer)
            if not self._confirms.confirming and (lack := self._lack_of_room(publication)):
                raise ChannelError(406, f"x-mqtt-retain: {lack}")

    def _lack_of_room(self, publication: Publication) -> str:
        retainer = publication.retainer
        assert retainer is not None
        return retainer.lack_of_room(publication.envelope.key, len(publication.header), len(publication.body))

    def refuse_last(self, reason: str = QUEUE_FULL, *, kept: bool = False) -> None:
        """Answer the last publish with a nack. Without confirms, count it as lost, and log it if it is the first
        lost message of the connection, unless it is `kept` as a dead letter.
        """
        if self._confirms.confirming:
            self._confirms.refuse(self._confirms.published, reason)
        elif not kept:
            self._tally.lose()
            name, given = self._session.name, self._session.connection.client_properties.get("connection_name")
            if self._vhost.tally.lost.count(name, self._user_name, given if isinstance(given, str) else None):
                _log.warning("publish.lost", vhost=self._vhost.name, conn=name, user=self._user_name)

    def _post(self, message: Message, queues: list[Queue], number: bytes, *, admitted: bool) -> bool:
        """Post a message, and return whether no queue refused it; a shared store may still refuse it later."""
        post = self._vhost.poster.post
        if not self._confirms.confirming:
            return post(message, queues, admitted=admitted, number=number)
        store = self._store
        store.note_origin((self._confirms, self._confirms.published))
        try:
            return post(message, queues, admitted=admitted, number=number)
        finally:
            store.note_origin(None)

    def _examine(self, entry: PublishEntry, header: bytes, body: bytes) -> Publication:
        facts = self._channel.facts
        mark = facts.mark
        if mark is None:
            publication = self._check(entry, facts, header, body)
        else:
            facts = mark.facts
            publication = self._check_numbered(entry, mark, header, body)
        if facts.retain is not MISSING:
            self._check_retained(publication, facts.retain)
        if self._vhost.firehose.active:
            content = (facts, publication.header, publication.body)
            envelope, queues = publication.envelope, publication.queues
            self._vhost.firehose.published(origin_of(self._session, self._channel.number), envelope, content, queues)
        return publication

    def _check(self, entry: PublishEntry, facts: HeaderFacts, header: bytes, body: bytes) -> Publication:
        """Check the properties of a publish, and return it with the header that consumers will get.

        Raises: ChannelError 403, 406. The order of the checks is RabbitMQ's.
        """
        session, vhost, replies = self._session, self._vhost, self.replies
        exchange = entry.exchange
        keys = [entry.envelope.key]
        delay_ms = None
        blind = facts.bcc is not MISSING  # keys of BCC must not forward the message to other brokers of the overlay
        if facts.special:
            if facts.reply_to == DIRECT_REPLY_TO and replies is None:
                raise ChannelError(406, "fast reply consumer does not exist")
            check_user_id(session.known_user, facts.user_id)
            if facts.fault is not None:
                raise ChannelError(406, facts.fault)
            keys = list(dict.fromkeys([*keys, *further_keys(facts)]))
            if exchange.delayed:
                delay_ms = delay_of(facts.delay)
            delivered = as_delivered(facts, header, replies)
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
        queues = self._route(entry, keys, header)
        if blind and any(queue.is_overlay for queue in queues):
            shown = self._route(entry, [entry.envelope.key, *further_keys(facts)], header)
            queues = tuple(queue for queue in queues if not queue.is_overlay or queue in shown)
        return Publication(entry, facts, header, body, queues, answered)

    def _check_numbered(self, entry: PublishEntry, mark: ProducerMark, header: bytes, body: bytes) -> Publication:
        """Check a publish that a producer numbered, and return it with a header without the number.

        Raises: ChannelError 403, 406.
        """
        sequence = mark.sequence(header)
        producer = self._producers.of(mark.producer, self._user_name)
        self._producers.check_room(producer, sequence)
        publication = self._check(entry, mark.facts, header[:PROPERTIES_AT] + mark.bare, body)
        publication.set_number(producer, sequence, header)
        return publication

    def _route(self, entry: PublishEntry, keys: Sequence[str], header: bytes) -> tuple[Queue, ...]:
        """Return the queues to which the keys are routed, each once."""
        if not keys:
            return ()
        if len(keys) == 1 and keys[0] == entry.envelope.key and not entry.dynamic:
            return entry.queues
        vhost = self._vhost
        queues: tuple[Queue, ...] = vhost.router.match(entry.exchange, keys[0], HeaderFields(header), keys[1:])
        if vhost.sweep.pending:
            vhost.sweep.update_rules(queues)
        return queues
