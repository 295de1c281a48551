"""A run of publishes, as they are cut out of the received bytes."""

from __future__ import annotations

from typing import Final

__all__ = ["RUN_MAX", "RUN_OF_PUBLISHES", "PublishRun"]

RUN_OF_PUBLISHES: Final = 256
"""The pseudo frame type of a run; a type on the wire is an octet."""
RUN_MAX: Final = 256
"""Publishes in a run; the caller checks its limits between two runs."""


class PublishRun:
    """Consecutive complete publishes of one channel, all with equal properties.

    Shapes: one payload, header and body per publish. A header is the payload of a content header frame of class basic;
        bodies of equal size share one header object. No body is empty. The first payload is checked to be a publish;
        the others only have content frames behind them, so the caller checks payloads that it does not know.
    """

    __slots__ = ("at", "bodies", "headers", "largest_bytes", "payloads")

    def __init__(self, at: int, payloads: list[bytes], headers: list[bytes], bodies: list[bytes], largest: int) -> None:
        """Shapes: `at` is where its first frame stood, for the cutter."""
        self.at = at
        self.payloads = payloads
        self.headers = headers
        self.bodies = bodies
        self.largest_bytes = largest
