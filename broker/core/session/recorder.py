"""The recorder: puts messages that need a record before their queues, and appends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from broker.store.record import PERSISTENT, PREFIX_BYTES, TARGET, TARGET_BYTES, message_front

if TYPE_CHECKING:
    from broker.core.message.message import Message
    from broker.core.publishing.publish_entry import PublishEntry
    from broker.core.queue.stream import Stream
    from broker.store.message_log import MessageLog

__all__ = ["Recorder"]

pack_target: Final = TARGET.pack


class Recorder:
    """Appends the records of one publisher's messages.

    What stands in front of a record is the same for all that come in one turn with headers and routes of one length:
    it is made once for them.
    """

    __slots__ = ("_fronts", "_header_bytes", "_log", "_synced", "_timestamp_ms")

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._synced = -1
        self._timestamp_ms = -1
        self._header_bytes = -1
        self._fronts: dict[int, bytes] = {}  # by the length of the route

    def record(self, message: Message, entry: PublishEntry, touched: list[Stream]) -> None:
        """Has all queues of a persistent message be entered, and appends one record for those that are durable. HOT.

        Shapes: `touched` as of `Stream.enter`.
        """
        log = self._log
        header = message.header
        route = entry.envelope.route
        route_bytes = len(route)
        if len(entry.durable) == 1:
            stream = entry.durable[0]
            target = stream.enter(message, touched).to_bytes(8, "big")
            if (
                message.timestamp_ms != self._timestamp_ms
                or log.synced != self._synced
                or len(header) != self._header_bytes
            ):
                self._synced = log.synced
                self._timestamp_ms = message.timestamp_ms
                self._header_bytes = len(header)
                self._fronts = {}
            front = self._fronts.get(route_bytes)
            if front is None:
                front = self._front(message, route_bytes, TARGET_BYTES, PERSISTENT)
                self._fronts[route_bytes] = front
            content = b"".join((front, stream.octets, target, route, header, message.body))
        else:
            content = self._content(message, entry.durable, PERSISTENT, touched)
        for stream in entry.transient:
            stream.enter(message, touched)
        message.position = log.append_content(content)
        message.record_bytes = PREFIX_BYTES + len(content)

    def record_transient(self, message: Message, entry: PublishEntry, touched: list[Stream]) -> None:
        """Queue a transient message on every stream and append one record for the streams that persist all.

        Shapes: `touched` as of `Stream.enter`; at least one stream persists all. The other streams share a copy
            without a record: what they hold must not point into the log.
        """
        content = self._content(message, entry.persisting, 0, touched)
        if len(entry.persisting) < len(entry.streams):
            copy = message.copy()
            for stream in entry.streams:
                if not stream.persists_all:
                    stream.enter(copy, touched)
        message.position = self._log.append_content(content)
        message.record_bytes = PREFIX_BYTES + len(content)

    def _content(self, message: Message, streams: Sequence[Stream], flags: int, touched: list[Stream]) -> bytes:
        targets = b"".join([pack_target(stream.number, stream.enter(message, touched)) for stream in streams])
        route = message.envelope.route
        front = self._front(message, len(route), len(targets), flags)
        return b"".join((front, targets, route, message.header, message.body))

    def _front(self, message: Message, route_bytes: int, targets_bytes: int, flags: int) -> bytes:
        return message_front(
            self._log.synced, message.timestamp_ms, flags, route_bytes, len(message.header), targets_bytes
        )
