"""The delayed wills of a vhost. They wait in an internal queue until they are due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from broker.amqp.content_header import HeaderFields, facts_of
from broker.amqp.header_edit import edit_header, read_headers
from broker.core.message.delay import HeldMessage
from broker.core.message.message import Envelope, Message, new_message
from broker.core.mqtt.mapping import RETAIN_HEADER
from broker.core.mqtt.places import Place, read_all
from broker.core.mqtt.retained import RetainedMessages
from broker.core.queue.holding import Holding
from broker.core.queue.kinds import WILLS_NAME
from broker.event_log import get_logger
from broker.mqtt.errors import PacketError
from broker.slots.redeliveries import ReturnRun
from broker.slots.slot import Slot

_log = get_logger()

OWNER_HEADER: Final = "x-mqtt-will-of"


class Wills(Holding):
    """Hold the wills of clients that have disconnected, and publish those that are due.

    A held will has a header with its client id; this header is removed when the will is published.
    """

    def __init__(self, retained: RetainedMessages) -> None:
        self._vhost = vhost = retained.vhost
        queue = vhost.queues.own(WILLS_NAME)
        super().__init__(vhost.ports, queue.level)
        self._retained = retained
        self._places: dict[str, Place] = {}

    def load(self, done: Callable[[], None]) -> None:
        """Index the wills in the queue, then call `done`."""
        queue = self._vhost.queues.get(WILLS_NAME)
        read_all(self._vhost, queue, self._index, partial(self._was_loaded, done))

    def _index(self, message: Message, slot: Slot, index: int) -> None:
        client_id = str(read_headers(message.header, OWNER_HEADER)[OWNER_HEADER])
        self._places[client_id] = Place(slot, slot.first + index)

    def _was_loaded(self, done: Callable[[], None]) -> None:
        self.gather()
        done()

    def hold(self, client_id: str, key: str, header: bytes, body: bytes, delay_ms: int) -> None:
        """Hold a will, and publish it after its delay unless it is cancelled."""
        header = edit_header(header, set_headers={OWNER_HEADER: client_id})
        now_ms = self._ports.clock.now_ms
        will = new_message(Envelope(self._retained.exchange, key), header, body, facts_of(header), now_ms)
        slot, index = self.keep(HeldMessage(will, now_ms + delay_ms), now_ms + delay_ms)
        self._places[client_id] = Place(slot, slot.first + index)

    def cancel(self, client_id: str) -> None:
        """Drop the will of a client that resumes its session."""
        place = self._places.pop(client_id, None)
        if place is not None and not place.is_gone:
            self.level.lose(place.slot, (place.index,))

    def publish(self, client_id: str) -> None:
        """Publish the will of a client now, because its session has ended."""
        place = self._places.pop(client_id, None)
        if place is None or place.is_gone:
            return
        contents = place.slot.contents
        if contents is None:
            wanted = ((place.message_id, place.slot),)
            self._ports.fetch(self.level, wanted, partial(self._publish, place))
        else:
            self._publish(place, {place.message_id: contents[place.index]})

    def _publish(self, place: Place, found: Mapping[int, Message | None]) -> None:
        will = found.get(place.message_id)
        if will is not None and not place.is_gone:
            with self._ports.transaction():
                self.level.lose(place.slot, (place.index,))
                self.level.log_settlements()
                self.send(will, None)

    def send(self, held: Message, returns: ReturnRun | None) -> None:
        """Publish a will now, and retain it if its header requests that."""
        headers = read_headers(held.header, OWNER_HEADER, RETAIN_HEADER)
        self._places.pop(str(headers[OWNER_HEADER]), None)
        header = edit_header(held.header, drop_headers=(OWNER_HEADER,))
        vhost, key, body = self._vhost, held.envelope.key, held.body
        exchange = vhost.exchanges.get(held.envelope.exchange)
        queues = () if exchange is None else vhost.exchanges.router.match(exchange, key, HeaderFields(header))
        if queues:
            now_ms = self._ports.clock.now_ms
            vhost.poster.post(new_message(held.envelope, header, body, facts_of(header), now_ms, len(queues)), queues)
        if headers.get(RETAIN_HEADER) is True:
            try:
                self._retained.prepare_retain(None, key, header, body)
                self._retained.retain(key, header, body)
            except PacketError as error:
                _log.warning("will.not_retained", vhost=vhost.name, topic=key, reason=error.text)
