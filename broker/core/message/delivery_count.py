"""The headers that tell how often a message of a quorum queue was returned."""

from __future__ import annotations

from typing import Final

from broker.amqp.header_edit import edit_header

__all__ = ["with_delivery_count"]

DELIVERY_COUNT: Final = "x-delivery-count"
ACQUIRED_COUNT: Final = "x-acquired-count"


def with_delivery_count(header: bytes, count: int) -> bytes:
    """Return a content header with the count; the first delivery has none.

    Both headers are equal here: every return counts towards the delivery limit. In RabbitMQ 4.3 a return by basic.nack
    counts as acquired only.
    """
    return edit_header(header, set_headers={ACQUIRED_COUNT: count, DELIVERY_COUNT: count}) if count else header
