"""The unfinished QoS 2 handshakes of a vhost, stored in an internal queue and indexed in memory."""

from __future__ import annotations

from collections.abc import Callable, KeysView, Sequence
from functools import partial
from typing import Final

from broker.amqp.content_header import facts_of
from broker.amqp.header_edit import encode_header
from broker.core.message.message import Envelope, Message, new_message
from broker.core.mqtt.places import Place, read_all
from broker.core.mqtt.session import MqttSession
from broker.core.queue.kinds import HANDSHAKES_NAME
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.mqtt.packets import PUBCOMP, PUBREL
from broker.mqtt.reason_codes import PACKET_ID_NOT_FOUND, SUCCESS
from broker.slots.slot import Slot

RECEIVED: Final = 0  # a publish of a client was accepted; its PUBREL has not arrived
RELEASED: Final = 1  # the PUBREC for a delivery to a client has arrived; its PUBCOMP has not
FRONT_BYTES: Final = 3  # direction and packet id
NO_PLACES: Final[dict[int, Place | None]] = {}


class Handshakes:
    """Store the unfinished QoS 2 handshakes of the clients of one vhost. The handshakes of a lasting session are stored
    as messages in the queue `amq.mqtt.handshakes` until the session expires; those of other sessions are only in
    memory. Additions and removals within a transaction are committed with it.
    Shapes: a message body contains the direction, the packet id in two octets, and the client id. `_places` maps each
        direction and client to its packet ids, oldest first, with the `Place` of each, or None if it is in memory only.
    """

    def __init__(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self._places: dict[tuple[int, str], dict[int, Place | None]] = {}
        self._queue: Queue | None = vhost.queues.get(HANDSHAKES_NAME)
        self._header = b""
        self._expiry_s = 0  # the expiry in `_header`
        self.loaded = False

    # -- the start ----------------------------------------------------------------------------------------------------

    def load(self, done: Callable[[], None]) -> None:
        """Build the index from the queue, then call `done`."""
        read_all(self.vhost, self._queue, self._index, partial(self._was_loaded, done))

    def _index(self, message: Message, slot: Slot, index: int) -> None:
        body = message.body
        packet_id = int.from_bytes(body[1:FRONT_BYTES], "big")
        client_id = body[FRONT_BYTES:].decode()
        self._places.setdefault((body[0], client_id), {})[packet_id] = Place(slot, slot.first + index)
        self._expire(client_id, message.facts.expiration_ms or 0)

    def _was_loaded(self, done: Callable[[], None]) -> None:
        self.loaded = True
        done()

    # -- sessions -----------------------------------------------------------------------------------------------------

    def enter(self, client_id: str) -> bool:
        """Stop the expiry of a client's handshakes, and return whether it has any."""
        self.vhost.ports.deadlines.cancel((self, client_id))
        return (RECEIVED, client_id) in self._places or (RELEASED, client_id) in self._places

    def leave(self, client_id: str, expiry_s: int) -> None:
        """Start the expiry of the handshakes of a client that has disconnected, or drop them if its session ends."""
        if not self.enter(client_id):
            return
        if expiry_s:
            self._expire(client_id, expiry_s * 1000)
        else:
            self.drop(client_id)

    def drop(self, client_id: str) -> None:
        for direction in (RECEIVED, RELEASED):
            self.remove(direction, client_id, tuple(self.packet_ids(direction, client_id)))

    def keep_in_memory(self, client_id: str) -> None:
        """Keep a client's handshakes in memory only, because its session ends with its connection."""
        for direction in (RECEIVED, RELEASED):
            packet_ids = tuple(self.packet_ids(direction, client_id))
            self.remove(direction, client_id, packet_ids)
            self.add(direction, client_id, packet_ids, 0)

    def _expire(self, client_id: str, left_ms: int) -> None:
        ports = self.vhost.ports
        ports.deadlines.set((self, client_id), ports.clock.now_ms + left_ms, partial(self.drop, client_id))

    # -- packet ids ---------------------------------------------------------------------------------------------------

    def packet_ids(self, direction: int, client_id: str) -> KeysView[int]:
        """Return the packet ids of a client in a direction, the oldest first."""
        return self._places.get((direction, client_id), NO_PLACES).keys()

    def add(self, direction: int, client_id: str, packet_ids: Sequence[int], expiry_s: int) -> None:
        """Add handshakes of a client. Units: `expiry_s` is 0 for a session that ends with its connection."""
        for packet_id in packet_ids:
            places = self._places.setdefault((direction, client_id), {})
            body = bytes((direction,)) + packet_id.to_bytes(2, "big") + client_id.encode()
            places[packet_id] = self._record(body, expiry_s) if expiry_s else None

    def _record(self, body: bytes, expiry_s: int) -> Place:
        queue, ports = self._queue, self.vhost.ports
        if queue is None or queue.deleted:
            queue = self._queue = self.vhost.queues.own(HANDSHAKES_NAME)
        if expiry_s != self._expiry_s or len(body) != int.from_bytes(self._header[4:12], "big"):
            self._expiry_s = expiry_s
            self._header = encode_header({"delivery_mode": 2, "expiration": str(expiry_s * 1000)}, len(body))
        header = self._header
        envelope = Envelope("", HANDSHAKES_NAME)
        message = new_message(envelope, header, body, facts_of(header), ports.clock.now_ms)
        slot, index = ports.accept(message, queue.level, 0, b"")
        return Place(slot, slot.first + index)

    def remove(self, direction: int, client_id: str, packet_ids: Sequence[int]) -> None:
        """Remove handshakes of a client; ignore unknown packet ids."""
        places = self._places.get((direction, client_id))
        if places is None:
            return
        queue = self._queue
        for packet_id in packet_ids:
            place = places.pop(packet_id, None)
            if place is not None and queue is not None and not queue.deleted and not place.is_gone:
                queue.level.lose(place.slot, (place.index,))
        if not places:
            del self._places[direction, client_id]
        if queue is not None and not queue.deleted:
            queue.level.log_settlements()


class ClientHandshakes:
    """The QoS 2 handshakes of one client: publishes that wait for PUBREL, and deliveries that wait for PUBCOMP."""

    __slots__ = ("_client_id", "_handshakes", "_session")
    __deletable__ = ("_session",)

    def __init__(self, handshakes: Handshakes, client_id: str, session: MqttSession) -> None:
        self._handshakes = handshakes
        self._client_id = client_id
        self._session = session

    def leave(self) -> None:
        """Start the expiry of the handshakes, or drop them: the client has disconnected."""
        self._handshakes.leave(self._client_id, self._session.expiry_s)
        del self._session  # its confirms refer to this object: break the cycle, so that it needs no garbage collection

    # -- publishes of the client --------------------------------------------------------------------------------------

    @property
    def received(self) -> KeysView[int]:
        """The packet ids of the publishes received and not released."""
        return self._handshakes.packet_ids(RECEIVED, self._client_id)

    def has_repeats(self, packet_ids: Sequence[int]) -> bool:
        """Return whether a packet id belongs to an unreleased publish, or occurs twice."""
        if len(set(packet_ids)) < len(packet_ids):
            return True
        return not self.received.isdisjoint(packet_ids)

    def receive(self, packet_ids: Sequence[int]) -> None:
        """Store the packet ids of publishes; their PUBREC is sent after the sync."""
        self._handshakes.add(RECEIVED, self._client_id, packet_ids, self._session.expiry_s)
        self._session.confirms.wait_for_records()

    def forget(self, packet_ids: Sequence[int]) -> None:
        self._handshakes.remove(RECEIVED, self._client_id, packet_ids)

    def release(self, packet_ids: Sequence[int]) -> None:
        """Remove packet ids of publishes after their PUBREL, and send PUBCOMP once the removal is on disk."""
        known = [packet_id in self.received for packet_id in packet_ids]
        self.forget(packet_ids)
        for place, packet_id in enumerate(packet_ids):
            self._session.confirms.answer(PUBCOMP, packet_id, SUCCESS if known[place] else PACKET_ID_NOT_FOUND)

    # -- deliveries to the client -------------------------------------------------------------------------------------

    def resume(self) -> bytes:
        """Return a PUBREL for each delivery that still waits for its PUBCOMP, and reserve the packet ids."""
        packet_ids = self._handshakes.packet_ids(RELEASED, self._client_id)
        for packet_id in packet_ids:
            self._session.deliveries.packet_ids.release(packet_id)
        return b"".join([bytes((PUBREL, 2, packet_id >> 8, packet_id & 0xFF)) for packet_id in packet_ids])

    def settle(self, packet_ids: Sequence[int]) -> None:
        """Settle deliveries after their PUBREC and keep the packet ids until PUBCOMP. PUBREL is sent after the sync."""
        session, deliveries = self._session, self._session.deliveries
        with self._handshakes.vhost.ports.transaction():
            received = deliveries.settle_received(packet_ids)
            self._handshakes.add(RELEASED, self._client_id, received, session.expiry_s)
        for packet_id in packet_ids:
            known = deliveries.packet_ids.is_released(packet_id)
            session.confirms.answer(PUBREL, packet_id, SUCCESS if known else PACKET_ID_NOT_FOUND)

    def complete(self, packet_ids: Sequence[int]) -> None:
        self._handshakes.remove(RELEASED, self._client_id, packet_ids)
        self._session.deliveries.complete(packet_ids)
