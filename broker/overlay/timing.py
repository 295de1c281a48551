"""The periods of the overlay, in milliseconds, and its limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """The periods and limits of one broker of an overlay."""

    silence_ms: int = 100
    """The longest time that an inner broker delays the announcement of unwanted numbers."""

    ack_ms: int = 100
    stall_ms: int = 400
    """How long acks may make no progress before the publishing leaf sends the stream through another broker of the
    node, and announces its position on all links."""

    tip_ms: int = 1_000
    """How often it repeats that announcement."""

    avoid_ms: int = 10_000
    """How long it avoids brokers through which acks made no progress."""

    vector_ms: int = 100
    """The shortest time between two vector changes of a stream, so that many new bindings share one change."""

    vector_idle_ms: int = 30_000
    """How long a vector change waits for a message."""

    forget_ms: int = 10_000
    """How often an inner broker forgets streams that were idle since the last check and that nobody needs."""

    run_bytes: int = 65_536
    window_bytes: int = 4_194_304
    """The most bytes in flight to a leaf in answer to its requests, over all streams."""

    burst_runs: int = 16
    """The most runs of a stream between two polls of the output."""

    waiting_bytes: int = 16_777_216
    """The most bytes that all sinks of a leaf hold out of order."""
