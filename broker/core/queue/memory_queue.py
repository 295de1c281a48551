"""The memories of exchanges: internal queues in which an exchange stores what it has seen. They are stored, counted,
listed and purged like all queues, and bounded by their rules, which drop the oldest first. Those of MQTT are bounded by
the code that fills them.
"""

from __future__ import annotations

from typing import Final

from broker.amqp.content_header import HeaderFields
from broker.amqp.header_edit import encode_header
from broker.amqp.header_facts import NO_PRIORITY, plain_facts
from broker.core.message.message import OVERHEAD_BYTES, Envelope, Message
from broker.core.queue.duplicates import value_digest
from broker.core.queue.queue import Queue
from broker.routing.fanout_exchange import DEDUPLICATION_HEADER, cache_ttl_ms

RETAINED_NAME: Final = "amq.retained"
HANDSHAKES_NAME: Final = "amq.mqtt.handshakes"
WILLS_NAME: Final = "amq.mqtt.wills"


class KeptQueue(Queue):
    """An internal queue: no policy applies to it, and nothing expires in it."""

    kept = True

    def expires_ms(self, message: Message) -> int | None:
        """Return None."""
        return None


class HistoryQueue(KeptQueue):
    """The last messages of an exchange."""

    is_tap = True
    holds = "the history of an exchange"


class RetainedQueue(KeptQueue):
    """The last retained message of each topic. The code that fills it handles expiry and replacement."""

    is_tap = True
    persists_all = True
    holds = "the retained messages of MQTT"


class HandshakesQueue(RetainedQueue):
    """The unfinished QoS 2 handshakes of MQTT. The code that fills it handles expiry."""

    holds = "the unfinished QoS 2 handshakes of MQTT"


class WillsQueue(RetainedQueue):
    """The delayed wills of MQTT clients. The code that fills it handles their due times."""

    holds = "the delayed wills of MQTT clients"


class SeenQueue(Queue):
    """The values that an exchange has seen in the header x-deduplication-header.

    Each is a message whose body is its digest, and which expires when the value is forgotten.
    """

    kept = True
    is_tap = True
    holds = "what an exchange has seen"

    def stops(self, value: object) -> bool:
        """Return whether the exchange remembers a value; if so, count a message as dropped."""
        return self._stops(value_digest(value))

    def repeats(self, message: Message) -> bool:
        """Return True: no message enters except those that `noted` returns."""
        return True

    def noted(self, message: Message) -> Message:
        """Return the message to store in place of one that the exchange lets through."""
        headers = HeaderFields(message.header).headers
        ttl_ms = cache_ttl_ms(headers)
        properties: dict[str, object] = {"delivery_mode": 2}
        if ttl_ms is not None:
            properties["expiration"] = str(ttl_ms)
        body = value_digest(headers.get(DEDUPLICATION_HEADER))
        header = encode_header(properties, len(body))
        facts = plain_facts(True, NO_PRIORITY, ttl_ms)
        charge = OVERHEAD_BYTES + len(header) + len(body)
        return Message(Envelope("", self.name), header, body, charge, facts, message.timestamp_ms)

    def digest(self, message: Message) -> bytes | None:
        """Return the digest in a message."""
        return message.body

    def expires_ms(self, message: Message) -> int | None:
        """Return when a value is forgotten; a time in its message overrides that of the exchange."""
        own_ms = message.facts.expiration_ms
        return super().expires_ms(message) if own_ms is None else message.timestamp_ms + own_ms
