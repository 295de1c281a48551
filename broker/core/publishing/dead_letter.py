"""Dead letters: messages that a queue dropped, and that are republished to the queue's dead letter exchange.

Source: RabbitMQ 4.3, rabbit_dead_letter:publish/5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.amqp.content_header import HeaderFields, measure_header
from broker.amqp.deaths import X_DEATH
from broker.amqp.header_edit import edit_header, read_headers, read_text
from broker.amqp.header_facts import MEASURED_DEPTH_MAX, MEASURED_ENTRIES_MAX, HeaderFacts, plain_facts
from broker.core.deadlines import Deadlines
from broker.core.message.delay import delay_of
from broker.core.message.message import Envelope, EnvelopeCache, Message, carbon_copies, new_message
from broker.core.message.x_death import Death, is_cycle, past_queues, record_death
from broker.core.publishing.posting import Poster
from broker.core.publishing.reply_to import REPLY_PREFIX, ReplyConsumers
from broker.core.queue.level import POISON
from broker.core.queue.level_owner import LevelOwner
from broker.core.queue.queue import Queue
from broker.core.queue.rules import poisoned_name
from broker.core.statistics.vhost_tally import VhostTally
from broker.core.topology.exchanges import Exchanges
from broker.event_log import get_logger
from broker.routing.exchange import Exchange

_log = get_logger()

DEATH_UNITS: Final = 4  # units of the turn's share for a dead letter, and for each death in its header


class DeadLetters:
    """Publish the dead letters of one vhost. A full queue that accepts a dead letter may drop another message, which is
    dead-lettered too, and so on. A list avoids the recursion; all are published before the outermost call returns.
    Invariant: the caller settles a message after `dead_letter`, and settlements are logged at the end of the loop turn.
        So the record of a dead letter precedes the settlement of its source: a crash may duplicate a message, but loses
        none.
    """

    def __init__(
        self,
        vhost_name: str,
        exchanges: Exchanges,
        replies: ReplyConsumers,
        poster: Poster,
        deadlines: Deadlines,
        *,
        hold: Callable[[Exchange, Message, int], None],
        tally: VhostTally,
    ) -> None:
        """`hold` delays a message of an exchange by a number of milliseconds."""
        self._vhost_name = vhost_name
        self._exchanges = exchanges
        self._hold = hold
        self._tally = tally
        self._replies = replies
        self._poster = poster
        self._deadlines = deadlines
        self._publishing = False
        self._waiting: deque[tuple[LevelOwner, Message, str]] = deque()
        self._envelopes = EnvelopeCache()

    def dead_letter(self, queue: LevelOwner, message: Message, reason: str) -> None:
        """Publish a message to its queue's dead letter exchange. If the queue has none, a poisoned message is added to
        the queue of poisoned messages. The body must be in memory. A message that reaches no queue is dropped.

        Shapes: `reason` is rejected, expired, maxlen or delivery_limit.
        """
        if queue.rules.dead_letter_exchange is None and reason != POISON:
            return
        self._waiting.append((queue, message, reason))
        if self._publishing:
            return
        self._publishing = True
        try:
            while self._waiting:
                self._publish(*self._waiting.popleft())
        finally:
            self._publishing = False
            self._waiting.clear()

    def _publish(self, queue: LevelOwner, message: Message, reason: str) -> None:
        rules = queue.rules
        exchange = self._exchanges.get(rules.dead_letter_exchange or "")
        if exchange is None:
            return
        self._tally.count_dead_letter(reason)
        now_ms = self._deadlines.clock.now_ms
        time_s = (now_ms - self._deadlines.clock.ahead_ms) // 1000
        source = message.envelope
        headers = read_headers(message.header, X_DEATH, "CC")
        keys = (source.key, *carbon_copies(headers, source.key))
        # The facts state whether the message expires; the header has the publisher's own text.
        expiration = None if message.facts.expiration_ms is None else read_text(message.header, "expiration")
        changes = record_death(headers, Death(queue.name, reason, source.exchange, keys, expiration, time_s))
        self._deadlines.spend(DEATH_UNITS * (1 + len(changes[X_DEATH])))
        dropped = ["BCC"]
        key = poisoned_name(queue.name) if rules.dead_letter_exchange is None else rules.dead_letter_key
        if key is not None:
            keys = (key,)
            if key == source.key:
                dropped.append("CC")  # otherwise `carbon_copies` would return the old keys for the dead letter
        header = edit_header(message.header, set_headers=changes, drop_headers=dropped, drop_properties=("expiration",))
        facts = facts_of_dead_letter(message.facts, header)
        envelope, body = self._envelopes.of(exchange.name, keys[0]), message.body
        delay_ms = delay_of(facts.delay) if exchange.delayed else None
        if delay_ms is not None:
            self._hold(exchange, new_message(envelope, header, body, facts, now_ms), delay_ms)
            return
        if exchange.name == "":
            keys = self._answer(keys, envelope, header, body)
        queues: tuple[Queue, ...] = self._exchanges.router.queues(exchange, keys, HeaderFields(header))
        if reason != "rejected":
            queues = self._without_cycles(queue, queues, changes[X_DEATH])
        if queues:
            self._poster.post(new_message(envelope, header, body, facts, now_ms, len(queues)), queues)

    def _answer(self, keys: tuple[str, ...], envelope: Envelope, header: bytes, body: bytes) -> tuple[str, ...]:
        """Deliver the dead letter to the reply consumers that the keys name, and return the other keys."""
        for key in keys:
            waiting = self._replies.find(key)
            if waiting is not None:
                waiting.deliver(envelope, header, body)
        return tuple(key for key in keys if not key.startswith(REPLY_PREFIX))

    def _without_cycles(
        self, source: LevelOwner, queues: Sequence[Queue], events: Sequence[dict[str, Any]]
    ) -> tuple[Queue, ...]:
        """Return the queues that the message may enter without a cycle."""
        allowed = tuple(queue for queue in queues if not is_cycle(queue.name, events))
        if len(allowed) < len(queues):
            for queue in queues:
                if queue not in allowed:
                    cycle = [queue.name, *past_queues(events)]
                    _log.warning("dead_letter.dropped", vhost=self._vhost_name, queue=source.name, cycle=cycle)
        return allowed


def facts_of_dead_letter(facts: HeaderFacts, header: bytes) -> HeaderFacts:
    """Return the facts of the header of a dead letter, given those of the original message.

    They are not cached, because the time of death makes nearly every header unique.
    """
    if facts.special:
        return measure_header(header, MEASURED_DEPTH_MAX, MEASURED_ENTRIES_MAX)
    return plain_facts(facts.persistent, facts.priority, None)
