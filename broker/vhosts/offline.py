"""Vhosts that are down because their store is damaged: others work on, and the definitions of these are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.core.policy.policy import Policies

if TYPE_CHECKING:
    from broker.core.vhost import Vhost

__all__ = ["OfflineVhost"]


def _unheard() -> None:
    """Tell nobody of policies that change: there are no queues to follow them."""


@dataclass(frozen=True, slots=True)
class OfflineVhost:
    """A vhost that nobody can open until a start finds its store whole, or quarantines what is damaged.

    Shapes: ``policies`` are those it has, which go on to be written down with the definitions.
    """

    name: str
    reason: str
    policies: Policies = field(default_factory=lambda: Policies(_unheard))

    @classmethod
    def of(cls, vhost: Vhost, reason: str) -> OfflineVhost:
        """Return what stays of a vhost that goes offline: nothing that keeps its queues in memory."""
        offline = cls(vhost.name, reason)
        offline.policies.from_json(vhost.policies.to_json())
        return offline
