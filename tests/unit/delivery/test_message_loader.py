"""MessageLoader: messages read from disk share equal parts and know their records."""

from __future__ import annotations

from broker.core.message.message import OVERHEAD_BYTES, Message
from broker.delivery.message_loader import ENVELOPES_MAX, MessageLoader, total_charge
from broker.store.record import encode_route

HEADER = bytes.fromhex("003c 0000 0000000000000004 0000")  # class basic, four bytes of body, no properties
OTHER = bytes.fromhex("003c 0000 0000000000000004 1000 02")  # the same, but persistent
BODY = b"body"


def revive(revival: MessageLoader, key: str, header: bytes = HEADER, position: int = 7) -> Message:
    """Return a message that is read from a block with other octets before it."""
    route = encode_route("x", key)
    block = b"before" + bytes(16) + route + header + BODY + b"behind"
    route_at = 6 + 16
    header_at = route_at + len(route)
    body_at = header_at + len(header)
    return revival.make(position, len(block), 5, 1, block, 6, route_at, header_at, body_at, body_at + len(BODY))


def test_a_message_is_what_was_written() -> None:
    """Every part of a message is read from its own place, without neighbouring octets."""
    message = revive(MessageLoader(), "a.b", OTHER, position=1 << 63 | 64)
    envelope = message.envelope
    assert (envelope.exchange, envelope.key, envelope.route) == ("x", "a.b", encode_route("x", "a.b"))
    assert (message.header, message.body, message.timestamp_ms) == (OTHER, BODY, 5)
    assert (message.position, message.record_bytes) == (1 << 63 | 64, 6 + 16 + 6 + len(OTHER) + 4 + 6)
    assert message.facts.persistent
    assert message.charge == OVERHEAD_BYTES + len(OTHER) + len(BODY)


def test_routes_that_take_turns_are_made_once() -> None:
    """Ten thousand routes in rotation have one envelope each: a smaller cache would never hit."""
    revival = MessageLoader()
    keys = [f"key.{number}" for number in range(10_000)]
    first = [revive(revival, key).envelope for key in keys]
    second = [revive(revival, key).envelope for key in keys]
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_headers_are_shared_and_told_apart() -> None:
    """Alternating headers are each read as their own, with one object per header."""
    revival = MessageLoader()
    messages = [revive(revival, "k", header) for header in (HEADER, OTHER, HEADER, OTHER)]
    assert [message.header for message in messages] == [HEADER, OTHER, HEADER, OTHER]
    assert messages[0].header is messages[2].header
    assert messages[1].facts is messages[3].facts


def test_ever_new_routes_do_not_fill_the_memory() -> None:
    """The number of cached envelopes is limited, and messages beyond the limit are still right."""
    revival = MessageLoader()
    first = revive(revival, "key.0").envelope
    for number in range(1, ENVELOPES_MAX + 1):
        assert revive(revival, f"key.{number}").envelope.key == f"key.{number}"
    assert revive(revival, "key.0").envelope is not first


def test_messages_are_weighed() -> None:
    """Messages in memory are charged, and messages on disk are counted."""
    messages = [revive(MessageLoader(), "k"), None, revive(MessageLoader(), "k", OTHER), None]
    assert total_charge(messages) == (2 * OVERHEAD_BYTES + len(HEADER) + len(OTHER) + 2 * len(BODY), 2)
