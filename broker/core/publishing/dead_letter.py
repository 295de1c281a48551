"""Dead letters: messages that a queue gave up, published once more to the exchange that the queue names for them.

Source: RabbitMQ 4.3, rabbit_dead_letter:publish/5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.content_header import measure_header
from broker.amqp.deaths import X_DEATH
from broker.amqp.header_edit import edit_header, read_headers, read_text
from broker.amqp.header_facts import MEASURED_DEPTH_MAX, MEASURED_ENTRIES_MAX, HeaderFacts, plain_facts
from broker.core.delay.delayed import delay_of
from broker.core.message.envelope_cache import EnvelopeCache
from broker.core.message.fields import HeaderFields
from broker.core.message.message import Envelope, Message
from broker.core.message.x_death import Death, is_cycle, past_deaths, past_queues, record_death
from broker.core.publishing.posting import charge_bytes, post
from broker.core.publishing.reply_to import REPLY_PREFIX
from broker.event_log import get_logger

if TYPE_CHECKING:
    from broker.core.queue.ports import StreamOwner
    from broker.core.queue.queue import Queue
    from broker.core.vhost import Vhost

__all__ = ["DeadLetters"]

_log = get_logger()

BURIAL_SHARE: Final = 4  # what a dead letter takes of the turn's share, and each death that it tells of


class DeadLetters:
    """Publishes the dead letters of one vhost.

    A dead letter may push another message out of a full queue, and that one a third: they wait in a list instead of on
    the stack, and are all published before the outermost `bury` returns.
    Invariant: the caller settles a message behind `bury`, and settlements are logged at the end of the loop turn. So a
        dead letter's record stands before the record that its source is gone: a crash duplicates, and never loses.
    """

    __slots__ = ("_burying", "_envelopes", "_vhost", "_waiting")

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost
        self._burying = False
        self._waiting: deque[tuple[StreamOwner, Message, str]] = deque()
        self._envelopes = EnvelopeCache()

    def bury(self, queue: StreamOwner, message: Message, reason: str) -> None:
        """Publish a message of a queue to the queue's dead letter exchange; without one nothing happens.

        Its body must be in memory. An exchange that does not exist, or leads nowhere, drops it without a word.
        Shapes: `reason` is rejected, expired, maxlen or delivery_limit.
        """
        if queue.rules.dead_letter_exchange is None:
            return
        self._waiting.append((queue, message, reason))
        if self._burying:
            return
        self._burying = True
        try:
            while self._waiting:
                self._publish(*self._waiting.popleft())
        finally:
            self._burying = False
            self._waiting.clear()

    def _publish(self, queue: StreamOwner, message: Message, reason: str) -> None:
        vhost, rules = self._vhost, queue.rules
        exchange = vhost.exchanges.get(rules.dead_letter_exchange or "")
        if exchange is None:
            return
        clock = vhost.ports.clock
        now_ms, time_s = clock.now_ms, (clock.now_ms - clock.ahead_ms) // 1000
        source = message.envelope
        headers = read_headers(message.header, X_DEATH, "CC")
        keys = (source.key, *carbon_copies(headers, source.key))
        # What expires says so in its facts, and the text is that of the publisher.
        expiration = None if message.facts.expiration_ms is None else read_text(message.header, "expiration")
        changes = record_death(headers, Death(queue.name, reason, source.exchange, keys, expiration, time_s))
        vhost.ports.deadlines.left -= BURIAL_SHARE * (1 + len(changes[X_DEATH]))
        dropped = ["BCC"]
        if rules.dead_letter_key is not None:
            keys = (rules.dead_letter_key,)
            if rules.dead_letter_key == source.key:
                dropped.append("CC")  # nothing else would tell the next death that the copies are over
        header = edit_header(message.header, set_headers=changes, drop_headers=dropped, drop_properties=("expiration",))
        facts = facts_behind(message.facts, header)
        envelope, body = self._envelopes.of(exchange.name, keys[0]), message.body
        delay_ms = delay_of(facts.delay) if exchange.delayed else None
        if delay_ms is not None:
            charge = charge_bytes(header, body, 1)
            vhost.delay(exchange, Message(envelope, header, body, charge, facts, now_ms), delay_ms)
            return
        if exchange.name == "":
            keys = self._answer(keys, envelope, header, body)
        queues: tuple[Queue, ...] = vhost.router.queues(exchange, keys, HeaderFields(header))
        if reason != "rejected":
            queues = self._without_cycles(queue, queues, changes[X_DEATH])
        if queues:
            charge = charge_bytes(header, body, len(queues))
            post(vhost, Message(envelope, header, body, charge, facts, now_ms), queues)

    def _answer(self, keys: tuple[str, ...], envelope: Envelope, header: bytes, body: bytes) -> tuple[str, ...]:
        """Give the dead letter to who waits for answers under these keys, and return those that are queues' names."""
        for key in keys:
            waiting = self._vhost.replies.get(key)
            if waiting is not None:
                waiting.deliver(envelope, header, body)
        return tuple(key for key in keys if not key.startswith(REPLY_PREFIX))

    def _without_cycles(
        self, source: StreamOwner, queues: Sequence[Queue], events: Sequence[dict[str, Any]]
    ) -> tuple[Queue, ...]:
        """Return the queues that the message has not gone round to by itself."""
        straight = tuple(queue for queue in queues if not is_cycle(queue.name, events))
        if len(straight) < len(queues):
            for queue in queues:
                if queue not in straight:
                    cycle = [queue.name, *past_queues(events)]
                    _log.warning("dead_letter.dropped", vhost=self._vhost.name, queue=source.name, cycle=cycle)
        return straight


def facts_behind(facts: HeaderFacts, header: bytes) -> HeaderFacts:
    """Return the facts of the header of a dead letter, given those of its message.

    Not by the cache of facts: the time of death makes nearly every header a new one.
    """
    if facts.special:
        return measure_header(header, MEASURED_DEPTH_MAX, MEASURED_ENTRIES_MAX)
    return plain_facts(facts.persistent, facts.priority, None)


def carbon_copies(headers: dict[str, Any], key: str) -> list[str]:
    """Return the routing keys of the header CC by which a message with this routing key was published.

    There are none once a queue gave the message a key of its own: the header stays and routes no more. What the message
    was published with before its latest death tells: without such a key it is the same.
    """
    keys = headers.get("CC")
    copies = [copy for copy in keys if isinstance(copy, str)] if isinstance(keys, list) else []
    latest = next(iter(past_deaths(headers)), None)
    return copies if latest is None or latest.get("routing-keys") == [key, *copies] else []
