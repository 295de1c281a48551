"""The routes under /v1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.manage.v1.slot_routes import slot_routes
from broker.manage.v1.snapshot_routes import snapshot_routes
from broker.manage.v1.tap_routes import tap_routes

if TYPE_CHECKING:
    from broker.manage.api_route import ApiRoute
    from broker.manage.managed_broker import ManagedBroker
    from broker.manage.v1.file_reads import FileReads

__all__ = ["v1_routes"]


def v1_routes(broker: ManagedBroker, reads: FileReads) -> list[ApiRoute]:
    """Return the routes."""
    vhosts = broker.administration.vhosts
    return [
        *slot_routes(broker.taps, broker.incarnation, reads),
        *tap_routes(broker.taps, vhosts),
        *snapshot_routes(broker.taps, vhosts, reads),
    ]
