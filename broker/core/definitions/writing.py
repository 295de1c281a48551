"""Writes a document as the JSON that `read_document` reads, so that an import can be finished after a crash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from broker.core.definitions.typed_json import typed_table

if TYPE_CHECKING:
    from broker.core.auth.users import User
    from broker.core.definitions.document import BindingEntry, Document, ExchangeEntry, PolicyEntry, QueueEntry

__all__ = ["document_fields"]


def document_fields(document: Document, users: Iterable[User]) -> dict[str, Any]:
    """Return JSON that `read_document` reads as the same document; `users` are its users, without plain passwords."""
    return {
        "users": [user.to_json() for user in users],
        "vhosts": [{**vhost.facts, "name": vhost.name} for vhost in document.vhosts],
        "permissions": _rows(document.permissions),
        "topic_permissions": _rows(document.topic_permissions),
        "policies": [_policy(policy) for policy in document.policies if not policy.operator],
        "operator_policies": [_policy(policy) for policy in document.policies if policy.operator],
        "parameters": _rows(document.parameters),
        "global_parameters": _rows(document.global_parameters),
        "exchanges": [_declared(entry) for entry in document.exchanges],
        "queues": [_declared(entry) for entry in document.queues],
        "bindings": [_binding(binding) for binding in document.bindings],
    }


def _rows(entries: Sequence[Any]) -> list[dict[str, Any]]:
    return [asdict(entry) for entry in entries]


def _declared(entry: ExchangeEntry | QueueEntry | BindingEntry) -> dict[str, Any]:
    return {**asdict(entry), "arguments": typed_table(entry.arguments)}


def _policy(policy: PolicyEntry) -> dict[str, Any]:
    fields = asdict(policy)
    del fields["operator"]
    return {**fields, "apply-to": fields.pop("apply_to")}


def _binding(binding: BindingEntry) -> dict[str, Any]:
    fields = _declared(binding)
    return {**fields, "destination_type": "exchange" if fields.pop("to_exchange") else "queue"}
