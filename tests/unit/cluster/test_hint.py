"""Hints: what NOTIFY carries, and the nodes that a mailbox knows by them."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.database import Database
from broker.cluster.hint import FREE, JOINED, PAYLOAD_BYTES_MAX, TOPOLOGY, Hint
from broker.cluster.mailbox import Mailbox

NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(number=NUMBERS, levels=st.lists(NUMBERS, max_size=3000))
def test_payloads_carry_every_level_once(number: int, levels: list[int]) -> None:
    """However many levels a call touched, PostgreSQL takes each payload, and together they name each level."""
    payloads = Hint(FREE, number, levels).payloads()
    assert all(len(payload) <= PAYLOAD_BYTES_MAX for payload in payloads)
    hints = [Hint.from_payload(payload) for payload in payloads]
    assert [level for hint in hints if hint for level in hint.levels] == levels
    assert {(hint.kind, hint.number) for hint in hints if hint} == {(FREE, number)}


def test_a_hint_without_levels_is_one_payload() -> None:
    """The topology's hint has a version only."""
    assert Hint(TOPOLOGY, 12).payloads() == ["topology 12"]


@pytest.mark.parametrize("payload", ["", "free", "free x", "free 1 2 x", "free 1  2"])
def test_a_payload_of_another_kind_is_no_hint(payload: str) -> None:
    """Anybody who may connect may NOTIFY; a hint that is not understood is ignored."""
    assert Hint.from_payload(payload) is None


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
