"""The packet ids of a client's unacknowledged deliveries."""

from __future__ import annotations

from typing import Final

__all__ = ["PacketIds"]

PACKET_ID_MAX: Final = 65_535


class PacketIds:
    """Gives delivery tags packet ids, in turn, and takes them back.

    `unsent` are tags of messages that need no acknowledgement: those at QoS 0, and those that were not sent.
    Invariant: fewer tags than packet ids are in use, because a client's window is smaller.
    """

    __slots__ = ("_last", "_tags", "unanswered")

    def __init__(self) -> None:
        self._last = 0
        self._tags: dict[int, int] = {}
        self.unanswered: list[int] = []

    def give(self, tag: int) -> int:
        """Return a packet id for a delivery tag."""
        packet_id = self._last
        while True:
            packet_id = packet_id % PACKET_ID_MAX + 1
            if packet_id not in self._tags:
                break
        self._last = packet_id
        self._tags[packet_id] = tag
        return packet_id

    def take(self, packet_id: int) -> int:
        """Return the tag of a packet id, which is free again; 0 if it is not in use."""
        return self._tags.pop(packet_id, 0)

    def pass_over(self, tag: int) -> None:
        """Note a delivery that its client does not acknowledge."""
        self.unanswered.append(tag)

    def take_unanswered(self) -> list[int]:
        """Return the tags of deliveries that their client does not acknowledge, once."""
        tags, self.unanswered = self.unanswered, []
        return tags
