"""After a backlog was purged, the broker's memory goes back to the kernel."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from pamqp import commands

from broker.heap import INTERVAL_S
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.raw_client import RawClient, publish_frames

BODY = bytes(10_000)
MESSAGES = 8000
LEFT_BYTES = 16 << 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's heap is known")
def test_a_purged_backlog_leaves_no_memory(tmp_path: Path) -> None:
    """Soon after a purge almost none of the memory of 80 MB in a queue is left, while the broker continues."""
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    before_bytes = broker.rss_bytes()
    with RawClient(broker.address.host, broker.address.port).with_channel() as client:
        client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        for _ in range(MESSAGES // 100):
            client.send(publish_frames(1, "", "q", BODY) * 100)
        client.call(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
        assert broker.rss_bytes() > before_bytes + 2 * LEFT_BYTES
        client.call(1, commands.Queue.Purge(queue="q"), commands.Queue.PurgeOk)
        wait_until(
            lambda: broker.rss_bytes() < before_bytes + LEFT_BYTES, "memory comes back", deadline_s=4 * INTERVAL_S
        )
    assert broker.terminate() == 0
