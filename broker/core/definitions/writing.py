"""Write a document as JSON that `read_document` reads, so that an import can be finished after a crash."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import fields
from typing import Any

from broker.core.definitions.document import BindingEntry, Document, PolicyEntry, UserEntry, VhostEntry
from broker.core.definitions.typed_json import typed_table
from broker.core.policy.policy import Policy, operator_row


def writing_document(document: Document) -> Generator[None, None, dict[str, Any]]:
    """Return JSON that `read_document` reads as the same document, in steps of one entry."""
    written: dict[str, list[dict[str, Any]]] = {field.name: [] for field in fields(Document) if field.name != "unknown"}
    for name in written:
        for entry in getattr(document, name):
            part, row = row_of(name, entry)
            written[part].append(row)
            yield
    return written


def row_of(part: str, entry: Any) -> tuple[str, dict[str, Any]]:
    """Return an entry as JSON, and the part of the document that has it: operator policies are among the parameters.

    Invariant: a user has no plain password any more.
    """
    if isinstance(entry, PolicyEntry):
        policy = Policy(entry.name, entry.pattern, entry.apply_to, entry.definition, entry.priority)
        row = policy.row(entry.vhost)
        return ("parameters", operator_row(row)) if entry.operator else (part, row)
    if isinstance(entry, VhostEntry):
        return part, {**entry.facts, "name": entry.name}
    row = {name: getattr(entry, name) for name in entry.__slots__}
    if isinstance(entry, UserEntry):
        del row["password"]
        return part, {**row, "tags": list(entry.tags), "limits": dict(entry.limits)}
    if isinstance(entry, BindingEntry):
        row["destination_type"] = "exchange" if row.pop("to_exchange") else "queue"
    if "arguments" in row:
        row["arguments"] = typed_table(row["arguments"])
    return part, row
