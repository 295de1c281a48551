"""What a node of the cluster tells the broker: that it joined, paused, went on or was lost, and who the members are."""

from __future__ import annotations

from typing import Protocol

from broker.cluster.database_rows import ClusterMember, LeasedRow

__all__ = ["NodeEvents"]


class NodeEvents(Protocol):
    """What a node tells the broker."""

    async def joining(self) -> None:
        """Load the topology; the node joins then."""

    async def joined(self, version: int) -> None:
        """Catch up to this version of the topology, or a newer one. The node acts when this has returned."""

    def paused(self, reason: str) -> None:
        """Block publishers, as the lease has ended. `may_act` is already False."""

    def acts(self) -> None:
        """Act: the node has caught up, or its pause has ended and what it held it still holds. `may_act` is True."""

    async def lost(self, reason: str) -> None:
        """Drop what the node held, and close its clients. The node joins as a new epoch when this has returned."""

    def members_seen(self, members: list[ClusterMember]) -> None:
        """Take the members as each beat shows them."""

    def members_changed(self, members: list[ClusterMember]) -> None:
        """Take the members after one came or went."""

    def reconcile(self, rows: list[LeasedRow]) -> None:
        """Take what the node holds by the database, after a break; no call and no lease is under way."""
