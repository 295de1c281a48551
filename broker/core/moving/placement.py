"""Placements: the target queues of messages that an operator publishes or moves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import NamedTuple

from broker.amqp.content_header import HeaderFields, facts_of
from broker.amqp.deaths import death_of, revived
from broker.amqp.errors import ChannelError
from broker.amqp.header_facts import HeaderFacts
from broker.core.message.delay import delay_of
from broker.core.message.message import Envelope, EnvelopeCache, Message, further_keys, new_message
from broker.core.names import is_short_text
from broker.core.publishing.posting import all_admit
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.routing.exchange import Exchange


class Outcome(Enum):
    """The outcome of placing one message."""

    ACCEPTED = "accepted"
    UNROUTABLE = "unroutable"
    """The message is routed to no queue, or only to queues of taps."""
    REFUSED = "refused"
    """A target queue is full and rejects publishes, or the user may not publish the message."""


class Placement(NamedTuple):
    """A message as its target queues will store it. Shapes: with `delay_ms`, `exchange` holds the message for that time
    instead. `refused` is set if the user may not publish the message.
    """

    envelope: Envelope
    header: bytes
    facts: HeaderFacts
    queues: Sequence[Queue]
    exchange: Exchange | None = None
    delay_ms: int | None = None
    refused: bool = False


CheckPublish = Callable[["Exchange", Sequence[str]], None]
"""A function that checks that a user may publish to an exchange with these routing keys. Raises: ChannelError."""


def permit_all(_exchange: Exchange, _keys: Sequence[str]) -> None:
    """Permit every publish: an operator needs no rights."""


FindPlacement = Callable[[Message], Placement | None]
"""A function that returns the placement of a message, or None for a message that stays in its queue."""


def to_queue(queue: Queue) -> FindPlacement:
    """Return a function that places messages into one queue, with their exchanges and routing keys unchanged."""
    queues = (queue,)
    return lambda message: Placement(message.envelope, message.header, message.facts, queues)


def to_exchange(vhost: Vhost, exchange: Exchange, key: str | None, check: CheckPublish = permit_all) -> FindPlacement:
    """Return a function that places messages like publishes to an exchange, with the routing key `key` or their own."""
    envelopes = EnvelopeCache()

    def find_placement(message: Message) -> Placement:
        facts = message.facts
        keys = [message.envelope.key, *further_keys(facts)] if key is None else [key]
        if not _passes(check, exchange, keys):
            return Placement(message.envelope, message.header, facts, (), refused=True)
        delay_ms = delay_of(facts.delay) if exchange.delayed else None
        queues: Sequence[Queue] = ()
        if delay_ms is None:
            queues = vhost.router.queues(exchange, keys, HeaderFields(message.header))
        return Placement(envelopes.of(exchange.name, keys[0]), message.header, facts, queues, exchange, delay_ms)

    return find_placement


def to_origin(
    vhost: Vhost,
    *,
    into_exchange: bool,
    reasons: Collection[str] = (),
    died_in: Collection[str] = (),
    check: CheckPublish = permit_all,
) -> FindPlacement:
    """Return a function that places dead letters into the queue in which they last died, or publishes them again to
    their exchange. The first entry of x-death names both; because a publisher may have invented it, `check` is called
    for the exchange. `revived` edits the headers. A message stays if it has not died, or if its last death does not
    match `reasons` or `died_in`.
    """
    envelopes = EnvelopeCache()

    def find_placement(message: Message) -> Placement | None:
        death = death_of(message.header)
        if death is None or (reasons and death.reason not in reasons) or (died_in and death.queue not in died_in):
            return None
        was = death.published
        header = revived(message.header, death, was)
        if not all(map(is_short_text, (was.exchange, *was.keys))):  # a publisher may have invented them
            return Placement(message.envelope, header, message.facts, ())
        queues: Sequence[Queue] = ()
        if into_exchange:
            exchange = vhost.exchanges.get(was.exchange)
            if exchange is not None:
                if not _passes(check, exchange, was.keys):
                    return Placement(message.envelope, header, message.facts, (), refused=True)
                queues = vhost.router.queues(exchange, was.keys, HeaderFields(header))
        else:
            queue = vhost.queues.reachable(death.queue)
            queues = () if queue is None else (queue,)
        return Placement(envelopes.of(was.exchange, was.key), header, facts_of(header), queues)

    return find_placement


def _passes(check: CheckPublish, exchange: Exchange, keys: Sequence[str]) -> bool:
    """Return whether the check permits a publish to an exchange with these routing keys."""
    try:
        check(exchange, keys)
    except ChannelError:
        return False
    return True


def place_message(
    vhost: Vhost, placement: Placement, body: bytes, *, take: Callable[[], bool] = lambda: True
) -> Outcome | None:
    """Add a message to all of its target queues or to none, and return the outcome. `take` removes it from its old
    queue, and returns False if the queue no longer has it: then nothing is done, and None is returned.
    """
    if placement.refused:
        return Outcome.REFUSED
    queues = [queue for queue in placement.queues if not queue.deleted]
    if placement.delay_ms is None and all(queue.is_tap for queue in queues):
        return Outcome.UNROUTABLE
    now_ms = vhost.ports.clock.now_ms
    message = new_message(placement.envelope, placement.header, body, placement.facts, now_ms, len(queues))
    if vhost.sweep.pending:
        vhost.sweep.update_rules(queues)
    if not all_admit(message, queues):
        return Outcome.REFUSED
    if not take():
        return None
    if placement.delay_ms is not None and placement.exchange is not None:
        vhost.delays.hold(placement.exchange, message, placement.delay_ms)
    else:
        vhost.poster.post(message, queues, admitted=True)
    return Outcome.ACCEPTED
