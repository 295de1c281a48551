"""Deduplication: index the messages of a queue by the value of their header x-deduplication-header.

Source: the plugin rabbitmq-message-deduplication.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import Any, Final

from broker.amqp.content_header import HeaderFields
from broker.core.message.message import Message
from broker.routing.fanout_exchange import DEDUPLICATION_HEADER
from broker.slots.slot import Slot
from broker.slots.states import Tenure

_OCTETS: Final = bytes([len(DEDUPLICATION_HEADER)]) + DEDUPLICATION_HEADER.encode()
CHECKS_MAX: Final = 64  # when an entry is added, at most this many others are checked
CURRENT_MAX: Final = 2  # the check ends after this many entries that are still needed

_Entry = tuple[Slot, int, int | None]


def value_digest(value: Any) -> bytes:
    """Return a 16-octet digest of a header value and its type."""
    return blake2b(f"{type(value).__name__} {value!r}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def value_of(message: Message) -> Any:
    """Return the value of a message's deduplication header, or None if it has none."""
    return HeaderFields(message.header).headers.get(DEDUPLICATION_HEADER) if _OCTETS in message.header else None


def digest_of(message: Message) -> bytes | None:
    """Return the digest of a message's deduplication header, or None if it has none."""
    value = value_of(message)
    return None if value is None else value_digest(value)


class Duplicates:
    """Store the slot and index of the message with each value of the header. The slot shows whether the message is
    still ready or unacked, so nothing has to be done when a message leaves the queue.
    Units: ``dropped`` counts messages that were not accepted because they were duplicates.
    Invariant: ``_order`` contains each key of ``_entries`` once.
    Cost: some 250 bytes for each entry.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, _Entry] = {}
        self._order: deque[bytes] = deque()
        self.dropped = 0

    def knows(self, digest: bytes, now_ms: int) -> bool:
        """Return whether a message with this value is in the queue and has not expired."""
        entry = self._entries.get(digest)
        return entry is not None and _waits(entry, now_ms)

    def stops(self, digest: bytes, now_ms: int) -> bool:
        """Return whether the queue has a message with this value; if so, count the new message as dropped."""
        stops = self.knows(digest, now_ms)
        self.dropped += stops
        return stops

    def note(self, digest: bytes, slot: Slot, index: int, expires_ms: int | None, now_ms: int) -> None:
        """Record the slot and index of a message that the queue has accepted, and remove some outdated entries."""
        entries, order = self._entries, self._order
        current = 0
        for _ in range(min(CHECKS_MAX, len(order))):
            known = order.popleft()
            if _waits(entries[known], now_ms):
                order.append(known)
                current += 1
                if current == CURRENT_MAX:
                    break
            else:
                del entries[known]
        if digest not in entries:
            order.append(digest)
        entries[digest] = (slot, index, expires_ms)


def _waits(entry: _Entry, now_ms: int) -> bool:
    slot, index, expires_ms = entry
    return slot.tenure is not Tenure.DELETED and index not in slot.acks and (expires_ms is None or expires_ms > now_ms)
