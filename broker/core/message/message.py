"""A message in memory, its envelope, and its further routing keys.

Content header and body remain as received, and the header is decoded only on demand.
"""

from __future__ import annotations

from typing import Any, Final

from mypy_extensions import mypyc_attr

from broker.amqp.deaths import X_DEATH
from broker.amqp.header_edit import edit_header, read_headers
from broker.amqp.header_facts import MISSING, HeaderFacts
from broker.core.message.x_death import past_deaths
from broker.store.record import Recorded, encode_route

ENVELOPES_MAX: Final = 1024
OVERHEAD_BYTES: Final = 400  # the memory of a message besides header and body, according to sys.getsizeof
DELIVERY_COUNT: Final = "x-delivery-count"
ACQUIRED_COUNT: Final = "x-acquired-count"


class EnvelopeCache:
    """Cache at most ENVELOPES_MAX envelopes for one part of the broker that publishes."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Envelope] = {}

    def of(self, exchange: str, key: str) -> Envelope:
        """Return the envelope of an exchange and a routing key."""
        envelope = self._known.get((exchange, key))
        if envelope is None:
            if len(self._known) >= ENVELOPES_MAX:
                self._known.clear()
            envelope = self._known[exchange, key] = Envelope(exchange, key)
        return envelope


@mypyc_attr(acyclic=True)  # when compiled, the garbage collector does not visit its hundreds of thousands of instances
class Envelope:
    """Exchange and routing key, with encoded forms that are computed once instead of per message.

    Shapes: ``route`` contains both as short strings, as in a basic.publish or a log record. ``suffix`` is the end of
        the frame of a basic.deliver: ``route``, and the octet that ends a frame.
    """

    __slots__ = ("exchange", "key", "route", "suffix")

    def __init__(self, exchange: str, key: str, route: bytes | None = None) -> None:
        """`route` is given if the caller has it."""
        self.exchange = exchange
        self.key = key
        self.route = encode_route(exchange, key) if route is None else route
        self.suffix = self.route + b"\xce"


@mypyc_attr(acyclic=True)
class Message(Recorded):
    """One published message, shared by every queue that accepted it.

    Shapes: ``header`` is the payload of the content header frame (class, weight, body size, flags, properties).
    Units: ``charge`` is the memory in bytes that each slot counts for the message. ``timestamp_ms`` is when the broker
        accepted it, on the broker's clock; its time to live starts then.
    """

    __slots__ = ("charge", "envelope", "facts")

    def __init__(
        self, envelope: Envelope, header: bytes, body: bytes, charge: int, facts: HeaderFacts, timestamp_ms: int
    ) -> None:
        self.envelope = envelope
        self.header = header
        self.body = body
        self.charge = charge
        self.facts = facts
        self.timestamp_ms = timestamp_ms
        self.position = 0
        self.record_bytes = 0

    def copy(self) -> Message:
        """Return a copy without a record."""
        return Message(self.envelope, self.header, self.body, self.charge, self.facts, self.timestamp_ms)

    def body_bytes(self) -> int:
        return len(self.body)


def new_message(
    envelope: Envelope, header: bytes, body: bytes, facts: HeaderFacts, now_ms: int, queues: int = 1
) -> Message:
    """Return a message that is accepted now for a number of queues, which share the charge for header and body."""
    charge = OVERHEAD_BYTES + (len(header) + len(body)) // max(queues, 1)
    return Message(envelope, header, body, charge, facts, now_ms)


def charge_of(messages: list[Message]) -> int:
    """Return the sum of the charges of messages, in bytes."""
    total = 0
    for message in messages:
        total += message.charge
    return total


def with_delivery_count(header: bytes, acquired: int, delivered: int) -> bytes:
    """Return a content header with the number of times the message was returned and the number of failed deliveries.

    Source: RabbitMQ 4.3, which sets no header for a count of 0.
    """
    if not acquired:
        return header
    counts = {ACQUIRED_COUNT: acquired}
    if delivered:
        counts[DELIVERY_COUNT] = delivered
    return edit_header(header, set_headers=counts)


def further_keys(facts: HeaderFacts) -> list[str]:
    """Return the routing keys in the headers CC and BCC; as in RabbitMQ, values that are not text are skipped."""
    return [key for keys in (facts.cc, facts.bcc) if keys is not MISSING for key in keys if isinstance(key, str)]


def carbon_copies(headers: dict[str, Any], key: str) -> list[str]:
    """Return the routing keys in the header CC, if a message with this routing key was published with them.

    They no longer apply once dead-lettering has replaced the routing key, although the header remains. That is the case
    if the keys in the latest death differ from the message's own.
    """
    keys = headers.get("CC")
    copies = [copy for copy in keys if isinstance(copy, str)] if isinstance(keys, list) else []
    latest = next(iter(past_deaths(headers)), None)
    return copies if latest is None or latest.get("routing-keys") == [key, *copies] else []


def copies_of(message: Message) -> tuple[str, ...]:
    """Return the routing keys in the header CC with which a stored message was published."""
    if message.facts.cc is MISSING:
        return ()
    return tuple(carbon_copies(read_headers(message.header, X_DEATH, "CC"), message.envelope.key))
