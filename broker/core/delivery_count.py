"""The header x-delivery-count: how often a message of a quorum queue came back before."""

from __future__ import annotations

from typing import Final

from broker.amqp.header_edit import edit_header

__all__ = ["with_delivery_count"]

HEADER: Final = "x-delivery-count"


def with_delivery_count(header: bytes, count: int) -> bytes:
    """Returns a content header that tells the count; the first delivery has none (RabbitMQ, rabbit_quorum_queue)."""
    return edit_header(header, set_headers={HEADER: count}) if count else header
