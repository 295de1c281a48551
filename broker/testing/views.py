"""Snapshots of a broker's queues, and of the messages published to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pamqp.commands import Basic

from broker.amqp.content_header import decode_properties
from broker.core.message.message import Message
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.delivery.message_loader import MessageLoader
from broker.slots.slot import Slot


class WithHeader:
    """A message whose content header is decoded on demand."""

    __slots__ = ()

    header: bytes

    @property
    def properties(self) -> Basic.Properties:
        """The properties in the header."""
        return decode_properties(self.header)

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers table, or an empty mapping."""
        return self.properties.headers or {}


@dataclass(frozen=True, slots=True)
class Published(WithHeader):
    """One published message as the broker received it, routed or not."""

    exchange: str
    routing_key: str
    body: bytes
    mandatory: bool
    header: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MessageView(WithHeader):
    """One message in a queue. Shapes: `state` is "ready" or "unacked"; `message_id` is unique in a priority level."""

    exchange: str
    routing_key: str
    body: bytes
    state: str
    redelivered: bool
    message_id: int
    header: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class QueueView:
    """A snapshot of a queue. Shapes: `messages` contains ready and unacked messages, in the order of delivery."""

    name: str
    messages: tuple[MessageView, ...]
    ready: int
    unacked: int
    consumers: int
    arguments: Mapping[str, Any]
    policy: str | None


def queue_view(queue: Queue) -> QueueView:
    """Return the current state of a queue."""
    found: list[MessageView] = []
    for level in reversed(queue.levels):
        for slot in level.manager.slots.values():
            found += _slot_views(level, slot)
    return QueueView(
        queue.name, tuple(found), queue.ready, queue.unacked, len(queue.consumers), dict(queue.arguments), queue.policy
    )


def _slot_views(level: Level, slot: Slot) -> list[MessageView]:
    unacked = set(slot.unacked())
    views = []
    for index in slot.acks.unsettled(0, slot.length):
        message = _message(level, slot, index)
        if message is not None:
            state, envelope = "unacked" if index in unacked else "ready", message.envelope
            known = (state, slot.redelivered(index), slot.first + index, message.header)
            views.append(MessageView(envelope.exchange, envelope.key, message.body, *known))
    return views


def _message(level: Level, slot: Slot, index: int) -> Message | None:
    if slot.contents is not None:
        message: Message | None = slot.contents[index]
        return message
    # The files of a broker under test are in memory by default, so this read does not block.
    first = slot.first + index
    (stored,) = level.store.slots.read(level.number, first, first + 1, None, None, MessageLoader())
    return stored
