"""The table of operations."""

from __future__ import annotations

from typing import Any, Final

from broker.operations.definitions import DEFINITION_OPERATIONS
from broker.operations.drain import DRAIN_OPERATIONS
from broker.operations.exchanges import EXCHANGE_OPERATIONS
from broker.operations.listing import LISTINGS
from broker.operations.messages import MESSAGE_OPERATIONS
from broker.operations.moving import MOVING_OPERATIONS
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation, verb_of
from broker.operations.process import PROCESS_OPERATIONS
from broker.operations.queues import QUEUE_OPERATIONS
from broker.operations.request import Verb
from broker.operations.retained import RETAINED_OPERATIONS
from broker.operations.taps import TAP_OPERATIONS
from broker.operations.top import TOP_OPERATIONS
from broker.operations.trace import TRACE_OPERATIONS
from broker.operations.unacked import UNACKED_OPERATIONS
from broker.operations.users import USER_OPERATIONS
from broker.operations.vhosts import VHOST_OPERATIONS

OPERATIONS: Final[dict[str, Operation[Any]]] = {
    **PROCESS_OPERATIONS,
    **DRAIN_OPERATIONS,
    **LISTINGS,
    **TOP_OPERATIONS,
    **QUEUE_OPERATIONS,
    **EXCHANGE_OPERATIONS,
    **MESSAGE_OPERATIONS,
    **UNACKED_OPERATIONS,
    **RETAINED_OPERATIONS,
    **MOVING_OPERATIONS,
    **USER_OPERATIONS,
    **VHOST_OPERATIONS,
    **TAP_OPERATIONS,
    **TRACE_OPERATIONS,
    **DEFINITION_OPERATIONS,
}


def control_verbs(broker: OperatedBroker) -> dict[str, Verb]:
    """Return the operations as verbs of the control socket."""
    return {name: verb_of(broker, operation) for name, operation in OPERATIONS.items()}
