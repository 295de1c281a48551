"""The port to the storage of a publishing leaf's streams, and the state of the leaf that outlives a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.overlay.packets import Element, Space, StreamName, Vector, VectorChange


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
    """The streams of one leaf, each a queue with dense numbers from 1.

    Numbers up to `trimmed` are gone, but for the last vector change among them: it is the vector of what follows.
    """

    def spaces(self) -> Iterable[Space]:
        """Return the spaces whose exchange exists here."""
        ...

    def last(self, space: Space) -> int:
        """Return the highest durable number, 0 if there is none."""
        ...

    def trimmed(self, space: Space) -> int:
        """Return the number up to which `trim` or a limit has dropped elements."""
        ...

    def lost(self, space: Space) -> int:
        """Return the number up to which elements may have gone before all leaves had them; kept over a restart."""
        ...

    def vectors(self, space: Space) -> Sequence[VectorChange]:
        """Return the stored vector changes in order. Called once, when the stream is opened."""
        ...

    def read(self, space: Space, first: int, last: int, limit_bytes: int) -> LogPart | None:
        """Return elements from `first` on, at least one number; None if it must be asked again later."""
        ...

    def append_vector(self, space: Space, old: Vector, new: Vector, incarnation: int) -> int:
        """Append a vector change and return its number; `Leaf.stream_grew` follows once it is durable."""
        ...

    def before_next(self, space: Space, call: Callable[[], None] | None) -> None:
        """Call a function once right before the next element of a stream gets its number, or none any more."""
        ...

    def trim(self, space: Space, upto: int) -> None:
        """Drop all elements up to a number, except the last vector change among them."""
        ...

    def mark_lost(self, space: Space, upto: int) -> None:
        """Note durably that elements up to a number go before all leaves had them."""
        ...
