"""Offline vhosts, whose store is damaged. The others keep working, and the definitions of these are kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.core.policy.policy import Policies
from broker.core.vhost import Vhost

__all__ = ["OfflineVhost"]


def _unheard() -> None:
    """Do nothing: an offline vhost has no queues that policies apply to."""


@dataclass(frozen=True, slots=True)
class OfflineVhost:
    """A vhost that no client can open until a start finds its store whole, or quarantines the damage.

    Shapes: ``policies`` are written with the definitions, as those of other vhosts are.
    """

    name: str
    reason: str
    policies: Policies = field(default_factory=lambda: Policies(_unheard))

    @classmethod
    def of(cls, vhost: Vhost, reason: str) -> OfflineVhost:
        """Return the offline form of a vhost: its definitions without its queues."""
        offline = cls(vhost.name, reason)
        offline.policies.from_json(vhost.policies.to_json())
        return offline
