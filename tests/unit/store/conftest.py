"""Files in memory, a store, and its log."""

from __future__ import annotations

import pytest

from broker.store.memory_files import MemoryFiles
from broker.store.message_log import MessageLog
from tests.unit.store.room import Room


@pytest.fixture
def files() -> MemoryFiles:
    """Provide files in memory."""
    return MemoryFiles()


@pytest.fixture
def room() -> Room:
    """Provide a store."""
    return Room()


@pytest.fixture
def log(room: Room) -> MessageLog:
    """Provide the log of the store."""
    return room.store.log
