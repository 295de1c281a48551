"""Reading many records with few calls: neighbours in the log are fetched together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, TypeVar

from crc32c import crc32c

from broker.store.record import (
    HEAD_BYTES,
    INNER,
    MESSAGE,
    MOVED,
    PREFIX_BYTES,
    TARGET,
    TARGET_BYTES,
    StoredMessage,
    is_whole,
)

__all__ = ["Make", "StoredMessages", "read_messages", "read_places", "read_records", "route_names"]

GAP_MAX_BYTES: Final = 16 * 1024  # a second call costs about as much as reading so much more from the page cache
SPAN_MAX_BYTES: Final = 4 * 1024 * 1024  # what one call holds in memory

_MESSAGE_HEAD: Final = Struct(">II8xQBBHII")  # of `record`, without what the log had synced
_MESSAGE_KINDS: Final = frozenset((MESSAGE, MOVED, MESSAGE | INNER, MOVED | INNER))

T = TypeVar("T")
Entry = tuple[int, int]
Make = Callable[[Entry, int, int, bytes, bytes, bytes, bytes], T]
"""Makes one message: of its entry, timestamp, flags, targets, route, content header and body."""


class StoredMessages:
    """Makes messages as the log has them; neighbours share few routes, and their names."""

    __slots__ = ("_routes",)

    def __init__(self) -> None:
        self._routes: dict[bytes, tuple[str, str]] = {}

    def make(
        self, entry: Entry, timestamp_ms: int, flags: int, targets: bytes, route: bytes, header: bytes, body: bytes
    ) -> StoredMessage:
        """Returns one message."""
        names = self._routes.get(route)
        if names is None:
            names = self._routes[route] = route_names(route)
        return StoredMessage(entry[0], entry[1], timestamp_ms, flags, route, names, header, body, targets)


def route_names(route: bytes) -> tuple[str, str]:
    """Returns the exchange and the routing key of a record's route."""
    key_at = 1 + route[0]
    return route[1:key_at].decode(), route[key_at + 1 :].decode()


def read_messages(
    read_span: Callable[[int, int], bytes],
    queue_number: int,
    first: int,
    entries: Sequence[Entry],
    wanted: Iterable[int],
    make: Make[T],
    report: Callable[[int, int], None],
) -> list[T | None]:
    """Returns the wanted messages of a slot; index 0 is id `first`, None is what was not wanted or is not there.

    Shapes: report(position, index) hears of each that is no whole record of that message.
    Cost: one call per run of neighbours; per message an unpacking, a checksum and four slices, no object beside it.
    """
    messages: list[T | None] = [None] * len(entries)
    unpack, pack_target = _MESSAGE_HEAD.unpack_from, TARGET.pack
    for begin, end, indexes in _spans(entries, wanted):
        block = read_span(begin, end - begin)
        view = memoryview(block)
        have = len(block)
        for index in indexes:
            entry = entries[index]
            position, size = entry
            at = position - begin
            stop = at + size
            if size < HEAD_BYTES or stop > have:
                report(position, index)
                continue
            length, checksum, timestamp_ms, kind, flags, route_bytes, header_bytes, targets_bytes = unpack(block, at)
            targets_at = at + HEAD_BYTES
            route_at = targets_at + targets_bytes
            header_at = route_at + route_bytes
            body_at = header_at + header_bytes
            if (
                length + PREFIX_BYTES != size
                or crc32c(view[at + PREFIX_BYTES : stop]) != checksum
                or kind not in _MESSAGE_KINDS
                or body_at > stop
            ):
                report(position, index)
                continue
            targets = block[targets_at:route_at]
            if targets != pack_target(queue_number, first + index) and not _holds(targets, queue_number, first + index):
                report(position, index)
                continue
            messages[index] = make(
                entry,
                timestamp_ms,
                flags,
                targets,
                block[route_at:header_at],
                block[header_at:body_at],
                block[body_at:stop],
            )
    return messages


def _holds(targets: bytes, queue_number: int, message_id: int) -> bool:
    """Tells whether a record may be that of a message: it names it, or it does not know the queue (a transient one)."""
    if len(targets) % TARGET_BYTES:
        return False
    found = [number for number, one in TARGET.iter_unpack(targets) if number == queue_number and one == message_id]
    return bool(found) or all(number != queue_number for number, _ in TARGET.iter_unpack(targets))


def _spans(entries: Sequence[Entry], wanted: Iterable[int]) -> Iterator[tuple[int, int, list[int]]]:
    """Yields (begin, end, indexes) of what is to be read with one call each, in the order of the log."""
    positions = [position for position, _ in entries]
    indexes = sorted(wanted, key=positions.__getitem__)
    if not indexes:
        return
    begin = end = positions[indexes[0]]
    start = 0
    for place, index in enumerate(indexes):
        position, size = entries[index]
        if position - end > GAP_MAX_BYTES or (position + size - begin > SPAN_MAX_BYTES and place > start):
            yield begin, end, indexes[start:place]
            begin = end = position
            start = place
        if position + size > end:
            end = position + size
    yield begin, end, indexes[start:]


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
