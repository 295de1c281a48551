"""The time of a cluster never goes back, whatever the clock of the server does."""

from __future__ import annotations

import pika

from tests.cluster.members import joined, until
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until
from tools.postgres_server import PostgresServer

HOUR_MS = 3_600_000
BEHIND = f"""
CREATE OR REPLACE FUNCTION server_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint - {HOUR_MS}'
"""
"""As after a fail-over to a server whose clock is an hour behind."""


async def test_the_time_goes_on_when_the_clock_of_the_server_is_behind(
    shared_postgres: PostgresServer, schema: str
) -> None:
    """All nodes continue together: the first that notices corrects the time, and only once."""

    def ahead_ms() -> int:
        return int(shared_postgres.sql(f'SELECT clock_ahead_ms FROM "{schema}".cluster'))

    url = shared_postgres.url
    async with joined(url, schema, "a", lease_ms=1500) as a, joined(url, schema, "b", lease_ms=1500) as b:
        assert ahead_ms() == 0
        before_ms = a.node.now_ms(), b.node.now_ms()
        shared_postgres.sql(f'SET search_path TO "{schema}"; {BEHIND}')
        await until(ahead_ms)
        beats = a.node.members[0].beats
        await until(lambda: a.node.members[0].beats > beats + 3)
        assert abs(ahead_ms() - HOUR_MS) < 5000
        assert a.node.now_ms() > before_ms[0]
        assert b.node.now_ms() > before_ms[1]
    async with joined(url, schema, "c", lease_ms=1500) as c:
        assert c.node.now_ms() > before_ms[0]


def test_messages_expire_after_a_fail_over_to_a_clock_that_is_behind(
    nodes: Nodes, shared_postgres: PostgresServer
) -> None:
    """Those that were published before, and those that come after."""
    channel = nodes.channel("a", confirms=True)
    channel.queue_declare("q", durable=True)
    brief = pika.BasicProperties(delivery_mode=2, expiration="3000")
    channel.basic_publish("", "q", b"before", brief)
    try:
        shared_postgres.sql(f'SET search_path TO "{nodes.schema}"; {BEHIND}')
        wait_until(
            lambda: int(shared_postgres.sql(f'SELECT clock_ahead_ms FROM "{nodes.schema}".cluster')), "a correction"
        )
        channel.basic_publish("", "q", b"after", brief)
        wait_until(lambda: channel.queue_declare("q", passive=True).method.message_count == 0, "both expire")
    finally:
        shared_postgres.sql(f'SET search_path TO "{nodes.schema}"; {BEHIND.replace(f" - {HOUR_MS}", "")}')
