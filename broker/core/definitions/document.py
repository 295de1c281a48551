"""A definitions document as values: rows as they are stored, and frozen objects for the topology.

Source: RabbitMQ's `definitions.json`, 3.6 to 4.x, of a whole cluster or of one vhost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
"""An entry as RabbitMQ's documents have it; an operator policy is a parameter there."""


@dataclass(frozen=True, slots=True)
class ExchangeEntry:
    """An exchange."""

    vhost: str
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A queue; `type` is None if the document does not have it: then the default of the vhost applies."""

    vhost: str
    name: str
    durable: bool
    auto_delete: bool
    arguments: Mapping[str, Any]
    type: str | None


@dataclass(frozen=True, slots=True)
class BindingEntry:
    """A binding of a queue or an exchange."""

    vhost: str
    source: str
    destination: str
    to_exchange: bool
    routing_key: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    """All entries of a document. Shapes: `policies` has the operator policies too, which are not in `parameters`.

    Invariant: entries are in the order of the document, and are not compared with the broker.
    """

    users: tuple[Row, ...] = field(default=(), repr=False)  # may have passwords
    vhosts: tuple[Row, ...] = ()
    permissions: tuple[Row, ...] = ()
    topic_permissions: tuple[Row, ...] = ()
    policies: tuple[Row, ...] = ()
    parameters: tuple[Row, ...] = ()
    global_parameters: tuple[Row, ...] = ()
    exchanges: tuple[ExchangeEntry, ...] = ()
    queues: tuple[QueueEntry, ...] = ()
    bindings: tuple[BindingEntry, ...] = ()
    unknown: tuple[str, ...] = ()  # names of non-empty lists that are ignored
