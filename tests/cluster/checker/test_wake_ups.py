"""A message that is published on one node wakes up the consumers of the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from pamqp import commands

from tests.cluster.checker.system import System
from tests.raw_client import RawClient, publish_frames
from tools.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

PERSISTENT = commands.Basic.Properties(delivery_mode=2)


def test_lone_messages_arrive_without_a_look(tmp_path: Path, shared_postgres: PostgresServer, schema: str) -> None:
    """The other node delivers a hundred lone messages; its look once a second would be too slow for the test."""
    system = System(tmp_path, "ab", shared_postgres, schema=schema, lease_ms=3000)
    try:
        system.start()
        a, b = (node.address for node in system.nodes.values())
        with RawClient(a.host, a.port) as publisher, RawClient(b.host, b.port) as consumer:
            for client in (publisher, consumer):
                client.open()
                client.open_channel(1)
            publisher.declare_queue(1, "q", durable=True)
            consumer.call(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
            for number in range(100):
                publisher.send(publish_frames(1, "", "q", b"%d" % number, properties=PERSISTENT))
                consumer.expect(commands.Basic.Deliver, 1)
                assert consumer.expect_content(1)[1] == b"%d" % number
    finally:
        system.stop()
