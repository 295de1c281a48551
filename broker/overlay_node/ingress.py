"""The ingress of one vhost: it publishes the messages of other brokers' streams, each once, in stream order.

A logged message and its position in its stream share one record of the log. Published messages do not enter this
broker's own stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.content_header import HeaderFields, facts_of
from broker.amqp.errors import ChannelError
from broker.amqp.header_edit import edit_header
from broker.amqp.header_facts import MISSING
from broker.core.message.delay import RECEIVED, delay_of
from broker.core.message.message import Envelope, EnvelopeCache, Message, new_message
from broker.core.publishing.retainer import check_retained
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.overlay.packets import Data, Space, StreamName
from broker.overlay_node.binding_interest import BindingInterest
from broker.routing.exchange import Exchange

if TYPE_CHECKING:
    from broker.core.publishing.producers import Producer
    from broker.core.vhost import Vhost

POSITION_PRODUCER: Final = "amq.overlay.from."  # begins the names of the broker's producers that store its positions
SIZE_AT, SIZE_END = 4, 12  # the position of the body size in a content header


class Ingress:
    """Publish the messages of other leaf brokers' streams.

    A message that no binding of its exchange matches is dropped; the alternate exchange is not used. Otherwise it is
    treated as a client's publish: bindings between exchanges, their alternates, delays, limits and dead letters apply.
    Invariant: within an incarnation of a stream, numbers only rise; a message whose number is not new is skipped.
    """

    def __init__(self, vhost: Vhost, bindings: BindingInterest) -> None:
        self._vhost = vhost
        self._bindings = bindings
        self._producers: dict[StreamName, Producer] = {}
        self._recorded: dict[Producer, int] = {}  # the last number that a record of the log contains
        self._envelopes = EnvelopeCache()
        self.refused = 0  # messages that a full queue refused, or that could not be retained

    def positions(self) -> dict[StreamName, int]:
        """Return the broker's position in each stream. Cost: O(producers of the vhost)."""
        found = {}
        for producer in self._vhost.producers.owned_by_broker():
            if producer.name.startswith(POSITION_PRODUCER) and producer.reached >= 0:
                leaf, incarnation, exchange = producer.name.removeprefix(POSITION_PRODUCER).split("\0", 2)
                found[StreamName(leaf, Space(self._vhost.name, exchange), int(incarnation))] = producer.reached
        return found

    def forget(self, leaf: str) -> None:
        """Drop the broker's positions in the streams of a leaf that will not return. Cost: O(producers)."""
        for stream in [stream for stream in self.positions() if stream.leaf == leaf]:
            self.drop(stream)

    def drop(self, stream: StreamName) -> None:
        """Drop the broker's position in an incarnation of a stream that was replaced, or whose leaf will not return."""
        producer = self._producer(stream)
        del self._producers[stream]
        self._vhost.producers.disown(producer)
        self._recorded.pop(producer, None)

    def advance(self, stream: StreamName, number: int) -> None:
        """Record the broker's position in a stream, unless the record of a message already contains it."""
        producer = self._producer(stream)
        if self._recorded.get(producer, -1) < number:
            self._vhost.producers.advance(producer, number)
            self._recorded[producer] = number

    def publish(self, stream: StreamName, data: Data, start: int | None = None, *, doubtful: bool = False) -> None:
        """Publish a message of a stream. With `start`, only bindings with a start point up to it route the message.

        A `doubtful` message may have been delivered before a crash, so it is marked as redelivered.
        """
        vhost = self._vhost
        producer, exchange_name = self._producer(stream), stream.space.exchange
        if data.number in producer.sequences:
            return
        exchange = vhost.exchanges.get(exchange_name)
        if exchange is None:
            return
        if vhost.sweep.pending:
            vhost.sweep.update_exchange(exchange)
        content = bytes(data.content)
        body_at = len(content) - int.from_bytes(content[SIZE_AT:SIZE_END], "big")
        header, body = content[:body_at], content[body_at:]
        facts = facts_of(header)
        delay_ms = delay_of(facts.delay) if exchange.delayed else None
        queues = self._queues(exchange, list(dict.fromkeys((data.key, *data.copies))), header, start)
        if not queues:
            return
        now_ms = vhost.ports.clock.now_ms
        producer.sequences.add(data.number, now_ms)
        number = producer.target(data.number)
        envelope = self._envelopes.of(exchange_name, data.key)
        if vhost.firehose.active:
            vhost.firehose.published((f"overlay {stream.leaf}", "", 0), envelope, (facts, header, body), queues)
        if facts.retain is not MISSING:
            self._retain(envelope, facts.retain, header, body)
        if delay_ms is not None:
            header = edit_header(header, set_headers={RECEIVED: True})
            message = new_message(envelope, header, body, facts_of(header), now_ms)
            vhost.delays.hold(exchange, message, delay_ms, number)
        else:
            message = new_message(envelope, header, body, facts, now_ms, len(queues))
            ends = _level_ends(queues, message) if doubtful else ()
            self.refused += not vhost.poster.post(message, queues, number=number)
            for level, end in ends:
                level.doubt(end)
        if message.logged:
            self._recorded[producer] = data.number

    def _retain(self, envelope: Envelope, asked: Any, header: bytes, body: bytes) -> None:
        """Retain a message at this site, too, if its publisher retained it."""
        retainer = self._vhost.retainer
        with suppress(ChannelError):  # the publisher's own site has reported it
            if retainer is not None and check_retained(retainer, envelope, asked):
                if retainer.lack_of_room(envelope.key, len(header), len(body)):
                    self.refused += 1
                else:
                    retainer.retain(envelope.key, header, body)

    def _queues(self, exchange: Exchange, keys: Sequence[str], header: bytes, start: int | None) -> Sequence[Queue]:
        """Return the queues of a message, including those of taps, or none if only taps match it."""
        router = self._vhost.router
        plain = exchange.alternate is None and not exchange.onward and not exchange.by_headers
        if start is None and plain and len(keys) == 1:
            found: tuple[Any, ...] = exchange.route(keys[0]).destinations
            if not exchange.is_routed([queue for queue in found if not queue.is_overlay]):
                return ()
        else:
            fields = HeaderFields(header)
            outlet = exchange.listeners.outlet
            listening = exchange.listeners.patterns
            matched = [destination for destination in exchange.match(keys, fields) if destination is not outlet]
            if start is not None:
                routes = self._bindings.routes
                matched = [to for to in matched if to in listening or routes(exchange, to, keys, fields, start)]
            if not exchange.is_routed(matched):
                return ()
            found = router.follow(exchange, tuple(matched), keys, fields)
        queues = [queue for queue in found if not queue.is_overlay]
        if self._vhost.sweep.pending:
            self._vhost.sweep.update_rules(queues)
        return queues

    def _producer(self, stream: StreamName) -> Producer:
        producer = self._producers.get(stream)
        if producer is None:
            name = f"{POSITION_PRODUCER}{stream.leaf}\0{stream.incarnation}\0{stream.space.exchange}"
            producer = self._producers[stream] = self._vhost.producers.own(name)
        return producer


def _level_ends(queues: Sequence[Queue], message: Message) -> list[tuple[Level, int]]:
    """Return the levels that a message enters, each with its next message id."""
    levels = [queue.level_for(message) for queue in queues]
    return [(level, level.manager.next_id) for level in levels]
