"""Transactions on the wire: what precedes commit-ok, and what waits for it."""

from __future__ import annotations

import pytest
from pamqp import commands

from broker.core.publish_credit import SHARE_ENTRIES
from tests.raw_client import RawClient, method_frame, publish_frames

Basic, Queue, Tx = commands.Basic, commands.Queue, commands.Tx
PERSISTENT = Basic.Properties(delivery_mode=2)


@pytest.fixture
def queue(raw: RawClient, name: str) -> str:
    """Provide a durable queue, on a client whose channel 1 is transactional."""
    raw.call(1, Queue.Declare(queue=name, durable=True, auto_delete=True), Queue.DeclareOk)
    raw.call(1, Tx.Select(), Tx.SelectOk)
    return name


def test_what_is_sent_behind_a_commit_waits(raw: RawClient, queue: str, oracle: bool) -> None:
    """Frames after tx.commit are processed after commit-ok, in order; RabbitMQ closes the connection instead."""
    if oracle:
        pytest.skip("504 unexpected command while processing 'tx.commit'")
    commit = method_frame(1, Tx.Commit())
    purge = method_frame(1, Queue.Purge(queue=queue))
    raw.send(publish_frames(1, "", queue, b"x", properties=PERSISTENT) * 3, commit, purge)
    raw.send(publish_frames(1, "", queue, b"x", properties=PERSISTENT), commit, commit, purge)
    raw.expect(Tx.CommitOk, 1)
    assert raw.expect(Queue.PurgeOk, 1).message_count == 3
    raw.expect(Tx.CommitOk, 1)
    raw.expect(Tx.CommitOk, 1)
    assert raw.expect(Queue.PurgeOk, 1).message_count == 1


def test_each_of_several_large_commits_is_answered(raw: RawClient, queue: str, oracle: bool) -> None:
    """A commit that uses up the publisher's credit is held for its answer after the credit is renewed, too."""
    if oracle:
        pytest.skip("504 unexpected command while processing 'tx.commit'")
    large = SHARE_ENTRIES + 1
    transaction = publish_frames(1, "", queue, b"x", properties=PERSISTENT) * large + method_frame(1, Tx.Commit())
    raw.send(transaction * 3, method_frame(1, Queue.Purge(queue=queue)))
    for _ in range(3):
        raw.expect(Tx.CommitOk, 1)
    assert raw.expect(Queue.PurgeOk, 1).message_count == 3 * large


def test_other_channels_go_on(raw: RawClient, queue: str) -> None:
    """An open transaction delays no other channel."""
    raw.open_channel(2)
    raw.send(publish_frames(1, "", queue, b"kept"))
    raw.send(publish_frames(2, "", queue, b"seen"))
    raw.call(2, Basic.Get(queue=queue, no_ack=True), Basic.GetOk)
    assert raw.expect_content(2)[1] == b"seen"
    raw.call(1, Tx.Commit(), Tx.CommitOk)
    assert raw.call(2, Queue.Purge(queue=queue), Queue.PurgeOk).message_count == 1


def test_returns_come_before_the_answer(raw: RawClient, queue: str, name: str) -> None:
    """Every return of a transaction is sent before its commit-ok, in the order of the publishes."""
    for body in (b"1", b"2"):
        raw.send(publish_frames(1, "", f"{name}.none", body, mandatory=True))
        raw.send(publish_frames(1, "", queue, body, properties=PERSISTENT))
    raw.method(1, Tx.Commit())
    for body in (b"1", b"2"):
        assert raw.expect(Basic.Return, 1).reply_code == 312
        assert raw.expect_content(1)[1] == body
    raw.expect(Tx.CommitOk, 1)


def test_many_commits(raw: RawClient, queue: str) -> None:
    """Each commit is answered once, whatever it held."""
    for number in range(50):
        raw.send(publish_frames(1, "", queue, b"x", properties=PERSISTENT) * (number % 3))
        raw.call(1, Tx.Commit() if number % 4 else Tx.Rollback(), Tx.CommitOk if number % 4 else Tx.RollbackOk)
    kept = sum(number % 3 for number in range(50) if number % 4)
    assert raw.call(1, Queue.Purge(queue=queue), Queue.PurgeOk).message_count == kept
