"""A definitions document in memory: JSON rows as they are stored, and frozen objects for the topology.

Source: RabbitMQ's `definitions.json`, 3.6 to 4.x, of a whole cluster or of one vhost.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from broker.core.arguments import typed_table

Row = dict[str, Any]
"""An entry in the form of RabbitMQ's documents; an operator policy is a parameter there."""


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
    """A queue; `type` is None if the document does not state it: then the vhost's default applies."""

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
    """All entries of a document. They are not checked against the broker's objects.

    Shapes: `policies` includes the operator policies, which are not in `parameters`.
    """

    users: tuple[Row, ...] = field(default=(), repr=False)  # may contain passwords
    vhosts: tuple[Row, ...] = ()
    permissions: tuple[Row, ...] = ()
    topic_permissions: tuple[Row, ...] = ()
    policies: tuple[Row, ...] = ()
    parameters: tuple[Row, ...] = ()
    global_parameters: tuple[Row, ...] = ()
    exchanges: tuple[ExchangeEntry, ...] = ()
    queues: tuple[QueueEntry, ...] = ()
    bindings: tuple[BindingEntry, ...] = ()
    unknown: tuple[str, ...] = ()  # the names of ignored parts that are not empty


def writing_document(document: Document) -> Generator[None, None, dict[str, Any]]:
    """Return, in steps of one entry, JSON that `read_document` reads as an equal document."""
    written: dict[str, list[dict[str, Any]]] = {one.name: [] for one in fields(Document) if one.name != "unknown"}
    for name in written:
        for entry in getattr(document, name):
            part, row = row_of(name, entry)
            written[part].append(row)
            yield
    return written


def row_of(part: str, entry: Any) -> tuple[str, dict[str, Any]]:
    """Return the part of a document to which an entry belongs, and the entry as JSON; an operator policy belongs to the
    parameters. The caller has replaced plain passwords with hashes.
    """
    if isinstance(entry, dict):
        return "parameters" if part == "policies" and "component" in entry else part, entry
    row = {name: getattr(entry, name) for name in entry.__slots__}
    if isinstance(entry, BindingEntry):
        row["destination_type"] = "exchange" if row.pop("to_exchange") else "queue"
    if "arguments" in row:
        row["arguments"] = typed_table(row["arguments"])
    return part, row
