"""The state of a leaf broker that outlives a crash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.overlay.packets import StreamName


@dataclass(frozen=True, slots=True)
class LeafState:
    """The state of a leaf that outlives its process.

    `time_bound` is above all virtual times that were ever sent, `start_points` those of the durable bindings, and
    `positions` the number of the last committed delivery of each stream. `crashed` says that its end was not orderly.
    """

    time_bound: int = 0
    start_points: Mapping[str, int] = field(default_factory=dict)
    positions: Mapping[StreamName, int] = field(default_factory=dict)
    crashed: bool = False
