"""The QoS 2 handshakes of one client: each publish and each delivery happens once."""

from __future__ import annotations

from collections.abc import KeysView, Sequence

from broker.core.mqtt.handshakes import RECEIVED, RELEASED, Handshakes
from broker.core.mqtt.session import MqttSession
from broker.mqtt.packets import PUBCOMP, PUBREL
from broker.mqtt.reason_codes import PACKET_ID_NOT_FOUND, SUCCESS


class ClientHandshakes:
    """Keep the packet ids of a client's publishes until their PUBREL, and of its deliveries until their PUBCOMP."""

    __slots__ = ("_client_id", "_handshakes", "_session")
    __deletable__ = ("_session",)

    def __init__(self, handshakes: Handshakes, client_id: str, session: MqttSession) -> None:
        self._handshakes = handshakes
        self._client_id = client_id
        self._session = session

    def leave(self) -> None:
        """Discard all handshakes when the session expires, because the client has disconnected."""
        self._handshakes.leave(self._client_id, self._session.expiry_s)
        del self._session  # its confirms hold this object: the two would wait for the garbage collector

    # -- publishes of the client --------------------------------------------------------------------------------------

    @property
    def received(self) -> KeysView[int]:
        """The packet ids of the publishes received and not released."""
        return self._handshakes.packet_ids(RECEIVED, self._client_id)

    def repeat_among(self, packet_ids: Sequence[int]) -> bool:
        """Return whether a publish was received before, or twice."""
        if len(set(packet_ids)) < len(packet_ids):
            return True
        return not self.received.isdisjoint(packet_ids)

    def receive(self, packet_ids: Sequence[int]) -> None:
        """Keep publishes, in the transaction in which they are published; their PUBREC follows the sync."""
        self._handshakes.add(RECEIVED, self._client_id, packet_ids, self._session.expiry_s)
        self._session.confirms.wait_for_records()

    def forget(self, packet_ids: Sequence[int]) -> None:
        """Discard publishes that are answered with an error, which ends their handshake."""
        self._handshakes.remove(RECEIVED, self._client_id, packet_ids)

    def release(self, packet_ids: Sequence[int]) -> None:
        """Discard publishes after their PUBREL, and answer it once this is on disk."""
        known = [packet_id in self.received for packet_id in packet_ids]
        self.forget(packet_ids)
        for place, packet_id in enumerate(packet_ids):
            self._session.confirms.answer(PUBCOMP, packet_id, SUCCESS if known[place] else PACKET_ID_NOT_FOUND)

    # -- deliveries to the client -------------------------------------------------------------------------------------

    def resume(self) -> bytes:
        """Return the PUBREL packets that an earlier connection of the client has not completed."""
        packet_ids = self._handshakes.packet_ids(RELEASED, self._client_id)
        for packet_id in packet_ids:
            self._session.deliveries.packet_ids.release(packet_id)
        return b"".join([bytes((PUBREL, 2, packet_id >> 8, packet_id & 0xFF)) for packet_id in packet_ids])

    def settle(self, packet_ids: Sequence[int]) -> None:
        """Settle deliveries after their PUBREC, in one transaction with their ids; PUBREL follows the sync."""
        session, deliveries = self._session, self._session.deliveries
        with self._handshakes.vhost.ports.transaction():
            received = deliveries.settle_received(packet_ids)
            self._handshakes.add(RELEASED, self._client_id, received, session.expiry_s)
        for packet_id in packet_ids:
            known = deliveries.packet_ids.is_released(packet_id)
            session.confirms.answer(PUBREL, packet_id, SUCCESS if known else PACKET_ID_NOT_FOUND)

    def complete(self, packet_ids: Sequence[int]) -> None:
        """Discard deliveries after their PUBCOMP."""
        self._handshakes.remove(RELEASED, self._client_id, packet_ids)
        self._session.deliveries.complete(packet_ids)
