"""The headers that tell how often a message of a quorum queue was returned."""

from __future__ import annotations

from typing import Final

from broker.amqp.header_edit import edit_header

__all__ = ["with_delivery_count"]

DELIVERY_COUNT: Final = "x-delivery-count"
ACQUIRED_COUNT: Final = "x-acquired-count"


def with_delivery_count(header: bytes, acquired: int, delivered: int) -> bytes:
    """Return a content header with how often the message came back, and how many of these deliveries failed.

    Source: RabbitMQ 4.3: a count of 0 has no header.
    """
    if not acquired:
        return header
    counts = {ACQUIRED_COUNT: acquired}
    if delivered:
        counts[DELIVERY_COUNT] = delivered
    return edit_header(header, set_headers=counts)
