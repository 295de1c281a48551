"""What the engines and queues of a node work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.cluster.consumer_registry import ConsumerRegistry
    from broker.cluster.data_path import DataPath
    from broker.cluster.mailbox import Mailbox
    from broker.cluster.queue_inquiries import QueueInquiries
    from broker.cluster.shared_producers import ProducerClaims
    from broker.cluster.shared_topology import SharedTopology
    from broker.cluster.unused_queues import UnusedQueues

__all__ = ["NodeParts"]


@dataclass(slots=True, kw_only=True)
class NodeParts:
    """The parts of one node that all its vhosts share.

    ``data`` moves messages, ``topology`` decides changes of exchanges, queues and bindings, ``inquiries`` answers what
    clients ask of whole queues, ``consumers`` knows who consumes from which queue, ``claims`` claims producers,
    ``mailbox`` has the direct replies of other nodes, ``unused`` knows when queues that expire were used.
    """

    data: DataPath
    topology: SharedTopology
    inquiries: QueueInquiries
    consumers: ConsumerRegistry
    claims: ProducerClaims
    mailbox: Mailbox
    unused: UnusedQueues
