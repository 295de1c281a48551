"""The deliveries at QoS 2 that one client has received, and not completed with a PUBCOMP."""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.mqtt.handshakes import RELEASED, Handshakes
from broker.core.mqtt.session import MqttSession
from broker.mqtt.packets import PUBREL
from broker.mqtt.reason_codes import PACKET_ID_NOT_FOUND, SUCCESS


class Releases:
    """Keeps the packet ids of one client's deliveries, so that each is delivered once."""

    __slots__ = ("_client_id", "_handshakes", "_session")

    def __init__(self, handshakes: Handshakes, client_id: str, session: MqttSession) -> None:
        self._handshakes = handshakes
        self._client_id = client_id
        self._session = session

    def resume(self) -> bytes:
        """Return the PUBREL packets that an earlier connection of the client has not completed."""
        packet_ids = self._handshakes.ids(RELEASED, self._client_id)
        for packet_id in packet_ids:
            self._session.deliveries.packet_ids.release(packet_id)
        return b"".join([bytes((PUBREL, 2, packet_id >> 8, packet_id & 0xFF)) for packet_id in packet_ids])

    def take(self, packet_ids: Sequence[int]) -> None:
        """Settle deliveries for which a PUBREC came, in one transaction with their ids; PUBREL follows the sync."""
        session, deliveries = self._session, self._session.deliveries
        with self._handshakes.vhost.ports.transaction():
            received = deliveries.settle_received(packet_ids)
            self._handshakes.add(RELEASED, self._client_id, received, session.expiry_s)
        for packet_id in packet_ids:
            known = deliveries.packet_ids.is_released(packet_id)
            session.confirms.answer(PUBREL, packet_id, SUCCESS if known else PACKET_ID_NOT_FOUND)

    def complete(self, packet_ids: Sequence[int]) -> None:
        """Forget deliveries for which a PUBCOMP came."""
        self._handshakes.remove(RELEASED, self._client_id, packet_ids)
        self._session.deliveries.complete(packet_ids)
