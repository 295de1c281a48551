"""The PUBACK packets of one client: confirms in the form of MQTT."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.core.mqtt.faults import PacketFault
from broker.core.session.channel_confirms import NACK, ChannelConfirms
from broker.mqtt.errors import PacketError
from broker.mqtt.packets import V5
from broker.mqtt.reason_codes import QUOTA_EXCEEDED, RECEIVE_MAXIMUM_EXCEEDED

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.amqp.connection import Connection
    from broker.core.statistics.publish_tally import ChannelPublishes
    from broker.core.vhost import Vhost

__all__ = ["PubackConfirms"]

IN_FLIGHT_MAX: Final = 65_535  # the receive maximum of a broker that announces none
PUBACK: Final = 0x40


class PubackConfirms(ChannelConfirms):
    """Answers publishes at QoS 1 with PUBACK packets, after the sync, in the order of the publishes.

    Shapes: `_packet_ids` has an item for each unconfirmed publish, 0 at QoS 0.
    """

    __slots__ = ("_in_flight", "_packet_ids", "_ports", "_version")

    def __init__(self, channel: Channel, connection: Connection, vhost: Vhost, tally: ChannelPublishes) -> None:
        super().__init__(channel, connection, vhost, tally)
        self._packet_ids: deque[int] = deque()
        self._in_flight = 0
        self._ports = vhost.ports
        self._version = V5

    def speak(self, version: int) -> None:
        """Take the version of the client."""
        self._version = version

    def expect(self, packet_ids: list[int], qos: int) -> None:
        """Take the packet ids of publishes that come next. Raises: PacketError 0x93 for too many at QoS 1."""
        if qos:
            self._in_flight += len(packet_ids)
            if self._in_flight > IN_FLIGHT_MAX:
                raise PacketError(RECEIVE_MAXIMUM_EXCEEDED, f"more than {IN_FLIGHT_MAX} publishes wait for a PUBACK")
        self._packet_ids.extend(packet_ids)

    def _settle(self, kind: int, upto: int) -> None:
        """Send a PUBACK for each publish at QoS 1 up to a number.

        A publish that a full queue refused is answered with 0x97; MQTT 3.1.1 has no such answer, and the client is
        disconnected.
        """
        count = upto - self.confirmed
        if count <= 0:
            return
        self.confirmed = upto
        waiting = self._packet_ids
        packet_ids = [packet_id for packet_id in [waiting.popleft() for _ in range(count)] if packet_id]
        self._in_flight -= len(packet_ids)
        if kind == NACK:
            if not packet_ids:
                return
            if self._version != V5:
                fault = PacketFault(QUOTA_EXCEEDED, "a queue is full", 406)
                ports = self._ports  # in the next turn: the committer is at work
                ports.deadlines.set((self, "refused"), ports.clock.now_ms, partial(self._connection.fail, fault))
                return
            pieces = [bytes((PUBACK, 3)) + packet_id.to_bytes(2, "big") + b"\x97" for packet_id in packet_ids]
        else:
            self._tally.confirmed(count)
            pieces = [bytes((PUBACK, 2, packet_id >> 8, packet_id & 0xFF)) for packet_id in packet_ids]
        if pieces:
            self._connection.write(b"".join(pieces))
