"""Reading many records with few calls: neighbours in the log are fetched together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from broker.store.record import is_whole

__all__ = ["read_places", "read_records"]

GAP_MAX_BYTES: Final = 16 * 1024  # a second call costs about as much as reading so much more from the page cache
SPAN_MAX_BYTES: Final = 4 * 1024 * 1024  # what one call holds in memory

T = TypeVar("T")


def read_records(
    read_span: Callable[[int, int], bytes], wanted: Iterable[tuple[int, int, T]]
) -> Iterator[tuple[int, bytes | None, T]]:
    """Yields (position, record, what came with it) for each wanted record, in the order of the log.

    Shapes: wanted holds (position, size, anything); read_span(position, size) gives fewer bytes at the end of a
        segment. The record is None when the bytes there are no whole record.
    Cost: one call per run of neighbours, a checksum per record.
    """
    sized = ((position, size, (size, extra)) for position, size, extra in wanted)
    for position, record, (size, extra) in read_places(read_span, sized):
        yield position, (record if len(record) == size and is_whole(record) else None), extra


def read_places(
    read_span: Callable[[int, int], bytes], wanted: Iterable[tuple[int, int, T]]
) -> Iterator[tuple[int, bytes, T]]:
    """Yields (position, bytes, what came with it) for each wanted place, unchecked, in the order of the log.

    Shapes: as for `read_records`; there are fewer bytes at the end of a segment.
    Cost: one call per run of neighbours; what lies in a short gap is read along, a long one is not.
    """
    span: list[tuple[int, int, T]] = []
    begin = end = 0
    for item in sorted(wanted, key=_position):
        position, size, _ = item
        if span and (position - end > GAP_MAX_BYTES or position + size - begin > SPAN_MAX_BYTES):
            yield from _split(read_span(begin, end - begin), begin, span)
            span = []
        if not span:
            begin = end = position
        span.append(item)
        end = max(end, position + size)
    if span:
        yield from _split(read_span(begin, end - begin), begin, span)


def _position(item: tuple[int, int, object]) -> int:
    return item[0]


def _split(block: bytes, begin: int, span: list[tuple[int, int, T]]) -> Iterator[tuple[int, bytes, T]]:
    for position, size, extra in span:
        yield position, block[position - begin : position - begin + size], extra
