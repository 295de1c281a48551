"""Envelopes of the messages that the broker itself publishes, made once per exchange and routing key."""

from __future__ import annotations

from typing import Final

from broker.core.message.message import Envelope

__all__ = ["EnvelopeCache"]

ENVELOPES_MAX: Final = 1024


class EnvelopeCache:
    """Keeps the envelopes of one publisher inside the broker. Invariant: at most 1,024 of them."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Envelope] = {}

    def of(self, exchange: str, key: str) -> Envelope:
        """Return the envelope of an exchange and a routing key."""
        envelope = self._known.get((exchange, key))
        if envelope is None:
            if len(self._known) >= ENVELOPES_MAX:
                self._known.clear()
            envelope = self._known[exchange, key] = Envelope(exchange, key)
        return envelope
