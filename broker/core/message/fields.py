"""The fields of a message that routing reads besides its key: headers, decoded on demand, and those of CC and BCC."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from broker.amqp.content_header import MISSING, HeaderFacts, Properties, decode_properties
from broker.amqp.deaths import X_DEATH
from broker.amqp.header_edit import read_headers
from broker.core.message.message import Message
from broker.core.message.x_death import past_deaths


def further_keys(facts: HeaderFacts) -> list[str]:
    """Return the routing keys that the headers CC and BCC add; RabbitMQ skips other values than text in them."""
    return [key for keys in (facts.cc, facts.bcc) if keys is not MISSING for key in keys if isinstance(key, str)]


def carbon_copies(headers: dict[str, Any], key: str) -> list[str]:
    """Return the routing keys of the header CC by which a message with this routing key was published.

    There are none once a queue has given the message a new key: the header stays, but no longer routes. The latest
    death has the keys with which the message was published; without a new key they are the message's own.
    """
    keys = headers.get("CC")
    copies = [copy for copy in keys if isinstance(copy, str)] if isinstance(keys, list) else []
    latest = next(iter(past_deaths(headers)), None)
    return copies if latest is None or latest.get("routing-keys") == [key, *copies] else []


def copies_of(message: Message) -> tuple[str, ...]:
    """Return the routing keys of the header CC by which a message that is stored was published."""
    if message.facts.cc is MISSING:
        return ()
    return tuple(carbon_copies(read_headers(message.header, X_DEATH, "CC"), message.envelope.key))


class HeaderFields:
    """The message fields of a content header, which is decoded at the first read (routing's MessageFields)."""

    __slots__ = ("_header", "_properties")

    def __init__(self, header: bytes) -> None:
        self._header = header
        self._properties: Properties | None = None

    @property
    def headers(self) -> Mapping[str, Any]:
        """The header table, empty if there is none."""
        headers: Mapping[str, Any] | None = self._decoded().headers
        return headers or {}

    def property(self, name: str) -> str | None:
        """Return a property as text, a timestamp in seconds since 1970; None if it is absent."""
        value: Any = getattr(self._decoded(), name)
        if isinstance(value, datetime):
            return str(int(value.replace(tzinfo=value.tzinfo or UTC).timestamp()))
        return None if value is None else str(value)

    def _decoded(self) -> Properties:
        if self._properties is None:
            self._properties = decode_properties(self._header)
        return self._properties
