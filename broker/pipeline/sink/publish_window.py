"""The publishes of one connection that the broker has not confirmed yet, by delivery tag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from pamqp import commands

from broker.amqp.wire import PROPERTIES_AT

__all__ = ["Outgoing", "PublishWindow", "RefusedMessage"]

# Exchange, routing key, property octets from the flags on, body, sequence or None, and what the caller knows it by.
Outgoing = tuple[str, str, bytes, bytes, int | None, object]

HEADER: Final = 2  # a frame's type
BODY_SIZE: Final = Struct(">Q")


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A message that the broker did not take for good, with its code and words; 0 is a full queue's."""

    message: Outgoing
    code: int
    reason: str


class PublishWindow:
    """Holds what is under way.

    Shapes: delivery tags begin at 1 with each connection and are dense; ``waiting`` has the messages by tag, ascending,
        ``attempts`` says of those that were nacked before how often.
    """

    __slots__ = ("_matched", "_octets_of", "_parts", "_returned", "_size", "attempts", "next_tag", "waiting")

    def __init__(self, octets_of: Callable[[Outgoing], bytes]) -> None:
        """`octets_of` returns the property octets that a message is sent with."""
        self._octets_of = octets_of
        self.waiting: dict[int, Outgoing] = {}
        self.attempts: dict[int, int] = {}
        self.next_tag = 1
        self._returned: dict[int, tuple[int, str]] = {}  # code and text by tag: its ack follows
        self._matched = 0  # the tag that was returned last
        self._parts: list[bytes] = []  # content header and bodies of a return that is not whole yet
        self._size = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def acked(self, tag: int, *, multiple: bool) -> list[RefusedMessage]:
        """Forget what an ack is about, and return those that were returned. HOT."""
        if multiple and not self._returned and not self.attempts:
            waiting = self.waiting
            first = next(iter(waiting), tag + 1)
            if len(waiting) == tag - first + 1:
                waiting.clear()
            else:
                for known in range(first, tag + 1):
                    waiting.pop(known, None)
            return []
        refused = []
        for known in self._tags(tag, multiple=multiple):
            message = self.waiting.pop(known)
            self.attempts.pop(known, None)
            returned = self._returned.pop(known, None)
            if returned is not None:
                refused.append(RefusedMessage(message, *returned))
        return refused

    def nacked(self, tag: int, *, multiple: bool) -> list[tuple[Outgoing, int]]:
        """Forget what a nack is about, and return it, each with how often it was nacked by now."""
        return [
            (self.waiting.pop(known), self.attempts.pop(known, 0) + 1) for known in self._tags(tag, multiple=multiple)
        ]

    def _tags(self, tag: int, *, multiple: bool) -> list[int]:
        if not multiple:
            return [tag] if tag in self.waiting else []
        return [known for known in self.waiting if known <= tag]

    def restart(self) -> list[tuple[Outgoing, int]]:
        """Return what is under way, in order, and begins anew: the connection is lost."""
        left = [(message, self.attempts.get(tag, 0)) for tag, message in self.waiting.items()]
        self.waiting.clear()
        self.attempts.clear()
        self._returned.clear()
        self._parts.clear()
        self.next_tag = 1
        self._matched = 0
        return left

    # -- returns ------------------------------------------------------------------------------------------------------

    def take_content(self, method: commands.Basic.Return, kind: int, payload: bytes) -> bool:
        """Take a frame of a returned message, and return whether that was the last one."""
        parts = self._parts
        if kind == HEADER:
            self._size = BODY_SIZE.unpack_from(payload, 4)[0]
            parts[:] = [payload]
        elif parts:
            parts.append(payload)
        if not parts or sum(map(len, parts[1:])) < self._size:
            return False
        header, body = parts[0], b"".join(parts[1:])
        parts.clear()
        tag = self._match(method, header[PROPERTIES_AT:], body)
        if tag:
            self._matched = tag
            self._returned[tag] = (method.reply_code or 0, method.reply_text)
        return True

    def _match(self, method: commands.Basic.Return, properties: bytes, body: bytes) -> int:
        """Return the tag of the message that came back, 0 for none: the next one like it.

        Returns come in the order of publishes. A broker may have changed the properties on the way.
        """
        like = 0
        route = (method.exchange, method.routing_key)
        for tag in range(self._matched + 1, self.next_tag):
            message = self.waiting.get(tag)
            if message is None or message[3] != body or message[:2] != route:
                continue
            if self._octets_of(message) == properties:
                return tag
            like = like or tag
        return like
