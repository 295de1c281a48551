"""The publishes at QoS 2 of one client that it has not released with a PUBREL."""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.mqtt.handshakes import RECEIVED, Handshakes
from broker.core.mqtt.session import MqttSession
from broker.mqtt.packets import PUBCOMP
from broker.mqtt.reason_codes import PACKET_ID_NOT_FOUND, SUCCESS


class Receipts:
    """Keeps the packet ids of one client's publishes, so that each is published once."""

    __slots__ = ("_client_id", "_handshakes", "_session")
    __deletable__ = ("_session",)

    def __init__(self, handshakes: Handshakes, client_id: str, session: MqttSession) -> None:
        self._handshakes = handshakes
        self._client_id = client_id
        self._session = session

    def __len__(self) -> int:
        return self._handshakes.count(RECEIVED, self._client_id)

    def has(self, packet_id: int) -> bool:
        """Return whether a publish was received and not released."""
        return self._handshakes.has(RECEIVED, self._client_id, packet_id)

    def repeat_among(self, packet_ids: Sequence[int]) -> bool:
        """Return whether a publish was received before, or twice."""
        if len(set(packet_ids)) < len(packet_ids):
            return True
        return len(self) > 0 and any(self.has(packet_id) for packet_id in packet_ids)

    def take(self, packet_ids: Sequence[int]) -> None:
        """Keep publishes, in the transaction in which they are published; their PUBREC follows the sync."""
        self._handshakes.add(RECEIVED, self._client_id, packet_ids, self._session.expiry_s)
        self._session.confirms.wait_for_records()

    def forget(self, packet_ids: Sequence[int]) -> None:
        """Forget publishes that are answered with an error, which ends their handshake."""
        self._handshakes.remove(RECEIVED, self._client_id, packet_ids)

    def release(self, packet_ids: Sequence[int]) -> None:
        """Forget publishes for which a PUBREL came, and answer it once that is on disk."""
        known = [self.has(packet_id) for packet_id in packet_ids]
        self.forget(packet_ids)
        for place, packet_id in enumerate(packet_ids):
            self._session.confirms.answer(PUBCOMP, packet_id, SUCCESS if known[place] else PACKET_ID_NOT_FOUND)

    def leave(self) -> None:
        """Forget all when the session expires: the client has disconnected."""
        self._handshakes.leave(self._client_id, self._session.expiry_s)
        del self._session  # its confirms hold this object: the two would wait for the garbage collector
