"""A definitions document as values: one frozen object for each entry.

Source: RabbitMQ's `definitions.json`, 3.6 to 4.x, of a whole cluster or of one vhost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class UserEntry:
    """A user; `password` is set instead of a hash in hand-written files."""

    name: str
    tags: tuple[str, ...]
    password_hash: str = field(repr=False)
    hashing_algorithm: str
    password: str | None = field(repr=False)
    limits: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class VhostEntry:
    """A vhost; `facts` are its description, tags, limits and all other fields of the document, unchanged."""

    name: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PermissionEntry:
    """The rights of a user in a vhost."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class TopicPermissionEntry:
    """The routing keys of an exchange that a user may publish with and bind."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy, or an operator policy."""

    vhost: str
    name: str
    pattern: str
    apply_to: str
    definition: Mapping[str, Any]
    priority: float
    operator: bool


@dataclass(frozen=True, slots=True)
class ParameterEntry:
    """A runtime parameter of a vhost, kept as it is."""

    vhost: str
    component: str
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class GlobalParameterEntry:
    """A runtime parameter of the broker, kept as it is."""

    name: str
    value: Any


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
    """All entries of a document.

    Invariant: entries are in the order of the document, and are not compared with the broker.
    """

    users: tuple[UserEntry, ...] = ()
    vhosts: tuple[VhostEntry, ...] = ()
    permissions: tuple[PermissionEntry, ...] = ()
    topic_permissions: tuple[TopicPermissionEntry, ...] = ()
    policies: tuple[PolicyEntry, ...] = ()
    parameters: tuple[ParameterEntry, ...] = ()
    global_parameters: tuple[GlobalParameterEntry, ...] = ()
    exchanges: tuple[ExchangeEntry, ...] = ()
    queues: tuple[QueueEntry, ...] = ()
    bindings: tuple[BindingEntry, ...] = ()
    unknown: tuple[str, ...] = ()  # names of non-empty lists that are ignored
