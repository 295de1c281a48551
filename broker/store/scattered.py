"""Scattered messages: choose the spans of entries to read for messages anywhere in a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from broker.store.queue_entry import Entries

__all__ = ["spans_within"]

NEAR_IDS: Final = 64  # a gap of so many entries is read along


def spans_within(
    read: Callable[[int, int], Entries], ids: Sequence[int], limit_bytes: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (first id, end, wanted indexes) of the spans of the first `ids`, up to `limit_bytes`, at least one id.

    Shapes: read(first, end) returns the entries of a span.
    Cost: one read of entries per span; no message is read.
    """
    spans: list[list[int]] = []
    for message_id in sorted(ids):
        if spans and message_id - spans[-1][-1] <= NEAR_IDS:
            spans[-1].append(message_id)
        else:
            spans.append([message_id])
    sizes: dict[int, int] = {}
    for span in spans:
        lengths = read(span[0], span[-1] + 1)[1]
        sizes.update((message_id, lengths[message_id - span[0]]) for message_id in span)
    chosen: set[int] = set()
    for message_id in ids:
        limit_bytes -= sizes[message_id]
        if chosen and limit_bytes < 0:
            break
        chosen.add(message_id)
    for span in spans:
        wanted = [message_id - span[0] for message_id in span if message_id in chosen]
        if wanted:
            yield span[0], span[-1] + 1, wanted
