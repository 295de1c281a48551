"""How often a message of a quorum queue came back before, as its headers tell it."""

from __future__ import annotations

from typing import Final

from broker.amqp.header_edit import edit_header

__all__ = ["with_delivery_count"]

DELIVERY_COUNT: Final = "x-delivery-count"
ACQUIRED_COUNT: Final = "x-acquired-count"


def with_delivery_count(header: bytes, count: int) -> bytes:
    """Return a content header that tells the count; the first delivery has none.

    Both headers say the same here: whatever comes back counts for the delivery limit. In RabbitMQ 4.3 a message that
    was returned with basic.nack counts as acquired alone.
    """
    return edit_header(header, set_headers={ACQUIRED_COUNT: count, DELIVERY_COUNT: count}) if count else header
