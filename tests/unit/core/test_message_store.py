"""The broker's own store implements the ports of a store."""

from __future__ import annotations

import pytest

from broker.core.publishing.local_store import LocalStore
from broker.core.publishing.message_store import MessageStore, Settlements, SlotLeases, SlotReads
from broker.core.queue.stream import Stream
from broker.delivery.reader import SlotReader
from broker.slots.manager import SlotManager

# The type checker compares the signatures.
STORE: type[MessageStore] = LocalStore
LEASES: type[SlotLeases] = SlotManager
SETTLEMENTS: type[Settlements] = Stream
READS: type[SlotReads] = SlotReader


@pytest.mark.parametrize(
    ("port", "own"),
    [(MessageStore, STORE), (SlotLeases, LEASES), (Settlements, SETTLEMENTS), (SlotReads, READS)],
)
def test_the_own_store_has_each_verb(port: type, own: type) -> None:
    """Every method of a port is a method of the class that implements it here."""
    verbs = {name for name, value in vars(port).items() if callable(value) and not name.startswith("_")}
    assert verbs
    assert verbs <= set(dir(own))
