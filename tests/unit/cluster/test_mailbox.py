"""The nodes that a mailbox knows."""

from __future__ import annotations

from unittest.mock import Mock

from broker.cluster.database import Database
from broker.cluster.hint import JOINED, Hint
from broker.cluster.mailbox import Mailbox


def test_a_beat_that_is_older_than_a_join_does_not_hide_it() -> None:
    """The members that a beat shows may be older than the hint; the next beat was sent after it, and decides."""
    database = Database("postgresql://localhost/none", "b")
    mailbox = Mailbox(Mock(database=database), now_ms=lambda: 0, fail=Mock())
    mailbox.members_seen({1})
    mailbox.handle_hint(Hint(JOINED, 2))
    assert mailbox.is_elsewhere(2)
    mailbox.members_seen({1})
    assert mailbox.is_elsewhere(2)
    mailbox.members_seen({1})
    assert not mailbox.is_elsewhere(2)
