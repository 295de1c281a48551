"""How a broker becomes a node of a cluster, if its settings say so. Without them nothing of the cluster is imported."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.amqp.errors import BrokerError

if TYPE_CHECKING:
    from broker.cluster.broker_node import BrokerNode
    from broker.delivery.turn import Turn
    from broker.net.address import Bound
    from broker.settings import Settings
    from broker.store.data_folder import DataFolder

__all__ = ["node_of"]

WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - not bound here


def node_of(
    settings: Settings,
    folder: DataFolder,
    bound: Bound,
    turn: Turn,
    loop: asyncio.AbstractEventLoop,
    fail: Callable[[BaseException], None],
) -> BrokerNode | None:
    """Return the node that this broker is to be, None for a broker that stands alone.

    Raises: BrokerError when the driver is missing, or when the data folder has messages of a broker that stood alone.
    """
    if not settings.cluster.is_on:
        return None
    try:
        from broker.cluster.broker_node import BrokerNode  # noqa: PLC0415 - other brokers need no database driver
    except ImportError as error:
        raise BrokerError(f"a node of a cluster needs slotmq[cluster]: {error}") from error
    if folder.has_begun or folder.files.exists(folder.path / "definitions") or folder.list_vhosts():
        raise BrokerError(
            f"{folder.path} has the messages of a broker that stood alone: a node needs another data folder"
        )
    host = settings.server.host
    if host in WILDCARDS:
        host = socket.gethostname()
    scheme, sockets = ("amqp", bound.amqp) if bound.amqp else ("amqps", bound.tls)
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{sockets[0].getsockname()[1]}/"
    return BrokerNode(settings, turn, loop, url=url, fail=fail)
