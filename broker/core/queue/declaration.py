"""The declaration of a queue: its fixed properties."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["QueueDeclaration"]


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """The properties with which a queue is created.

    ``number`` names its messages in the log, and no other queue ever had it. ``exclusive_owner`` is the connection of
    an exclusive queue. ``recovered`` says that the client's declaration was lost.
    """

    name: str
    number: int
    durable: bool = field(default=True, kw_only=True)
    exclusive_owner: object | None = field(default=None, kw_only=True)
    auto_delete: bool = field(default=False, kw_only=True)
    arguments: dict[str, Any] = field(default_factory=dict, kw_only=True)
    recovered: bool = field(default=False, kw_only=True)
