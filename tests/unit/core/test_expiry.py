"""Expiry: only messages that may expire are checked."""

from __future__ import annotations

import pytest

from broker.amqp.content_header import HeaderFacts
from broker.core.message.message import Envelope, Message
from broker.core.queue.expiry import expired_among


def message(expiration_ms: int | None) -> Message:
    """Return a message that was accepted at 100 ms."""
    facts = HeaderFacts(False, 0, expiration_ms)
    return Message(Envelope("x", "k"), b"header", b"body", 1, facts, 100)


CONTENTS = [message(None), message(5), None, message(50), message(1)]


@pytest.mark.parametrize(
    ("ttl_ms", "indexes", "asked", "expired"),
    [(None, range(5), [5, 50, 1], [1, 4]), (None, [0, 3], [50], []), (9, [0, 1, 2], [None, 5], [1])],
)
def test_what_never_expires_is_not_asked(
    ttl_ms: int | None, indexes: list[int], asked: list[int | None], expired: list[int]
) -> None:
    """A message without TTL and expiration costs no call; a message is kept at the very time it is due."""
    calls = []

    def expires_ms(one: Message) -> int | None:
        own_ms = one.facts.expiration_ms
        calls.append(own_ms)
        return 106 if own_ms is None else 100 + own_ms

    assert expired_among(CONTENTS, indexes, ttl_ms, expires_ms, 106) == expired
    assert calls == asked
