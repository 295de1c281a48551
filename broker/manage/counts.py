"""Numbers of queues, channels, vhosts and the broker, in the order in which the API shows them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

from broker.manage.message_stats import QUEUE_STATS

if TYPE_CHECKING:
    from broker.core.queue.queue import Queue
    from broker.core.queue.stream import Stream
    from broker.core.statistics.message_counts import MessageCounts
    from broker.core.vhost import Vhost

__all__ = ["QUEUE_COUNTERS", "QUEUE_NUMBERS", "message_numbers", "queue_key", "queue_numbers"]

QUEUE_NUMBERS: Final = (*QUEUE_STATS, "messages", "messages_ready", "messages_unacknowledged")
QUEUE_COUNTERS: Final = len(QUEUE_STATS)


def queue_key(vhost: Vhost, queue: Queue) -> Hashable:
    """Return what names a queue among all that there ever were."""
    return vhost.name, queue.number


def queue_numbers(queue: Queue) -> tuple[int, ...]:
    """Return the numbers of a queue by QUEUE_NUMBERS. Cost: O(levels)."""
    ready, unacked = queue.ready, queue.unacked
    lengths = (ready + unacked, ready, unacked)
    if len(queue.streams) > 1:
        return (*map(sum, zip(*[_stream_numbers(stream) for stream in queue.streams], strict=True)), *lengths)
    return (*_stream_numbers(queue.stream), *lengths)


def _stream_numbers(stream: Stream) -> tuple[int, ...]:
    tally = stream.tally
    deliver, deliver_no_ack, get, get_no_ack = tally.deliver, tally.deliver_no_ack, tally.get, tally.get_no_ack
    return (
        stream.published,
        deliver,
        deliver_no_ack,
        get,
        get_no_ack,
        tally.get_empty,
        tally.redeliver,
        tally.ack,
        deliver + deliver_no_ack + get + get_no_ack,
    )


def message_numbers(counts: MessageCounts) -> tuple[int, ...]:
    """Return the counters of a channel, a vhost or the broker by MESSAGE_STATS."""
    return (
        counts.publish,
        counts.confirm,
        counts.return_unroutable,
        counts.drop_unroutable,
        counts.deliver,
        counts.deliver_no_ack,
        counts.get,
        counts.get_no_ack,
        counts.get_empty,
        counts.redeliver,
        counts.ack,
        counts.deliver_get,
    )
