"""The kinds of queues of a standalone broker."""

from __future__ import annotations

from typing import Final

from broker.core.queue.holding_queue import HoldingQueue, is_holding_name
from broker.core.queue.memory_queue import (
    HANDSHAKES_NAME,
    RETAINED_NAME,
    WILLS_NAME,
    HandshakesQueue,
    HistoryQueue,
    RetainedQueue,
    SeenQueue,
    WillsQueue,
)
from broker.core.queue.overlay_queue import OverlayQueue, is_overlay_name
from broker.core.queue.queue import Queue
from broker.core.queue.tap_queue import TapQueue, is_tap_name
from broker.routing.memory_exchange import HISTORY_PREFIX, SEEN_PREFIX

__all__ = ["kind_of"]


OF_MQTT: Final[dict[str, type[Queue]]] = {
    RETAINED_NAME: RetainedQueue,
    HANDSHAKES_NAME: HandshakesQueue,
    WILLS_NAME: WillsQueue,
}


class RecoveredQueue(Queue):
    """The messages of a queue whose declaration was lost. Clients use it like any other queue."""

    __slots__ = ()

    recovered = True


def kind_of(name: str, recovered: bool) -> type[Queue]:
    """Return the class of a queue: its name tells what it is for, `recovered` that its declaration was lost."""
    if is_holding_name(name):
        return HoldingQueue
    if name.startswith(HISTORY_PREFIX):
        return HistoryQueue
    if name.startswith(SEEN_PREFIX):
        return SeenQueue
    if name in OF_MQTT:
        return OF_MQTT[name]
    if is_tap_name(name):
        return TapQueue
    if is_overlay_name(name):
        return OverlayQueue
    return RecoveredQueue if recovered else Queue
