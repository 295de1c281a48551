"""The packet ids of a client's unacknowledged deliveries."""

from __future__ import annotations

from typing import Final

PACKET_ID_MAX: Final = 65_535
OF_QUEUE_MAX: Final = 32_767  # the last packet id for messages of the session's own queue
RELEASED: Final = 0
UNUSED: Final = -1


class PacketIds:
    """Assign packet ids to delivery tags, and free them.

    A message of the session's own queue has a packet id that is computed from its message id, so it is redelivered with
    the same packet id even after a restart. Messages of shared subscriptions get the ids of a higher range in turn.
    Shapes: `_tags` maps each packet id to its tag, or to RELEASED while a QoS 2 handshake waits for its PUBCOMP;
        `released` counts these handshakes. `unanswered` contains the tags of messages that were sent at QoS 0 or
        skipped, `held` those of messages whose packet id was in use; `blocking` is such an id, or 0.
    """

    __slots__ = ("_last", "_tags", "blocking", "held", "released", "unanswered")

    def __init__(self) -> None:
        self._last = OF_QUEUE_MAX
        self._tags: dict[int, int] = {}
        self.released = 0
        self.unanswered: list[int] = []
        self.held: list[int] = []
        self.blocking = 0

    def assign(self, tag: int, message_id: int) -> int:
        """Return the packet id of a message, or hold the message and return 0 if the packet id is in use."""
        packet_id = 1 + message_id % OF_QUEUE_MAX
        if self._tags.setdefault(packet_id, tag) != tag:
            self.held.append(tag)
            self.blocking = packet_id
            return 0
        return packet_id

    def assign_shared(self, tag: int) -> int:
        """Return a packet id for a message of a shared subscription. Invariant: at least one of the 32,768 is free."""
        packet_id = self._last
        while True:
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else OF_QUEUE_MAX + 1
            if packet_id not in self._tags:
                break
        self._last = packet_id
        self._tags[packet_id] = tag
        return packet_id

    def free(self, packet_id: int) -> int:
        """Free the packet id of an unacknowledged delivery and return its tag, or 0 if there is none."""
        tag = self._tags.pop(packet_id, UNUSED)  # hot: one lookup
        if tag > RELEASED:
            self._unblock(packet_id)
            return tag
        if tag == RELEASED:
            self._tags[packet_id] = RELEASED
        return 0

    def release(self, packet_id: int) -> None:
        """Reserve a free packet id until its PUBCOMP."""
        self._tags[packet_id] = RELEASED
        self.released += 1

    def complete(self, packet_id: int) -> bool:
        """Free a packet id after its PUBCOMP, and return whether it was released."""
        if self._tags.get(packet_id, UNUSED) != RELEASED:
            return False
        self.released -= 1
        del self._tags[packet_id]
        self._unblock(packet_id)
        return True

    def is_released(self, packet_id: int) -> bool:
        return self._tags.get(packet_id, UNUSED) == RELEASED

    def _unblock(self, packet_id: int) -> None:
        if packet_id == self.blocking:
            self.blocking = 0

    def take_unanswered(self) -> list[int]:
        """Return and clear the tags of deliveries that the client does not acknowledge."""
        tags, self.unanswered = self.unanswered, []
        return tags

    def take_held(self) -> list[int]:
        """Return and clear the tags of held messages."""
        tags, self.held = self.held, []
        return tags
