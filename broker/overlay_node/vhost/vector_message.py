"""A change of the vector of a stream, as the message that stands for it in the stream queue."""

from __future__ import annotations

import json
from struct import Struct
from typing import Final

from broker.amqp.content_header import FLAG_OF
from broker.amqp.header_facts import plain_facts
from broker.core.message.message import OVERHEAD_BYTES, Envelope, Message
from broker.overlay.packets import Vector, VectorChange

__all__ = ["is_vector_change", "previous_change", "vector_change", "vector_message"]

VECTORS: Final = "amq.slotmq.vector"  # no exchange: the messages of clients never have it
ENVELOPE: Final = Envelope(VECTORS, "")
HEADER: Final = Struct(">HHQHB")  # class, weight, body size, flags, delivery mode
PERSISTENT_MODE: Final = 2


def vector_message(old: Vector, new: Vector, incarnation: int, previous: int, now_ms: int) -> Message:
    """Return the message of a change. Shapes: `previous` is the number of the change before it, 0 if there is none."""
    change = {"previous": previous, "old": dict(old), "new": dict(new), "incarnation": incarnation}
    body = json.dumps(change, separators=(",", ":")).encode()
    header = HEADER.pack(60, 0, len(body), FLAG_OF["delivery_mode"], PERSISTENT_MODE)
    facts = plain_facts(persistent=True, priority=0, expiration_ms=None)
    return Message(ENVELOPE, header, body, OVERHEAD_BYTES + len(header) + len(body), facts, now_ms)


def is_vector_change(message: Message) -> bool:
    """Return whether a message of a stream queue is a change of its vector."""
    return message.envelope.exchange == VECTORS


def vector_change(number: int, message: Message) -> VectorChange:
    """Return the change that a message stands for."""
    written = json.loads(message.body)
    return VectorChange(number, written["old"], written["new"], written["incarnation"])


def previous_change(message: Message) -> int:
    """Return the number of the change before this one, 0 if there is none."""
    return int(json.loads(message.body)["previous"])
