"""The counts that a shared queue knows before a method asks PostgreSQL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.shared_queue import FRESH_MS, SharedQueue
from broker.core.deadlines import Clock
from broker.core.postponed import Postponed

pytestmark = pytest.mark.interpreted("a queue that is made without its constructor")


@pytest.fixture
def queue() -> SharedQueue:
    """Provide a queue that has only what its inquiries need."""
    queue = SharedQueue.__new__(SharedQueue)
    made = cast("Any", queue)
    inquiries = SimpleNamespace(count=lambda _, answered: answered((7, 2)), purge=lambda _: None)
    made._parts = SimpleNamespace(inquiries=inquiries)
    made._ports = SimpleNamespace(clock=Clock())
    made._noted, made._counted = None, None
    return queue


def test_a_queue_that_this_node_has_made_is_empty_once(queue: SharedQueue) -> None:
    """Its declaration is answered without asking; the next one asks."""
    queue.note_made()
    queue.prepare_for("declare", None)
    assert queue.counts() == (0, 0)
    with pytest.raises(Postponed) as raised:
        queue.prepare_for("declare", None)
    raised.value.begin(lambda: None)
    queue.prepare_for("declare", None)
    assert queue.counts() == (7, 2)


def test_what_is_known_of_a_queue_does_not_last(queue: SharedQueue) -> None:
    """A declaration that comes later asks, and so does any other method."""
    queue.note_made()
    cast("Any", queue)._ports.clock.now_ms = FRESH_MS + 1
    with pytest.raises(Postponed):
        queue.prepare_for("declare", None)
    queue.note_made()
    with pytest.raises(Postponed):
        queue.prepare_for("purge", None)
