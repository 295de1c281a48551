"""The periods of the overlay, in milliseconds, and its limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """How often, how late and how much."""

    silence_ms: int = 100
    """The longest time that an inner broker keeps a silence to itself."""

    ack_ms: int = 100
    stall_ms: int = 400
    """How long acks may stand still before the publishing leaf sends the stream over another broker of the node, and
    says on all links how far it has got."""

    tip_ms: int = 1_000
    """How often it says so again."""

    avoid_ms: int = 10_000
    """How long it stays away from the brokers over which the acks stood still."""

    vector_ms: int = 100
    """The shortest time between two vector changes of a stream, so that many bindings at once cost few of them."""

    vector_idle_ms: int = 30_000
    """How long a vector change waits for a message."""

    forget_ms: int = 10_000
    """How often an inner broker looks for streams that were idle since the last look and that nobody needs."""

    run_bytes: int = 65_536
    window_bytes: int = 4_194_304
    """The most that is on its way to a leaf in answer to its questions, all streams together."""

    burst_runs: int = 16
    """The most runs of a stream between two polls of the output."""

    waiting_bytes: int = 16_777_216
    """The most that all sinks of a leaf keep out of order."""
