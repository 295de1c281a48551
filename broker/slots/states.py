"""The states of a slot: whether it accepts messages, and whether it is leased.

Two small state machines, each one table; an illegal move raises. Source: WSO2 Message Broker 3.0.0, "Slot Based
Architecture". Of its states CREATED, ASSIGNED, OVERLAPPED, RETURNED and DELETED, OVERLAPPED cannot happen here: slots
do not overlap, because message ids are dense per queue.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Fill(Enum):
    """Whether a slot accepts messages."""

    OPEN = "open"
    SEALED = "sealed"


class Tenure(Enum):
    """Whether a slot is free, leased or deleted."""

    FREE = "free"
    LEASED = "leased"
    DELETED = "deleted"


class Owner(NamedTuple):
    """The holder of a lease: a worker of a node."""

    node: str
    worker: str


class IllegalMove(Exception):
    """The state of a slot does not allow this move."""


FILL_MOVES: Final = {(Fill.OPEN, "seal"): Fill.SEALED}
TENURE_MOVES: Final = {
    (Tenure.FREE, "lease"): Tenure.LEASED,
    (Tenure.LEASED, "end_lease"): Tenure.FREE,
    (Tenure.FREE, "delete"): Tenure.DELETED,
    (Tenure.LEASED, "delete"): Tenure.DELETED,
}
