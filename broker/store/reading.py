"""Read the records of many messages with few calls: records that are neighbours in the log are read together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from struct import Struct
from typing import Final, Generic, TypeVar

from crc32c import crc32c
from mypy_extensions import mypyc_attr

from broker.store.queue_entry import Entries
from broker.store.record import (
    HEAD,
    HEAD_BYTES,
    INNER,
    KIND_AT,
    MESSAGE,
    MOVED,
    PREFIX_BYTES,
    TARGET,
    TARGET_BYTES,
)
from broker.store.segment import SPILLED

GAP_MAX_BYTES: Final = 16 * 1024  # a second call costs as much as reading this many more bytes from the page cache
SPAN_MAX_BYTES: Final = 4 * 1024 * 1024  # read by one call at most, except a single larger record
COPY_MAX_BYTES: Final = 4 * 1024  # copying this many bytes costs less than a view of them

_FRONT: Final = Struct(">QBBHIIQQ")  # as in `record`: from the timestamp in the head to the end of the first target
_FRONT_AT: Final = PREFIX_BYTES + 8
_ID_END: Final = HEAD_BYTES + TARGET_BYTES - 1  # the offset of the last octet of the first target's message id
_MESSAGE_MIN_BYTES: Final = HEAD_BYTES + TARGET_BYTES  # without a target, names and content header are as long as one
_MESSAGE_KINDS: Final = frozenset((MESSAGE, MOVED, MESSAGE | INNER, MOVED | INNER))
_Front = tuple[int, int, int, int, int, int, int, int]

T = TypeVar("T")


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageBuilder(Generic[T]):
    """A builder of messages from blocks that contain their records."""

    @abstractmethod
    def make(
        self,
        position: int,
        size: int,
        timestamp_ms: int,
        flags: int,
        block: bytes,
        targets_at: int,
        route_at: int,
        header_at: int,
        body_at: int,
        stop: int,
    ) -> T:
        """Return one message. HOT.

        Shapes: the record has `size` bytes at log position `position`. Its parts of variable width (targets, route,
            content header, body) follow each other in the block, from the offset `targets_at` to `stop`.
        """


def read_messages(
    read_span: Callable[[int, int], bytes],
    queue_number: int,
    first: int,
    entries: Entries,
    wanted: Sequence[int],
    builder: MessageBuilder[T],
    report: Callable[[int, int], None],
) -> list[T | None]:
    """Return the wanted messages of a slot; index 0 is id `first`; unwanted and missing ones are None.

    Shapes: `report` is called with (position, index) of each wanted message whose record is missing or damaged.
    Cost: one read per run of neighbours; per message a checksum, and a call of the builder. The bytes between the
        checksum and the last octet of the id are unpacked once for neighbours that share them. HOT.
    """
    positions, sizes = entries
    messages: list[T | None] = [None] * len(positions)
    unpack_front, checksum_of = _FRONT.unpack_from, crc32c
    known = b""
    is_message = is_first = False
    timestamp_ms = flags = route_bytes = header_bytes = targets_bytes = id_block = 0
    for begin, end, indexes in _spans(positions, sizes, wanted):
        block = read_span(begin, end - begin)
        view = memoryview(block)
        have = len(block)
        for index in indexes:
            position = positions[index]
            size = sizes[index]
            at = position - begin
            stop = at + size
            if size < _MESSAGE_MIN_BYTES or stop > have:
                report(position, index)
                continue
            content_at = at + PREFIX_BYTES
            front = block[content_at : at + _ID_END]
            if front != known:
                known = front
                fields: _Front = unpack_front(block, at + _FRONT_AT)
                timestamp_ms, kind, flags, route_bytes, header_bytes, targets_bytes, number, one = fields
                is_message = kind in _MESSAGE_KINDS
                is_first = number == queue_number and targets_bytes >= TARGET_BYTES
                id_block = one >> 8
            length = block[at] << 24 | block[at + 1] << 16 | block[at + 2] << 8 | block[at + 3]
            checksum = block[at + 4] << 24 | block[at + 5] << 16 | block[at + 6] << 8 | block[at + 7]
            content = block[content_at:stop] if size <= COPY_MAX_BYTES else view[content_at:stop]
            targets_at = at + HEAD_BYTES
            route_at = targets_at + targets_bytes
            header_at = route_at + route_bytes
            body_at = header_at + header_bytes
            message_id = first + index
            if (
                length + PREFIX_BYTES != size
                or checksum != checksum_of(content)
                or not is_message
                or body_at > stop
                or (
                    not (is_first and id_block == message_id >> 8 and block[at + _ID_END] == message_id & 0xFF)
                    and not _may_be(block[targets_at:route_at], queue_number, message_id, spilled=position >= SPILLED)
                )
            ):
                report(position, index)
                continue
            messages[index] = builder.make(
                position, size, timestamp_ms, flags, block, targets_at, route_at, header_at, body_at, stop
            )
    return messages


def is_record_of(record: bytes, queue_number: int, message_id: int) -> bool:
    """Return whether an intact record is a message's, and names the given message among its targets."""
    targets_end = HEAD_BYTES + HEAD.unpack_from(record)[8]
    targets = record[HEAD_BYTES:targets_end]
    return (
        record[KIND_AT] in _MESSAGE_KINDS
        and len(targets) % TARGET_BYTES == 0
        and (queue_number, message_id) in TARGET.iter_unpack(targets)
    )


def _may_be(targets: bytes, queue_number: int, message_id: int, *, spilled: bool) -> bool:
    """Return whether a record may belong to a message: its targets name it, or, in the spill, they omit the queue.

    The spill keeps one record of a message for all its queues, which names only the first queue that needed it.
    """
    if len(targets) % TARGET_BYTES:
        return False
    found = [number for number, one in TARGET.iter_unpack(targets) if number == queue_number and one == message_id]
    return bool(found) or (spilled and all(number != queue_number for number, _ in TARGET.iter_unpack(targets)))


def _in_log_order(positions: list[int], wanted: Sequence[int]) -> Sequence[int]:
    """Return the wanted indexes in the order of their positions, which is usually the given order."""
    if len(wanted) == len(positions) and positions == sorted(positions):
        return wanted
    before = 0
    for index in wanted:
        position = positions[index]
        if position < before:
            return sorted(wanted, key=positions.__getitem__)
        before = position
    return wanted


def _spans(positions: list[int], sizes: list[int], wanted: Sequence[int]) -> list[tuple[int, int, Sequence[int]]]:
    """Return (begin, end, indexes) of each read, in the order of the log."""
    spans: list[tuple[int, int, Sequence[int]]] = []
    if not wanted:
        return spans
    indexes = _in_log_order(positions, wanted)
    begin = end = positions[indexes[0]]
    last = indexes[-1]
    extent_bytes = positions[last] + sizes[last] - begin
    if len(indexes) == len(sizes) and sum(sizes) == extent_bytes <= SPAN_MAX_BYTES:  # no gap
        return [(begin, begin + extent_bytes, indexes)]
    start = 0
    for place, index in enumerate(indexes):
        position = positions[index]
        after = position + sizes[index]
        if position - end > GAP_MAX_BYTES or (after - begin > SPAN_MAX_BYTES and place > start):
            spans.append((begin, end, indexes[start:place]))
            begin = end = position
            start = place
        if after > end:
            end = after
    spans.append((begin, end, indexes[start:] if start else indexes))
    return spans


def read_places(
    read_span: Callable[[int, int], bytes], wanted: Iterable[tuple[int, int, T]]
) -> Iterator[tuple[int, bytes, T]]:
    """Yield (position, bytes, tag) for each wanted place, unchecked, in the order of the log.

    Shapes: `wanted` yields (position, size, tag), with any tag; read_span(position, size) returns fewer bytes at the
        end of a segment, so the bytes of a place there may be fewer than its size.
    Cost: one read per run of neighbours, including short gaps.
    """
    places = sorted(wanted, key=itemgetter(0))
    positions, sizes = [position for position, _, _ in places], [size for _, size, _ in places]
    for begin, end, indexes in _spans(positions, sizes, range(len(places))):
        block = read_span(begin, end - begin)
        for index in indexes:
            position, size, tag = places[index]
            yield position, block[position - begin : position - begin + size], tag
