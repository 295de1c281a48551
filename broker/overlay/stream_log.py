"""The port to the storage of a stream at its publishing leaf, and the state of the leaf that outlives a crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.overlay.packets import Element, StreamName, Vector, VectorChange


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


@dataclass(frozen=True, slots=True)
class LogPart:
    """What is stored of the numbers from the one that was asked for up to `last`; all others there are gone."""

    last: int
    elements: tuple[Element, ...]


class StreamLog(Protocol):
    """One stream of a leaf, a queue with dense numbers from 1.

    Numbers up to `trimmed` are gone, but for the last vector change among them: it is the vector of what follows.
    """

    @property
    def durable(self) -> int:
        """The highest durable number, 0 if there is none."""
        ...

    @property
    def trimmed(self) -> int:
        """The number up to which `trim` or a limit has dropped elements."""
        ...

    @property
    def lost(self) -> int:
        """The number up to which elements may have gone before all leaves had them; kept over a restart."""
        ...

    @property
    def changes(self) -> Sequence[VectorChange]:
        """The stored vector changes in order. Read once, when the stream is opened."""
        ...

    def read(self, first: int, last: int, limit_bytes: int) -> LogPart | None:
        """Return elements from `first` on, at least one number; None if it must be asked again later."""
        ...

    def append_vector(self, old: Vector, new: Vector, incarnation: int) -> int:
        """Append a vector change and return its number; `Leaf.stream_grew` follows once it is durable."""
        ...

    def before_next(self, call: Callable[[], None] | None) -> None:
        """Call a function once right before the next element of the stream gets its number, or none any more."""
        ...

    def trim(self, upto: int) -> None:
        """Drop all elements up to a number, except the last vector change among them."""
        ...

    def mark_lost(self, upto: int) -> None:
        """Note durably that elements up to a number go before all leaves had them."""
        ...
