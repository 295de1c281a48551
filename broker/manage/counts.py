"""Counts and rates of queues, channels, vhosts and the broker, under the names of RabbitMQ's API."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker.administration.slices import in_slices
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.core.statistics.vhost_tally import NO_MESSAGES, MessageCounts
from broker.core.vhost import Vhost
from broker.net.listener import Listener
from broker.process_memory import resident_bytes
from broker.store.files import Files
from broker.vhosts.broker_statistics import BrokerStatistics

DELIVERIES: Final = ("deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver", "ack", "deliver_get")
MESSAGE_STATS: Final = ("publish", "confirm", "return_unroutable", "drop_unroutable", *DELIVERIES)
"""The counters of a channel, a vhost or the broker, which are fields of `MessageCounts`."""
QUEUE_STATS: Final = ("publish", *DELIVERIES)
EXCHANGE_STATS: Final = ("publish_in", "publish_out")
DISK_STATS: Final = ("disk_reads", "disk_writes")

NO_RATE: Final[Mapping[str, float]] = {"rate": 0.0}
NO_PROCESS: Final[Mapping[str, Any]] = {
    "garbage_collection": {
        "fullsweep_after": 0,
        "max_heap_size": 0,
        "min_bin_vheap_size": 0,
        "min_heap_size": 0,
        "minor_gcs": 0,
    },
    "reductions": 0,
    "reductions_details": NO_RATE,
}
"""RabbitMQ's values for the Erlang process of a queue, channel or connection; tools expect these fields."""
LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
QUEUE_NUMBERS: Final = (*QUEUE_STATS, *LENGTHS)
QUEUE_COUNTERS: Final = len(QUEUE_STATS)
TOTAL_NUMBERS: Final = (
    *MESSAGE_STATS,
    *LENGTHS,
    *("queues", "consumers", "connections", "channels", "mem_used", "disk_free"),
)
TOTAL_COUNTERS: Final = len(MESSAGE_STATS)


def queue_key(vhost: Vhost, queue: Queue) -> Hashable:
    """Return the key of a queue. A queue that is deleted and declared again gets a different key."""
    return vhost.name, queue.number


def queue_numbers(queue: Queue) -> tuple[int, ...]:
    """Return the numbers of a queue in the order of QUEUE_NUMBERS. Cost: O(levels)."""
    ready, unacked = queue.ready, queue.unacked
    lengths = (queue.waiting + unacked, ready, unacked)
    if len(queue.levels) > 1:
        return (*map(sum, zip(*[_level_numbers(level) for level in queue.levels], strict=True)), *lengths)
    return (*_level_numbers(queue.level), *lengths)


def _level_numbers(level: Level) -> tuple[int, ...]:
    tally = level.tally
    deliver, deliver_no_ack, get, get_no_ack = tally.deliver, tally.deliver_no_ack, tally.get, tally.get_no_ack
    return (
        level.published,
        deliver,
        deliver_no_ack,
        get,
        get_no_ack,
        tally.get_empty,
        tally.redeliver,
        tally.ack,
        deliver + deliver_no_ack + get + get_no_ack,
    )


message_numbers: Final[Callable[[MessageCounts], tuple[int, ...]]] = attrgetter(*MESSAGE_STATS)
"""Returns the counters of a channel, a vhost or the broker in the order of MESSAGE_STATS."""


def with_rates(
    names: Sequence[str], counts: Sequence[int], rates: Sequence[float] | None, suffix: str = "_details"
) -> dict[str, Any]:
    """Return the counters by name, and their rates by name and suffix, all 0 without `rates`. Units: per second."""
    found: dict[str, Any] = dict(zip(names, counts, strict=True))
    if rates is None:
        for name in names:
            found[name + suffix] = NO_RATE
    else:
        for name, rate in zip(names, rates, strict=True):
            found[name + suffix] = {"rate": rate}
    return found


def counts_of(statistics: BrokerStatistics, vhosts: Iterable[Vhost]) -> MessageCounts:
    """Add up the counters of vhosts."""
    counts = NO_MESSAGES
    for vhost in vhosts:
        counts = counts.plus(statistics.vhost(vhost.name))
    return counts


class Lengths(NamedTuple):
    """Sums over queues. Units: messages, queues, and consumers of this node."""

    ready: int
    unacked: int
    delayed: int
    queues: int
    consumers: int

    @property
    def numbers(self) -> tuple[int, int, int]:
        """The numbers of all messages, of ready ones, and of unacknowledged ones."""
        return self.ready + self.unacked + self.delayed, self.ready, self.unacked


async def lengths_of(vhosts: Iterable[Vhost]) -> Lengths:
    """Add up the queues of vhosts. Cost: O(queues), in slices."""
    ready = unacked = delayed = queues = consumers = 0
    async for queue in in_slices(chain.from_iterable([list(vhost.queues.values()) for vhost in vhosts])):
        ready += queue.ready
        unacked += queue.unacked
        delayed += queue.delayed
        consumers += len(queue.consumers)
        queues += 1
    return Lengths(ready, unacked, delayed, queues, consumers)


@dataclass(frozen=True, slots=True)
class BrokerTotals:
    """The numbers of the whole broker."""

    folder: Path
    vhosts: Mapping[str, Vhost]
    listener: Listener
    statistics: BrokerStatistics
    files: Files

    async def read(self) -> tuple[int, ...]:
        """Return the numbers in the order of TOTAL_NUMBERS. Cost: O(queues), in slices, and O(connections)."""
        lengths = await lengths_of(list(self.vhosts.values()))
        sessions = self.listener.sessions()
        return (
            *message_numbers(self.statistics.totals()),
            *lengths.numbers,
            lengths.queues,
            lengths.consumers,
            len(sessions),
            sum([len(session.connection.channels) for session in sessions]),
            resident_bytes(),
            self.files.free_bytes(self.folder),
        )
