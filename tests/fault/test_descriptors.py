"""Clients that use up every descriptor of the process."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from pamqp import commands

from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.raw_client import PROTOCOL_HEADER, PeerGone, RawClient, publish_frames

pytestmark = pytest.mark.fault

LIMIT = 150
PERSISTENT = commands.Basic.Properties(delivery_mode=2)


def test_who_may_only_connect_cannot_stop_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With twice as many sockets as descriptors, some clients are refused, and new log files still open."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -n {LIMIT}\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    small_files = {"SLOTMQ_STORE__SEGMENT_BYTES": str(1 << 20), "SLOTMQ_STORE__CHECKPOINT_INTERVAL_MS": "1000"}
    process = BrokerProcess(tmp_path / "data", environment=small_files, fresh=True)
    process.start()
    try:
        address = process.address
        with ExitStack() as opened:
            publisher = opened.enter_context(RawClient(address.host, address.port))
            publisher.open()
            publisher.open_channel(1)
            queue = publisher.declare_queue(1, "q", durable=True)
            publisher.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
            crowd = [opened.enter_context(RawClient(address.host, address.port)) for _ in range(2 * LIMIT)]
            for number in range(1, 101):  # ten log files
                publisher.send(publish_frames(1, "", queue, bytes(100_000), properties=PERSISTENT))
                assert publisher.expect(commands.Basic.Ack, 1).delivery_tag == number
            greeted = sum(answered(client) for client in crowd)
            assert 0 < greeted < LIMIT

        def is_room() -> bool:
            with RawClient(address.host, address.port) as client:
                return answered(client)

        wait_until(is_room, "room for clients once the crowd has gone")
        assert process.terminate() == 0
    finally:
        process.kill()


def answered(client: RawClient) -> bool:
    """Return whether the broker answers the protocol header."""
    client.send(PROTOCOL_HEADER)
    try:
        client.expect(commands.Connection.Start, 0)
    except PeerGone:
        return False
    return True
