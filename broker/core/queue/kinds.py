"""The kinds of queues of a standalone broker. Internal queues are stored like all others.

The queue of a tap is not bound to its exchange: clients see no binding, and an exchange that is deleted and declared
again still has its taps. A stream queue gets the messages that an exchange forwards to other brokers of an overlay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.amqp.content_header import HeaderFields
from broker.amqp.header_edit import encode_header
from broker.amqp.header_facts import NO_PRIORITY, plain_facts
from broker.core.message.message import Envelope, Message, new_message
from broker.core.queue.duplicates import value_digest
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import QueueDeclaration
from broker.routing.fanout_exchange import DEDUPLICATION_HEADER, HISTORY_PREFIX, SEEN_PREFIX, cache_ttl_ms
from broker.slot_files.seal_log import TAP_PREFIX

RETAINED_NAME: Final = "amq.retained"
HANDSHAKES_NAME: Final = "amq.mqtt.handshakes"
WILLS_NAME: Final = "amq.mqtt.wills"
OF_MQTT: Final = {
    RETAINED_NAME: "the retained messages of MQTT",
    HANDSHAKES_NAME: "the unfinished QoS 2 handshakes of MQTT",
    WILLS_NAME: "the delayed wills of MQTT clients",
}
HOLDING_PREFIX: Final = "amq.delayed."
STREAM_PREFIX: Final = "amq.overlay."
FIRST_NUMBER: Final = "x-overlay-first-number"
_TAP_EXCHANGE: Final = "x-tap-exchange"
_TAP_PATTERN: Final = "x-tap-pattern"
_TAP_MAX_BYTES: Final = "x-tap-max-bytes"
_TAP_MAX_AGE: Final = "x-tap-max-age"
_TAP_FIRST_ID: Final = "x-tap-first-id"


class InternalQueue(Queue):
    """An internal queue whose messages do not expire."""

    is_internal = True

    def expires_ms(self, message: Message) -> int | None:
        return None


class HistoryQueue(InternalQueue):
    """The last messages of an exchange."""

    is_tap = True
    holds = "the history of an exchange"


class MqttQueue(InternalQueue):
    """Messages of the broker's MQTT state; the MQTT code itself handles expiry, replacement and due moments."""

    is_tap = True
    persists_all = True

    def __init__(self, declaration: QueueDeclaration, ports: QueuePorts[Level, Queue]) -> None:
        super().__init__(declaration, ports)
        self.holds = OF_MQTT[self.name]


class SeenQueue(Queue):
    """The values that an exchange has seen in the header x-deduplication-header.

    Each value has a message whose body is the value's digest; the value is forgotten when its message leaves the queue.
    """

    is_internal = True
    is_tap = True
    holds = "the values that a deduplicating exchange has seen"

    def stops(self, value: object) -> bool:
        """Return whether the exchange remembers a value; if so, count a message as dropped."""
        known = self.duplicates
        return known is not None and known.stops(value_digest(value), self._ports.clock.now_ms)

    def repeats(self, message: Message) -> bool:
        """Return True, because no routed message enters the queue: the poster adds the result of `noted` instead."""
        return True

    def noted(self, message: Message) -> Message:
        """Return the message to store for a message that the exchange routes."""
        headers = HeaderFields(message.header).headers
        ttl_ms = cache_ttl_ms(headers)
        properties: dict[str, object] = {"delivery_mode": 2}
        if ttl_ms is not None:
            properties["expiration"] = str(ttl_ms)
        body = value_digest(headers.get(DEDUPLICATION_HEADER))
        header = encode_header(properties, len(body))
        facts = plain_facts(True, NO_PRIORITY, ttl_ms)
        return new_message(Envelope("", self.name), header, body, facts, message.timestamp_ms)

    def digest(self, message: Message) -> bytes | None:
        return message.body

    def expires_ms(self, message: Message) -> int | None:
        """Return when a value is forgotten, or None if never. A time in its message overrides that of the exchange."""
        own_ms = message.facts.expiration_ms
        return super().expires_ms(message) if own_ms is None else message.timestamp_ms + own_ms


def holding_name(exchange: str) -> str:
    """Return the name of the holding queue of an exchange."""
    return HOLDING_PREFIX + exchange


def is_holding_name(name: str) -> bool:
    """Return whether a name is that of an exchange's holding queue; no client can declare such a name."""
    return name.startswith(HOLDING_PREFIX)


class HoldingQueue(InternalQueue):
    """The queue that holds the delayed messages of one exchange. Their time to live starts when they leave it.

    The target queues of a message are known only when it is due. They may include a queue that persists transient
    messages, so the holding queue of a durable exchange persists them, too.
    """

    is_holding = True
    persists_all = True
    holds = "delayed messages"


class OverlayQueue(InternalQueue):
    """The stream queue of one ``exchange``. No client can use it. Transient messages are numbered and recorded, too,
    because no number may be reused. Numbers below ``first_number`` belonged to a former stream of that name.
    """

    persists_all = True
    is_overlay = True

    def __init__(self, declaration: QueueDeclaration, ports: QueuePorts[Level, Queue]) -> None:
        self._grown: Callable[[OverlayQueue], None] = lambda _queue: None
        super().__init__(declaration, ports)
        self.exchange = self.name.removeprefix(STREAM_PREFIX)
        self.first_number = int(self.arguments.get(FIRST_NUMBER, 1))

    def on_grown(self, grown: Callable[[OverlayQueue], None]) -> None:
        """Call `grown` when a message is appended, and then not again until `rearm`."""
        self._grown = grown
        self.consumers.count_broker()

    def rearm(self) -> None:
        """Call `grown` again when the next message is appended."""
        self.awake = False

    def wake_worker(self) -> None:
        """Wake the reader of the stream instead of a worker."""
        self.awake = True
        self._grown(self)


def tap_arguments(exchange: str, pattern: str, max_bytes: int, max_age_ms: int, first_id: int) -> dict[str, Any]:
    """Return the arguments with which the queue of a tap is declared."""
    return {
        _TAP_EXCHANGE: exchange,
        _TAP_PATTERN: pattern,
        _TAP_MAX_BYTES: max_bytes,
        _TAP_MAX_AGE: max_age_ms,
        _TAP_FIRST_ID: first_id,
    }


class TapQueue(InternalQueue):
    """The queue of one ``tap``, which gets the messages of an ``exchange`` whose routing keys match a topic
    ``pattern``. No client can use it.

    Units: ``max_bytes`` and ``max_age_ms`` limit its slot files. ``first_id`` is the id of its first message; lower ids
        belonged to a former tap of that name.
    """

    is_tap = True

    def __init__(self, declaration: QueueDeclaration, ports: QueuePorts[Level, Queue]) -> None:
        super().__init__(declaration, ports)
        arguments = self.arguments
        self.tap = self.name.removeprefix(TAP_PREFIX)
        self.exchange = str(arguments.get(_TAP_EXCHANGE, ""))
        self.pattern = str(arguments.get(_TAP_PATTERN, "#"))
        self.max_bytes = int(arguments[_TAP_MAX_BYTES])
        self.max_age_ms = int(arguments[_TAP_MAX_AGE])
        self.first_id = int(arguments.get(_TAP_FIRST_ID, 0))

    def is_same(self, exchange: str, pattern: str, max_bytes: int | None, max_age_ms: int | None) -> bool:
        """Return whether this tap is as a request describes it; a limit of None matches any."""
        return (self.exchange, self.pattern, self.max_bytes, self.max_age_ms) == (
            exchange,
            pattern,
            self.max_bytes if max_bytes is None else max_bytes,
            self.max_age_ms if max_age_ms is None else max_age_ms,
        )


def kind_of(name: str) -> type[Queue]:
    """Return the class of a queue by its name. No client can declare the names of internal queues."""
    if is_holding_name(name):
        return HoldingQueue
    if name.startswith(HISTORY_PREFIX):
        return HistoryQueue
    if name.startswith(SEEN_PREFIX):
        return SeenQueue
    if name in OF_MQTT:
        return MqttQueue
    if name.startswith(TAP_PREFIX):
        return TapQueue
    if name.startswith(STREAM_PREFIX):
        return OverlayQueue
    return Queue
