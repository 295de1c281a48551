"""The default queue type of a vhost, for declares that name no type. Source: RabbitMQ 3.13, default queue type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.core.queue.queue_arguments import CLASSIC, STREAM
from broker.core.queue.rules import QUORUM

__all__ = ["check_default_type", "default_type", "ignored_default_type", "with_default_type"]

FACT: Final = "default_queue_type"
NONE: Final = "undefined"  # RabbitMQ's export for a vhost without one
TYPES: Final = {CLASSIC: CLASSIC, QUORUM: QUORUM, "rabbit_classic_queue": CLASSIC, "rabbit_quorum_queue": QUORUM}


def default_type(facts: Mapping[str, Any]) -> str | None:
    """Return the default type among the facts of a vhost, None when it is missing or not supported."""
    said = _said(facts)
    return TYPES.get(said) if isinstance(said, str) else None


def ignored_default_type(facts: Mapping[str, Any]) -> str | None:
    """Return why the default type among the facts of a vhost has no effect, None when it has one or is not set."""
    said = _said(facts)
    if said is None or default_type(facts) is not None:
        return None
    return f"{FACT} {said!r} has no effect: {_reason(said)}"


def check_default_type(name: str | None) -> str | None:
    """Return the default type that an operator asked for. Raises: ValueError."""
    if name is None or name == NONE:
        return None
    if name not in TYPES:
        raise ValueError(f"{FACT} cannot be {name!r}: {_reason(name)}")
    return TYPES[name]


def with_default_type(
    arguments: Mapping[str, Any], default: str | None, *, durable: bool, exclusive: bool, auto_delete: bool
) -> Mapping[str, Any]:
    """Return the arguments of a declare with the default type, unless they name one.

    A queue that cannot be a quorum queue ignores a default of quorum.
    """
    if default is None or "x-queue-type" in arguments:
        return arguments
    if default == QUORUM and (not durable or exclusive or auto_delete):
        return arguments
    return {**arguments, "x-queue-type": default}


def _said(facts: Mapping[str, Any]) -> Any:
    """Return the default type as the facts have it: RabbitMQ writes it next to the name and in the metadata."""
    metadata = facts.get("metadata")
    for found in (facts, metadata if isinstance(metadata, Mapping) else {}):
        said = found.get(FACT)
        if said is not None and said != NONE:
            return said
    return None


def _reason(said: Any) -> str:
    return "streams are not supported" if said == STREAM else f"it is {CLASSIC} or {QUORUM}"
