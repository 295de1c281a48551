"""The message loader: build messages from records read from disk; neighbouring messages share equal parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.amqp.content_header import facts_of, remember
from broker.amqp.header_facts import HeaderFacts
from broker.core.message.delay import HeldMessage
from broker.core.message.message import OVERHEAD_BYTES, Envelope, Message
from broker.store.reading import MessageBuilder
from broker.store.record import DUE, TARGET, TARGET_BYTES, route_names

ENVELOPES_MAX: Final = 16_384  # about 400 bytes each; a cache with fewer entries than a queue has routes never hits
HEADERS_MAX: Final = 1024
HEADER_MAX_BYTES: Final = 512

_Known = tuple[bytes, HeaderFacts, int]  # a content header, its facts, and the charge of a message without its body


class MessageLoader(MessageBuilder[Message]):
    """Build messages from the records of slots. Several threads call it concurrently: each cache stays correct when
    they interleave, but an entry may be created twice.
    """

    def __init__(self) -> None:
        self._envelopes: dict[bytes, Envelope] = {}  # by route
        self._headers: dict[bytes, _Known] = {}
        self._last: _Known | None = None

    def make(
        self,
        position: int,
        size: int,
        timestamp_ms: int,
        flags: int,
        block: bytes,
        targets_at: int,
        route_at: int,
        header_at: int,
        body_at: int,
        stop: int,
    ) -> Message:
        """Return the message of a record, and set the record's position in it. HOT."""
        route = block[route_at:header_at]
        envelope = self._envelopes.get(route)
        if envelope is None:
            envelope = self._envelope(route)
        header = block[header_at:body_at]
        known = self._last
        if known is None or known[0] != header:
            known = self._last = self._known(header)
        header, facts, charge = known
        message = Message(envelope, header, block[body_at:stop], charge + stop - body_at, facts, timestamp_ms)
        if route_at - targets_at > TARGET_BYTES and (due_ms := _due_ms(block[targets_at:route_at])):
            message = HeldMessage(message, due_ms)
        message.recorded(position, size)
        return message

    def _envelope(self, route: bytes) -> Envelope:
        exchange, key = route_names(route)
        envelope = Envelope(exchange, key, route)
        remember(self._envelopes, route, envelope, ENVELOPES_MAX)
        return envelope

    def _known(self, header: bytes) -> _Known:
        known = self._headers.get(header)
        if known is None:
            facts = facts_of(header)
            known = (header, facts, OVERHEAD_BYTES + len(header))
            if len(header) <= HEADER_MAX_BYTES and facts.mark is None:
                remember(self._headers, header, known, HEADERS_MAX)
        return known


def _due_ms(targets: bytes) -> int:
    """Return when a delayed message is due, from the targets of its record, or 0 if it is not delayed. A producer's
    number may precede the due time.
    """
    for at in (0, TARGET_BYTES):
        number, due_ms = TARGET.unpack_from(targets, at)
        if number == DUE:
            return int(due_ms)
    return 0


def total_charge(messages: Sequence[Message | None]) -> tuple[int, int]:
    """Return the total charge of the messages, in bytes, and how many of them are None."""
    charge = missing = 0
    for message in messages:
        if message is None:
            missing += 1
        else:
            charge += message.charge
    return charge, missing
