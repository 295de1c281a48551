"""The streams of the leaf of this process, in all vhosts: the storage interface of the overlay's logic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker.overlay.packets import Space, Vector, VectorChange
from broker.overlay.stream_log import LogPart
from broker.overlay_node.vhost.exchange_log import ExchangeLog


class LeafLog:
    """The StreamLog of the leaf.

    A stream ends with its vhost: its numbers are unwanted from then on, and nothing is kept for it.
    """

    def __init__(self, appended: Callable[[Space], None]) -> None:
        """Call `appended` for each vector that is appended to a stream."""
        self._appended = appended
        self._streams: dict[Space, ExchangeLog] = {}
        self._durable: dict[Space, int] = {}
        self._ended: dict[Space, int] = {}

    def open(self, space: Space, stream: ExchangeLog) -> None:
        """Open a stream whose vectors are known; all its elements are durable."""
        self._streams[space] = stream
        self._durable[space] = max(stream.last, self._ended.pop(space, 0))

    def close(self, space: Space) -> None:
        """End a stream: its vhost is deleted."""
        stream = self._streams.pop(space, None)
        if stream is not None:
            stream.before_next(None)
            self._ended[space] = self._durable.pop(space)

    def stream(self, space: Space) -> ExchangeLog | None:
        """Return a stream that is open."""
        return self._streams.get(space)

    def became_durable(self, space: Space, upto: int) -> None:
        """Note that a stream is on disk up to a number."""
        if space in self._durable:
            self._durable[space] = max(self._durable[space], upto)

    # -- calls of the logic ------------------------------------------------------------------------------------------

    def spaces(self) -> Iterable[Space]:
        """Return the spaces whose stream is open."""
        return list(self._streams)

    def last(self, space: Space) -> int:
        """Return the highest durable number."""
        return self._durable[space] if space in self._durable else self._ended.get(space, 0)

    def trimmed(self, space: Space) -> int:
        """Return the number up to which elements are trimmed."""
        stream = self._streams.get(space)
        return self._ended.get(space, 0) if stream is None else stream.trimmed

    def lost(self, space: Space) -> int:
        """Return the number up to which elements may have been dropped before all leaves had them."""
        stream = self._streams.get(space)
        return 0 if stream is None else stream.lost_upto

    def vectors(self, space: Space) -> Sequence[VectorChange]:
        """Return the stored changes of the vector in order."""
        stream = self._streams.get(space)
        return () if stream is None else stream.changes

    def read(self, space: Space, first: int, last: int, limit_bytes: int) -> LogPart | None:
        """Return elements from `first` on, None while they are read from disk."""
        stream = self._streams.get(space)
        if stream is None:
            return LogPart(last, ())
        found = stream.read(first, last, limit_bytes)
        return None if found is None else LogPart(found.upto, tuple(found.elements))

    def append_vector(self, space: Space, old: Vector, new: Vector, incarnation: int) -> int:
        """Append a change of the vector and return its number."""
        stream = self._streams.get(space)
        if stream is None:
            self._ended[space] = self._ended.get(space, 0) + 1
            return self._ended[space]
        number = stream.append_vector(old, new, incarnation)
        self._appended(space)
        return number

    def before_next(self, space: Space, call: Callable[[], None] | None) -> None:
        """Call a function once right before the next message of a stream, or none any more."""
        stream = self._streams.get(space)
        if stream is not None:
            stream.before_next(call)

    def trim(self, space: Space, upto: int) -> None:
        """Drop all elements up to a number, except the last vector change among them."""
        stream = self._streams.get(space)
        if stream is not None:
            stream.trim(upto)

    def mark_lost(self, space: Space, upto: int) -> None:
        """Note durably that elements up to a number are dropped before all leaves had them."""
        stream = self._streams.get(space)
        if stream is not None:
            stream.mark_lost(upto)
