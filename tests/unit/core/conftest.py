"""A vhost with a store in memory, and a client."""

from __future__ import annotations

import pytest

from broker.core.vhost import Vhost
from tests.unit.core.room import Client, Room


@pytest.fixture
def room() -> Room:
    """Return a vhost with its environment."""
    return Room()


@pytest.fixture
def client(room: Room) -> Client:
    """Return a client of the room's vhost, with channel 1 open."""
    return room.enter()


@pytest.fixture
def vhost(room: Room) -> Vhost:
    """Return the room's vhost."""
    return room.vhost
