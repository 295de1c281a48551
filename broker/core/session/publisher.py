"""Publishing on one channel: from a complete basic.publish to accepted messages and a log record."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.amqp.codec import BasicReturn
from broker.amqp.framing import PUBLISH
from broker.amqp.wire import PROPERTIES_AT
from broker.core.message.message import OVERHEAD_BYTES, Message
from broker.core.publishing.local_store import LocalStore, Targets
from broker.core.publishing.posting import all_admit, charge_bytes
from broker.core.publishing.publish_entry import WIDE_QUEUES, PublishEntry, reach_of
from broker.core.publishing.sequences import BLOCK_SHIFT
from broker.core.session.channel_publishes import ChannelPublishes
from broker.core.session.confirm_frames import ACK, DROPPED, NACK, confirm_frame, due_numbers
from broker.core.session.publication import Publication, look_at_numbered, look_closely
from broker.core.session.publish_later import publish_later, republish
from broker.core.session.resolver import Resolver
from broker.store.record import TARGET

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.amqp.header_facts import HeaderFacts, ProducerMark
    from broker.core.publishing.producers import Producer
    from broker.core.publishing.reply_to import ReplyConsumer
    from broker.core.queue.queue import Queue
    from broker.core.session.client import SessionClient
    from broker.core.vhost import Vhost

__all__ = ["Publisher"]

pack_target: Final = TARGET.pack
QUEUES_PER_UNIT: Final = 8  # queues that take a message in ten microseconds, the unit of the method budget
_TELLS_DROPPED: Final = "slotmq.dropped_publishes"


class Publisher:
    """Publishes for one channel and counts what it has to confirm.

    Units: ``published``, ``confirmed`` and ``logged`` are publish sequence numbers, which start at 1 with
        confirm.select; ``logged`` is the last one whose confirm has to wait for the disk. ``replies`` is the channel's
        consumer of direct replies.
    Invariant: confirmed <= published; every number up to ``confirmed`` was confirmed to the client, with an ack or a
        nack.
    """

    __slots__ = (
        "_channel",
        "_clock",
        "_committer",
        "_connection",
        "_deadlines",
        "_dropped",
        "_entering",
        "_number",
        "_producer",
        "_producers",
        "_refused",
        "_resolved",
        "_resolver",
        "_session",
        "_share",
        "_store",
        "_tells_dropped",
        "_user_name",
        "_vhost",
        "_wide",
        "closed",
        "confirmed",
        "confirming",
        "logged",
        "published",
        "replies",
        "tally",
        "waiting",
    )

    def __init__(self, channel: Channel, session: SessionClient, vhost: Vhost) -> None:
        self._channel = channel
        self._number = channel.number
        self._connection = session.connection
        self._session = session
        self._share = session.publish_share
        self._vhost = vhost
        self._clock = vhost.ports.clock
        self._deadlines = vhost.ports.deadlines
        self._store: LocalStore = vhost.store
        self._committer = vhost.committer
        self.tally = ChannelPublishes(vhost.tally)
        assert session.user is not None
        self._user_name = session.user.name
        self._producers = vhost.producers
        self._producer: Producer | None = None  # the producer of the last numbered publish
        # The payload at which publish_run() stopped, its entry, and whether its cost is still to be counted.
        self._resolved: tuple[bytes, PublishEntry, bool] | None = None
        self._resolver = Resolver(channel, session, vhost)
        self.closed = False  # the channel is closed: confirms have no receiver
        self.confirming = False
        self.waiting = False  # is in the committer's list
        self.published = 0
        self.confirmed = 0
        self.logged = 0
        self.replies: ReplyConsumer | None = None
        self._wide = vhost.wide
        self._entering = 0  # the number of a publish that has yet to enter some of its queues, 0 for none
        self._refused: list[int] = []  # numbers that get a nack; they ascend
        self._dropped: list[int] = []  # numbers that were used before, if the client wants to know; they ascend
        self._tells_dropped = self._connection.has_capability(_TELLS_DROPPED)

    def start_confirms(self) -> None:
        """Confirm each publish from now on."""
        self.confirming = True

    def take_replies(self, consumer: ReplyConsumer | None) -> None:
        """Take the channel's reply consumer, or forget it."""
        self.replies = consumer

    def close(self) -> None:
        """Send no more confirms: the channel is gone."""
        self.closed = True

    def publish_run(self, payloads: list[bytes], headers: list[bytes], bodies: list[bytes], start: int) -> int:
        """Publish messages with equal properties, and return the place of the first that was not published. HOT.

        It ends before the first message that needs a detailed check, and after one that caused the connection to be
        held. The store accepts the others at once.
        Raises: ChannelError 403, 404, 406; ConnectionFault 501, 502, 540; earlier messages are published.
        """
        facts = self._channel.facts
        if facts.special or facts.expiration_ms is not None:
            return start
        persistent = facts.persistent
        now_ms = self._clock.now_ms
        entries = self._resolver.entries
        left = self._share.begin()
        header = b""
        content_bytes = 0
        logged = 0
        place = start
        messages: list[Message] = []
        targets: list[Targets] = []
        stops: list[int] = []
        last: PublishEntry | None = None
        last_payload = b""
        try:
            while place < len(payloads):
                payload = payloads[place]
                entry = last if payload == last_payload else entries.get(payload)  # a look-up costs six comparisons
                resolved = False
                if entry is None or not entry.route.live:
                    if not payload.startswith(PUBLISH):
                        break
                    entry = self._resolver.resolve(payload)
                    entries = self._resolver.entries
                    resolved = True
                if entry.straight:
                    if headers[place] is not header:
                        header = headers[place]
                        content_bytes = len(header) + len(bodies[place])
                    width = len(entry.streams)
                    charge = OVERHEAD_BYTES + content_bytes // width
                    left -= width
                    if entry is not last:
                        if last is not None:
                            stops.append(len(messages))
                        last = entry
                        last_payload = payload
                        targets.append(entry)
                    messages.append(Message(entry.envelope, header, bodies[place], charge, facts, now_ms))
                    if entry.durable if persistent else entry.persisting:
                        logged = place + 1 - start
                elif entry.nowhere:
                    entry.tally.count(1, 0)
                else:
                    # Counted when it is published: held now, the connection would have to resolve it again.
                    self._resolved = (payload, entry, resolved)
                    break
                place += 1
                if (resolved and self._pay(entry)) or left <= 0:
                    break
        finally:
            if messages:
                stops.append(len(messages))
                self._store.accept(messages, targets, stops)
            if place > start:
                self.tally.published_run(place - start, targets, stops, self.confirming)
                self.tally.sizes.count_run(headers, bodies, start, place)
                if self.confirming:
                    self._await_confirm(place - start, logged)
            self._share.end(left)
        return place

    def publish(self, payload: bytes, header: bytes, body: bytes) -> None:
        """Publish one message, with the detailed check if it needs one.

        Raises: ChannelError 403, 404, 406; ConnectionFault 501, 502, 540.
        """
        if self._wide.pending and self._waits_for_wide(payload, header, body):
            return
        if self.publish_run([payload], [header], [body], 0):
            return
        facts = self._channel.facts
        mark = facts.mark
        producer = self._producer
        is_known = mark is None or (producer is not None and not producer.forgotten and producer.name == mark.producer)
        if not is_known and self.lacks(partial(self.publish, payload, header, body)):
            return
        entry = self._entry_of(payload)
        self.tally.published(body, self.confirming)
        if self.confirming:
            self._await_confirm(1)
        if mark is None or not mark.plain or not entry.straight:
            if not entry.nowhere or facts.special:
                begun = self._wide.begun
                self.send(self._look_closely(entry, header, body))
                if self._wide.begun != begun and self.confirming:
                    self._entering = self.published
                    self._wide.when_entered(self._entered)
                if self._deadlines.left <= 0:
                    self._wait_for_turn()
            else:
                self.tally.reached(entry.tally, 0, dropped=True)
        elif number := self._use_number(mark, header):
            self._publish_numbered(entry, header[:PROPERTIES_AT] + mark.bare, body, mark.facts, number)

    def _waits_for_wide(self, payload: bytes, header: bytes, body: bytes) -> bool:
        """Return whether a publish to very many queues is held until those before it have entered theirs."""
        entry = self._resolver.entries.get(payload)
        if entry is not None and len(entry.queues) < WIDE_QUEUES:
            return False
        self._connection.hold()
        self._wide.when_entered(
            partial(republish, self._session, self._number, partial(self.publish, payload, header, body))
        )
        return True

    def _entered(self) -> None:
        """Confirm a message that has entered very many queues."""
        self._entering = 0
        if not self.waiting:
            self.waiting = True
            self._committer.wait(self)

    def _await_confirm(self, count: int, logged: int = 0) -> None:
        """Count publishes, `logged` of which have to wait for the disk, and ask the committer to confirm them."""
        if logged:
            self.logged = self.published + logged
        self.published += count
        if not self.waiting:
            self.waiting = True
            self._committer.wait(self)

    def _entry_of(self, payload: bytes) -> PublishEntry:
        """Return the entry of a publish, which publish_run() may just have resolved."""
        stopped_at, self._resolved = self._resolved, None
        if stopped_at is not None and stopped_at[0] is payload:
            entry, resolved = stopped_at[1], stopped_at[2]
        else:
            known = self._resolver.entries.get(payload)
            resolved = known is None or not known.route.live
            entry = self._resolver.resolve(payload) if known is None or resolved else known
        if resolved:
            self._pay(entry)
        return entry

    def _pay(self, entry: PublishEntry) -> bool:
        """Count the cost of resolving a publish, and return whether the connection is held until its next turn."""
        self._session.method_budget.spend(1 + len(entry.queues) // QUEUES_PER_UNIT)
        return self._connection.held

    # -- numbered publishes -------------------------------------------------------------------------------------------

    def _publish_numbered(
        self, entry: PublishEntry, header: bytes, body: bytes, facts: HeaderFacts, number: bytes
    ) -> None:
        """Publish a message to plain queues that needs no check except its number."""
        charge = OVERHEAD_BYTES + (len(header) + len(body)) // len(entry.streams)
        message = Message(entry.envelope, header, body, charge, facts, self._clock.now_ms)
        left = self._share.begin() - len(entry.streams)
        self._store.accept([message], [entry], [1], number)
        self._share.end(left)
        self.tally.reached(entry.tally, entry.reach)
        if entry.durable if facts.persistent else entry.persisting:
            self.logged = self.published

    def _use_number(self, mark: ProducerMark, header: bytes) -> bytes:
        """Return what the number of a publish adds to the targets of its record, nothing when it was used before. HOT.

        A duplicate is confirmed after the original: with the next sync, if records wait for one.
        Raises: ChannelError 403, 406.
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
        self._wait_for_original()
        return b""

    def lacks(self, publish: Callable[[], None]) -> bool:
        """Return whether the present publish has to wait for its producer; then `publish` is called later."""
        return publish_later(self._session, self._number, self._producers, self._channel.facts.mark, publish)

    def _wait_for_original(self) -> None:
        if self._store.needs_sync:
            self.logged = self.published
        if self._tells_dropped and self.confirming:
            self._dropped.append(self.published)

    # -- the detailed check -------------------------------------------------------------------------------------------

    def examine(self, payload: bytes, header: bytes, body: bytes) -> Publication:
        """Check a publish now, and return it for `send` later.

        Raises: as `publish`.
        """
        self.tally.published(body, self.confirming)
        return self._look_closely(self._entry_of(payload), header, body)

    def send(self, publication: Publication, *, admitted: bool = False) -> None:
        """Delay, return, answer or post a publication, and count it as refused when a queue is full.

        With `admitted` full queues are not asked. A mandatory message without a queue is returned before its confirm,
        as in RabbitMQ. A numbered message is accepted by all its queues or by none, so that it can be sent again; one
        that was accepted before is skipped.
        """
        if publication.used:
            self._wait_for_original()
            return
        header, body, envelope = publication.header, publication.body, publication.envelope
        queues = [queue for queue in publication.queues if not queue.deleted]
        charge = charge_bytes(header, body, len(queues))
        message = Message(envelope, header, body, charge, publication.facts, self._clock.now_ms)
        left = self._share.begin() - len(queues)
        reach = reach_of(queues)
        nowhere = publication.delay_ms is None and not publication.replies and not reach
        number = b""
        if publication.producer is not None and not (nowhere and (publication.mandatory or not queues)):
            if not admitted and not all_admit(message, queues):
                if self.confirming:
                    self._refused.append(self.published)
                return
            admitted = True
            number = publication.use_number(message.timestamp_ms)
        self.tally.reached(publication.exchange.tally, reach, dropped=nowhere and not publication.mandatory)
        progress = self._store.progress
        if publication.delay_ms is not None:
            self._vhost.delays.hold(publication.exchange, message, publication.delay_ms, number)
        else:
            if queues and not self._post(message, queues, number, admitted=admitted) and self.confirming:
                self._refused.append(self.published)
            if nowhere and publication.mandatory:
                returned = BasicReturn(312, "NO_ROUTE", envelope.exchange, envelope.key)
                self._channel.send_content(returned, publication.original, body)
                self.tally.returned()
        for replies in publication.replies:
            replies.deliver(envelope, header, body)
        self._share.end(left)
        if self._store.progress != progress:  # the confirm also waits for a delayed message or a dead letter
            self.logged = self.published

    def _post(self, message: Message, queues: list[Queue], number: bytes, *, admitted: bool) -> bool:
        """Post a message and return whether all queues took it, as far as is known by now."""
        post = self._vhost.poster.post
        if not self.confirming:
            return post(message, queues, admitted=admitted, number=number)
        store = self._store
        store.note_origin((self, self.published))
        try:
            return post(message, queues, admitted=admitted, number=number)
        finally:
            store.note_origin(None)

    def _wait_for_turn(self) -> None:
        """Hold the connection until full queues have dropped their excess."""
        connection = self._connection
        connection.hold()
        self._deadlines.set(("held", connection), self._clock.now_ms, connection.release)

    def _look_closely(self, entry: PublishEntry, header: bytes, body: bytes) -> Publication:
        facts = self._channel.facts
        mark = facts.mark
        if mark is None:
            publication = look_closely(self._session, self._vhost, entry, facts, header, body, self.replies)
        else:
            facts = mark.facts
            publication = look_at_numbered(self._session, self._vhost, entry, mark, header, body, self.replies)
        if self._vhost.firehose.active:
            content = (facts, publication.header, publication.body)
            envelope, queues = publication.envelope, publication.queues
            self._vhost.firehose.published(self._session, self._number, envelope, content, queues)
        return publication

    # -- confirm ------------------------------------------------------------------------------------------------------

    def refuse(self, number: int) -> None:
        """Answer an unconfirmed publish with a nack: a full queue did not take it."""
        if number not in self._refused:
            insort(self._refused, number)

    def confirm(self, upto: int) -> None:
        """Confirm every publish up to and including number `upto`, with as few frames as possible."""
        if self.closed:
            return
        if self._entering and upto >= self._entering:
            upto = self._entering - 1
        if self._refused or self._dropped:
            self._tell_apart(upto)
        self._settle(ACK, upto)

    def _tell_apart(self, upto: int) -> None:
        """Send the nacks and marked acks up to number `upto`, and the acks between them."""
        kinds = dict.fromkeys(due_numbers(self._refused, upto), NACK)
        kinds.update(dict.fromkeys(due_numbers(self._dropped, upto), DROPPED))
        for number in sorted(kinds):  # one frame for consecutive numbers of a kind
            kind = kinds[number]
            if kinds.get(number - 1) != kind:
                self._settle(ACK, number - 1)
            if kinds.get(number + 1) != kind:
                self._settle(kind, number)

    def _settle(self, kind: int, upto: int) -> None:
        """Send the ack or nack of all publishes up to a number."""
        count = upto - self.confirmed
        if count <= 0:
            return
        self.confirmed = upto
        if kind != NACK:
            self.tally.confirmed(count)
        self._connection.write(confirm_frame(self._number, kind, upto, count))
