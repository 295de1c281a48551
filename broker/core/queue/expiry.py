"""Find the expired messages at the head of a queue, and among those being delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.core.message.message import Message

__all__ = ["expired_among", "expired_first"]


def expired_first(
    contents: Sequence[Message | None],
    indexes: Sequence[int],
    expires_ms: Callable[[Message], int | None],
    now_ms: int,
) -> int:
    """Return how many messages have expired before the first that has not."""
    for count, index in enumerate(indexes):
        message = contents[index]
        at_ms = None if message is None else expires_ms(message)
        if at_ms is None or at_ms > now_ms:
            return count
    return len(indexes)


def expired_among(
    contents: Sequence[Message | None],
    indexes: Sequence[int],
    ttl_ms: int | None,
    expires_ms: Callable[[Message], int | None],
    now_ms: int,
) -> list[int]:
    """Return the indexes of a slot's messages that expired before `now_ms`. HOT.

    Shapes: ``expires_ms`` is called for messages that have an expiration, and for all messages of a queue with a
        `ttl_ms`.
    """
    expired: list[int] = []
    for index in indexes:
        message = contents[index]
        if message is not None and (ttl_ms is not None or message.facts.expiration_ms is not None):
            at_ms = expires_ms(message)
            if at_ms is not None and at_ms < now_ms:
                expired.append(index)
    return expired
