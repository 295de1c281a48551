"""Transactions over messages that were paged out, and their records in the log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from broker.server import BrokerServer
from tests.in_process import queue_of
from tests.raw_client import RawClient, publish_frames
from tests.raw_talk import connect, mortal_broker, page_out, publish, talk

Basic, Queue, Tx = commands.Basic, commands.Queue, commands.Tx


def rejecting(broker: BrokerServer) -> tuple[int, int]:
    """Reject two paged-out messages in a transaction; return the number of dead letters before and after it."""
    with connect(broker) as client:
        table: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        client.declare_queue(1, "q", durable=True, arguments=table)
        client.declare_queue(1, "dead", durable=True)
        publish(client, "q", [b"1", b"2"])
        client.call(1, Tx.Select(), Tx.SelectOk)
        for tag in (1, 2):
            client.call(1, Basic.Get(queue="q"), Basic.GetOk)
            client.expect_content(1)
            client.method(1, Basic.Nack(delivery_tag=tag, requeue=False))
        page_out(broker, "q")
        before = queue_of(broker, "dead").ready
        client.call(1, Tx.Commit(), Tx.CommitOk)
        after = queue_of(broker, "dead").ready
        assert (queue_of(broker, "q").ready, queue_of(broker, "q").unacked) == (0, 0)
    return before, after


async def test_dead_letters_from_disk_are_part_of_the_commit(tmp_path: Path) -> None:
    """Rejected messages are read first: the dead letters exist when the commit is answered."""
    async with mortal_broker(tmp_path) as broker:
        assert await talk(broker, rejecting, broker) == (0, 2)


async def test_dead_letters_of_a_commit_survive(tmp_path: Path) -> None:
    """After commit-ok a crash finds the dead letters in their queue, and nowhere else."""
    async with mortal_broker(tmp_path, crash=True) as broker:
        await talk(broker, rejecting, broker)
    async with mortal_broker(tmp_path) as broker:
        assert (queue_of(broker, "q").ready, queue_of(broker, "dead").ready) == (0, 2)


@pytest.mark.parametrize("committed", [True, False])
async def test_one_record_stands_around_a_transaction(tmp_path: Path, committed: bool) -> None:
    """Publishes and acks of a commit survive a crash together; without the commit neither does."""

    def work(client: RawClient) -> None:
        client.declare_queue(1, "from", durable=True)
        client.declare_queue(1, "to", durable=True)
        publish(client, "from", [b"1", b"2"])
        client.call(1, Tx.Select(), Tx.SelectOk)
        for tag in (1, 2):
            client.call(1, Basic.Get(queue="from"), Basic.GetOk)
            body = client.expect_content(1)[1]
            client.send(publish_frames(1, "", "to", body, properties=Basic.Properties(delivery_mode=2)))
            client.method(1, Basic.Ack(delivery_tag=tag))
        if committed:
            client.call(1, Tx.Commit(), Tx.CommitOk)
        client.call(1, Queue.Declare(queue="to", passive=True), Queue.DeclareOk)

    async with mortal_broker(tmp_path, crash=True) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, work, client)
    async with mortal_broker(tmp_path) as broker:
        assert (queue_of(broker, "from").ready, queue_of(broker, "to").ready) == ((0, 2) if committed else (2, 0))


async def test_a_commit_that_cannot_be_done_after_a_read_ends_its_channel(tmp_path: Path) -> None:
    """A queue that rejects publishes is full after the read: tx.commit gets 406, and only the channel ends."""

    def work(client: RawClient) -> commands.Channel.Close:
        table: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        client.declare_queue(1, "q", durable=True, arguments=table)
        client.declare_queue(1, "full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        publish(client, "q", [b"1"])
        publish(client, "full", [b"there already"])
        client.call(1, Tx.Select(), Tx.SelectOk)
        client.call(1, Basic.Get(queue="q"), Basic.GetOk)
        client.expect_content(1)
        client.send(publish_frames(1, "", "full", b"too much"))
        client.method(1, Basic.Nack(delivery_tag=1, requeue=False))
        page_out(broker, "q")
        client.method(1, Tx.Commit())
        close = client.expect_channel_close(1, 406)
        client.open_channel(1)
        return close

    async with mortal_broker(tmp_path) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            close = await talk(broker, work, client)
            assert (close.class_id, close.method_id, close.reply_text.partition(" - ")[2]) == (
                90,
                20,
                "partial tx completion",
            )
            assert (queue_of(broker, "full").ready, queue_of(broker, "q").ready) == (1, 1)
