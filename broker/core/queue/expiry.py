"""Which messages have expired: a look at each that is handed out by a queue in which some message may (step 11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.core.message.message import Message

__all__ = ["expired_among"]


def expired_among(
    contents: Sequence[Message | None],
    indexes: Sequence[int],
    ttl_ms: int | None,
    expires_ms: Callable[[Message], int | None],
    now_ms: int,
) -> list[int]:
    """Return the indexes of those of a slot's messages that expired before `now_ms`. HOT.

    Shapes: ``expires_ms`` tells the moment for a message that has an expiration, or that lies in a queue with a
        `ttl_ms`; no other is asked about.
    """
    expired: list[int] = []
    for index in indexes:
        message = contents[index]
        if message is not None and (ttl_ms is not None or message.facts.expiration_ms is not None):
            at_ms = expires_ms(message)
            if at_ms is not None and at_ms < now_ms:
                expired.append(index)
    return expired
