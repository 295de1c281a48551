"""The file calls of a running broker, as the operating system gets them: syncs before confirms, and complete writes.

The other power-loss tests replace the file adapter; these use the real one. `call_recorder` explains how the calls
are recorded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from pamqp import commands

from tests.broker_process import BrokerProcess
from tests.fault.call_recorder import observed, synced
from tests.raw_client import RawClient, publish_frames

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="the calls are those of Linux"),
]

LARGE = b"." * 120_000  # a few of them fill a segment
MESSAGES = 30
Properties = Callable[[int], commands.Basic.Properties]


def plain(_number: int) -> commands.Basic.Properties:
    """Publish messages that take the path of runs."""
    return commands.Basic.Properties(delivery_mode=2)


def expiring(_number: int) -> commands.Basic.Properties:
    """Publish messages with an expiration, which the broker must parse."""
    return commands.Basic.Properties(delivery_mode=2, expiration="3600000")


def numbered(number: int) -> commands.Basic.Properties:
    """Publish messages with a producer's number."""
    return commands.Basic.Properties(delivery_mode=2, headers={"x-producer": "p", "x-seq": number})


def numbered_and_expiring(number: int) -> commands.Basic.Properties:
    """Publish messages with a number and an expiration."""
    return commands.Basic.Properties(
        delivery_mode=2, expiration="3600000", headers={"x-producer": "p", "x-seq": number}
    )


def body(number: int) -> bytes:
    """Return a body that the recorder recognises at both its ends."""
    return b"<<begin %d>>%b<<end %d>>" % (number, LARGE, number)


def opened(process: BrokerProcess, channels: int = 1) -> RawClient:
    """Return a client with confirms on its channels and a durable queue."""
    client = RawClient(process.address.host, process.address.port)
    client.open()
    for channel in range(1, channels + 1):
        client.open_channel(channel)
        client.call(channel, commands.Confirm.Select(), commands.Confirm.SelectOk)
    client.call(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
    return client


def drain(process: BrokerProcess) -> list[bytes]:
    """Return all messages of the queue."""
    with pika.BlockingConnection(pika.URLParameters(process.address.url)) as connection:
        channel = connection.channel()
        left = channel.queue_declare("q", durable=True, passive=True).method.message_count
        return [channel.basic_get("q", auto_ack=True)[2] for _ in range(left)]


@pytest.mark.parametrize("properties", [plain, expiring, numbered, numbered_and_expiring])
def test_a_sync_is_behind_each_confirm(broker_process: BrokerProcess, properties: Properties) -> None:
    """Each confirm follows a sync of the log after the message's write, and a sync of a new segment's folder."""
    broker_process.environment["SLOTMQ_STORE__SEGMENT_BYTES"] = str(1 << 20)
    calls = observed(broker_process)
    broker_process.start()
    with opened(broker_process) as client:
        for number in range(1, MESSAGES + 1):
            client.send(publish_frames(1, "", "q", body(number), properties=properties(number)))
            client.expect(commands.Basic.Ack, 1)
            seen = calls()
            for marker in (f"<<begin {number}>>", f"<<end {number}>>"):
                assert synced(seen, marker) == "", marker
    logs = {one["path"] for one in seen if one["call"] == "create" and "/log/" in one["path"]}
    assert len(logs) > 3  # the log rolled


def test_a_sync_is_behind_the_confirm_of_a_batch_past_the_page_cache(broker_process: BrokerProcess) -> None:
    """A large batch is written directly, and its last write is synced before the confirm; kill -9 keeps it."""
    broker_process.environment["SLOTMQ_STORE__SEGMENT_BYTES"] = str(4 << 20)
    calls = observed(broker_process)
    broker_process.start()
    bodies = [(b"<<large %d>>" % number + LARGE) * 6 for number in range(1, MESSAGES + 1)]
    with opened(broker_process) as client:
        for number, large in enumerate(bodies, 1):
            client.send(publish_frames(1, "", "q", large, properties=plain(number)))
            client.expect(commands.Basic.Ack, 1)
            seen = [one for one in calls() if "/log/" in one["path"]]
            assert synced(calls(), f"<<large {number}>>") == ""
            writes = [one["call"] for one in seen if one["call"] in ("pwrite", "pwritev", "fdatasync")]
            assert writes[-1] == "fdatasync"
        assert len([one for one in seen if one["call"] == "F_SETFL" and one["arguments"][0]]) >= MESSAGES
    broker_process.kill()
    broker_process.start()
    assert drain(broker_process) == bodies


def test_a_sync_is_behind_the_confirm_of_a_repeated_number(broker_process: BrokerProcess) -> None:
    """A repeated number whose message waits for the disk is not confirmed before that message."""
    calls = observed(broker_process)
    broker_process.start()
    with opened(broker_process, channels=2) as client:
        for number in range(1, MESSAGES + 1):
            publishes = [
                publish_frames(channel, "", "q", body(number), properties=numbered(number)) for channel in (1, 2)
            ]
            client.send(b"".join(publishes))
            assert isinstance(client.next().value, commands.Basic.Ack)  # from whichever channel
            assert synced(calls(), f"<<end {number}>>") == ""
            assert isinstance(client.next().value, commands.Basic.Ack)
    broker_process.restart()
    assert drain(broker_process) == [body(number) for number in range(1, MESSAGES + 1)]


def test_a_sync_is_behind_each_commit(broker_process: BrokerProcess) -> None:
    """A commit is answered after its record is on disk."""
    calls = observed(broker_process)
    broker_process.start()
    with RawClient(broker_process.address.host, broker_process.address.port).with_channel() as client:
        client.call(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        for number in range(1, MESSAGES + 1):
            client.send(publish_frames(1, "", "q", body(number), properties=plain(number)))
            client.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)
            assert synced(calls(), f"<<end {number}>>") == ""


def test_recovery_reads_what_is_on_disk(broker_process: BrokerProcess) -> None:
    """Before a start reads a segment it syncs the segment and drops its pages from the page cache."""
    broker_process.start()
    with opened(broker_process) as client:
        client.send(publish_frames(1, "", "q", body(1), properties=plain(1)))
        client.expect(commands.Basic.Ack, 1)
    broker_process.kill()
    there = list((broker_process.folder / "vhosts" / "%2F" / "log").iterdir())
    calls = observed(broker_process)
    broker_process.start()
    assert there
    for path in there:
        mine = [one for one in calls() if one["path"] == str(path)]
        names = [one["call"] for one in mine]
        advice = mine[names.index("posix_fadvise")]
        assert names.index("fdatasync") < names.index("posix_fadvise") < names.index("pread")
        assert advice["arguments"] == [0, 0, os.POSIX_FADV_DONTNEED]
        assert advice["descriptor"] == mine[names.index("fdatasync")]["descriptor"]
    assert drain(broker_process) == [body(1)]


def test_a_write_that_takes_half_is_finished(broker_process: BrokerProcess) -> None:
    """When the operating system writes less than it is given, the rest of the batch is written after it, and synced."""
    calls = observed(broker_process, breaks="always")
    broker_process.start()
    with opened(broker_process) as client:
        for number in range(1, MESSAGES + 1):
            client.send(publish_frames(1, "", "q", body(number), properties=plain(number)))
            client.expect(commands.Basic.Ack, 1)
            assert synced(calls(), f"<<begin {number}>>") == ""
    assert "fdatasync" in [one["call"] for one in calls() if "/log/" in one["path"]][-2:]  # after the last piece too
    broker_process.restart()
    assert drain(broker_process) == [body(number) for number in range(1, MESSAGES + 1)]


@pytest.mark.parametrize("at_once", [1, 7])
def test_a_write_that_breaks_off(broker_process: BrokerProcess, tmp_path: Path, at_once: int) -> None:
    """A disk that fills in the middle of a batch ends the broker; a restart has everything confirmed.

    Half a record is cut off, and the cut is on disk before the broker serves clients.
    """
    full = tmp_path / "full"
    observed(broker_process, breaks=str(full))
    broker_process.start()
    confirmed = 0
    with opened(broker_process) as client:
        for number in range(1, MESSAGES + 1):
            client.send(publish_frames(1, "", "q", body(number), properties=plain(number)))
            client.expect(commands.Basic.Ack, 1)
            confirmed = number
        full.touch()
        frames = [
            publish_frames(1, "", "q", body(number), properties=plain(number))
            for number in range(confirmed + 1, confirmed + at_once + 1)
        ]
        client.send(b"".join(frames))
        close = client.expect(commands.Connection.Close, 0)  # no confirm arrives before it
        assert (close.reply_code, close.reply_text) == (
            541,
            "INTERNAL_ERROR - the store failed: No space left on device",
        )
    assert broker_process.wait() == 1
    path = max((broker_process.folder / "vhosts" / "%2F" / "log").iterdir())
    said = f"slotmq: the store failed, stopping: {path}: No space left on device"
    assert said in broker_process.stderr().splitlines()
    full.unlink()
    calls = observed(broker_process)
    broker_process.start()
    cut = [event for event in broker_process.log_events() if event["event"] == "store.tail_cut"]
    assert len(cut) == 1
    mine = [one for one in calls() if one["path"] == cut[0]["path"]]
    at = next(at for at, one in enumerate(mine) if one["call"] == "ftruncate")
    assert mine[at]["arguments"] == [cut[0]["offset"]]
    assert [one["call"] for one in mine[at:]][1:3] == ["fdatasync begins", "fdatasync"]
    there = drain(broker_process)
    assert there == [body(number) for number in range(1, len(there) + 1)]
    assert confirmed <= len(there) < confirmed + at_once
