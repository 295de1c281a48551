"""The numbers of the broker as a whole, of which an hour is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.manage.counts import MESSAGE_STATS, lengths_of, message_numbers
from broker.process_memory import resident_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from broker.core.vhost import Vhost
    from broker.net.listener import Listener
    from broker.store.files import Files
    from broker.vhosts.broker_statistics import BrokerStatistics

__all__ = ["TOTAL_COUNTERS", "TOTAL_NUMBERS", "BrokerTotals"]

TOTAL_NUMBERS: Final = (
    *MESSAGE_STATS,
    "messages",
    "messages_ready",
    "messages_unacknowledged",
    "queues",
    "consumers",
    "connections",
    "channels",
    "mem_used",
    "disk_free",
)
TOTAL_COUNTERS: Final = len(MESSAGE_STATS)


class BrokerTotals:
    """Reads the numbers of the whole broker."""

    __slots__ = ("_files", "_folder", "_listener", "_statistics", "_vhosts")

    def __init__(
        self,
        folder: Path,
        vhosts: Mapping[str, Vhost],
        listener: Listener,
        statistics: BrokerStatistics,
        files: Files,
    ) -> None:
        self._folder = folder
        self._vhosts = vhosts
        self._listener = listener
        self._statistics = statistics
        self._files = files

    async def read(self) -> tuple[int, ...]:
        """Return the numbers by TOTAL_NUMBERS. Cost: O(queues), in pieces, and O(connections)."""
        lengths = await lengths_of(list(self._vhosts.values()))
        sessions = self._listener.sessions()
        return (
            *message_numbers(self._statistics.totals()),
            *lengths.numbers,
            lengths.queues,
            lengths.consumers,
            len(sessions),
            sum([len(session.connection.channels) for session in sessions]),
            resident_bytes(),
            self._files.free_bytes(self._folder),
        )
