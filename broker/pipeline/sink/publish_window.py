"""The unconfirmed publishes of one connection, by delivery tag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pamqp import commands

# Exchange, routing key, property octets from the flags on, body, sequence or None, and the caller's identifier.
Outgoing = tuple[str, str, bytes, bytes, int | None, object]


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A finally refused message, with the broker's code and text; code 0 means a full queue."""

    message: Outgoing
    code: int
    reason: str


class PublishWindow:
    """Holds the messages in flight.

    Shapes: delivery tags begin at 1 with each connection and are dense; ``waiting`` has the messages by tag, ascending,
        ``attempts`` the number of nacks of those that were nacked before.
    """

    def __init__(self, octets_of: Callable[[Outgoing], bytes]) -> None:
        """`octets_of` returns the property octets with which a message is sent."""
        self._octets_of = octets_of
        self.waiting: dict[int, Outgoing] = {}
        self.attempts: dict[int, int] = {}
        self.next_tag = 1
        self._returned: dict[int, tuple[int, str]] = {}  # code and text by tag: the ack follows
        self._matched = 0  # the tag of the latest return

    def __len__(self) -> int:
        return len(self.waiting)

    def acked(self, tag: int, *, multiple: bool) -> list[RefusedMessage]:
        """Forget the acked messages, and return those that the broker returned. HOT."""
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
        """Forget the nacked messages, and return them, each with the number of its nacks."""
        return [
            (self.waiting.pop(known), self.attempts.pop(known, 0) + 1) for known in self._tags(tag, multiple=multiple)
        ]

    def _tags(self, tag: int, *, multiple: bool) -> list[int]:
        if not multiple:
            return [tag] if tag in self.waiting else []
        return [known for known in self.waiting if known <= tag]

    def restart(self) -> list[tuple[Outgoing, int]]:
        """Return the messages in flight, in order, and start over after a lost connection."""
        left = [(message, self.attempts.get(tag, 0)) for tag, message in self.waiting.items()]
        self.waiting.clear()
        self.attempts.clear()
        self._returned.clear()
        self.next_tag = 1
        self._matched = 0
        return left

    # -- returns ------------------------------------------------------------------------------------------------------

    def returned(self, method: commands.Basic.Return, properties: bytes, body: bytes) -> None:
        """Note that the broker returned a message; its ack follows."""
        tag = self._match(method, properties, body)
        if tag:
            self._matched = tag
            self._returned[tag] = (method.reply_code or 0, method.reply_text)

    def _match(self, method: commands.Basic.Return, properties: bytes, body: bytes) -> int:
        """Return the tag of the returned message, the next message that equals it, 0 for none.

        Returns come in the order of publishes. The broker may have changed the properties.
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
