"""How bad a simulated network is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """What may happen to a packet while its link is up, as probabilities, and the delay of the link."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    least_delay_ms: int = 1
    most_delay_ms: int = 5
    capacity_packets: int = 1_000_000
    """Packets under way in one direction from which on the link is full, until half of them have arrived."""


NO_FAULTS = LinkFaults()
