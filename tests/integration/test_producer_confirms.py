"""A duplicate is confirmed with the sync of its original, and never before."""

from __future__ import annotations

from pathlib import Path

from pamqp import commands

from broker.testing import Broker
from tests.gated_files import GatedFiles
from tests.raw_client import RawClient, publish_frames


def opened(broker: Broker, *, transactions: bool = False) -> RawClient:
    """Return a client with a channel in confirm or transaction mode."""
    client = RawClient("127.0.0.1", broker.port).with_channel()
    if transactions:
        client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    else:
        client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    return client


def numbered(body: bytes) -> bytes:
    """Return the frames of a publish, always with the same number."""
    properties = commands.Basic.Properties(delivery_mode=2, headers={"x-producer": "p", "x-seq": 1})
    return publish_frames(1, "", "q", body, properties=properties)


def test_a_duplicate_waits_for_its_original(tmp_path: Path) -> None:
    """Until the original is synced no duplicate is confirmed on any connection, in confirm mode or by a commit."""
    files = GatedFiles()
    with (
        Broker(files=files, server={"data_dir": tmp_path}) as broker,
        opened(broker) as first,
        opened(broker) as second,
        opened(broker, transactions=True) as third,
    ):
        first.call(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        broker.wait_idle()
        try:
            files.gate.clear()
            first.send(numbered(b"original"))
            first.call(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
            second.send(numbered(b"duplicate"))
            third.send(numbered(b"duplicate"))
            third.method(1, commands.Tx.Commit())
            # An answer after the duplicate on its channel: a confirm would have arrived before it.
            second.call(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
            assert not any(client.readable(0.05) for client in (first, second, third))
        finally:
            files.gate.set()
        for client in (first, second):
            assert client.expect(commands.Basic.Ack).delivery_tag == 1
        third.expect(commands.Tx.CommitOk)
        assert [message.body for message in broker.queue("q").messages] == [b"original"]


def test_a_duplicate_of_what_is_safe_waits_for_nothing(tmp_path: Path) -> None:
    """A duplicate of a synced message is confirmed at once, even when no sync could follow."""
    files = GatedFiles()
    with Broker(files=files, server={"data_dir": tmp_path}) as broker, opened(broker) as client:
        client.call(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        client.send(numbered(b"original"))
        client.expect(commands.Basic.Ack)
        broker.wait_idle()
        try:
            files.gate.clear()
            client.send(numbered(b"duplicate"))
            assert client.expect(commands.Basic.Ack).delivery_tag == 2
        finally:
            files.gate.set()
