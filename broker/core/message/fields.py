"""The further routing keys of a message, those of its headers CC and BCC."""

from __future__ import annotations

from typing import Any

from broker.amqp.deaths import X_DEATH
from broker.amqp.header_edit import read_headers
from broker.amqp.header_facts import MISSING, HeaderFacts
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
