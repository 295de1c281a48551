"""Writes a document as the JSON that `read_document` reads, so that an import can be finished after a crash."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from broker.core.auth.users import User
from broker.core.definitions.document import BindingEntry, Document, ExchangeEntry, PolicyEntry, QueueEntry
from broker.core.definitions.typed_json import typed_table


def writing_document(document: Document, users: Iterable[User]) -> Generator[None, None, dict[str, Any]]:
    """Return JSON that `read_document` reads as the same document, in steps of one entry.

    `users` are its users, without plain passwords.
    """
    policies = yield from _rows(document.policies, _policy)
    return {
        "users": (yield from _rows(list(users), lambda user: user.to_json())),
        "vhosts": (yield from _rows(document.vhosts, lambda vhost: {**vhost.facts, "name": vhost.name})),
        "permissions": (yield from _rows(document.permissions, asdict)),
        "topic_permissions": (yield from _rows(document.topic_permissions, asdict)),
        "policies": [row for row, policy in zip(policies, document.policies, strict=True) if not policy.operator],
        "operator_policies": [row for row, policy in zip(policies, document.policies, strict=True) if policy.operator],
        "parameters": (yield from _rows(document.parameters, asdict)),
        "global_parameters": (yield from _rows(document.global_parameters, asdict)),
        "exchanges": (yield from _rows(document.exchanges, _exchange)),
        "queues": (yield from _rows(document.queues, _queue)),
        "bindings": (yield from _rows(document.bindings, _binding)),
    }


def _rows(entries: Sequence[Any], row_of: Callable[[Any], dict[str, Any]]) -> Generator[None, None, list[Any]]:
    rows = []
    for entry in entries:
        rows.append(row_of(entry))
        yield
    return rows


def _exchange(entry: ExchangeEntry) -> dict[str, Any]:
    return {
        "vhost": entry.vhost,
        "name": entry.name,
        "type": entry.type,
        "durable": entry.durable,
        "auto_delete": entry.auto_delete,
        "internal": entry.internal,
        "arguments": typed_table(entry.arguments),
    }


def _queue(entry: QueueEntry) -> dict[str, Any]:
    return {
        "vhost": entry.vhost,
        "name": entry.name,
        "durable": entry.durable,
        "auto_delete": entry.auto_delete,
        "arguments": typed_table(entry.arguments),
        "type": entry.type,
    }


def _policy(policy: PolicyEntry) -> dict[str, Any]:
    fields = asdict(policy)
    del fields["operator"]
    return {**fields, "apply-to": fields.pop("apply_to")}


def _binding(entry: BindingEntry) -> dict[str, Any]:
    return {
        "vhost": entry.vhost,
        "source": entry.source,
        "destination": entry.destination,
        "destination_type": "exchange" if entry.to_exchange else "queue",
        "routing_key": entry.routing_key,
        "arguments": typed_table(entry.arguments),
    }
