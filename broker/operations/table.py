"""The table of all operations; each is also a verb of the control socket."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation, verb_of
from broker.operations.request import Verb

NOUNS: Final = (
    "process drain listing top queues exchanges messages unacked retained moving users vhosts taps trace definitions"
).split()
"""The modules of the operations, each with its OPERATIONS."""
OPERATIONS: Final[dict[str, Operation[Any]]] = {
    name: operation
    for noun in NOUNS
    for name, operation in import_module(f"broker.operations.{noun}").OPERATIONS.items()
}


def control_verbs(broker: OperatedBroker) -> dict[str, Verb]:
    """Return the verbs of the control socket by name."""
    return {name: verb_of(broker, operation) for name, operation in OPERATIONS.items()}
