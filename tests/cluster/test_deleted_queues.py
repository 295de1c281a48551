"""Objects that clients delete in a cluster leave nothing that only a full garbage collection would find."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.deadline import wait_until
from tests.in_process import running_broker
from tests.integration.test_no_cycles import LEFT_MAX, alone, by_amqp, found, queues


@pytest.mark.timeout(120)
def test_deleted_queues_of_a_cluster_leave_no_cycles(tmp_path: Path, postgres_url: str, schema: str) -> None:
    """A collection finds as little after hundreds of queues, filled, consumed from and deleted, as after none."""
    cluster = {"url": postgres_url, "schema_name": schema, "node": "a"}

    async def run() -> Counter[str]:
        async with running_broker(tmp_path / "data", cluster=cluster) as broker:
            await asyncio.to_thread(by_amqp(lambda client: queues(client, 5)), broker)
            found()  # what the start and the first queues leave does not count
            await asyncio.to_thread(by_amqp(lambda client: queues(client, 200)), broker)
            await asyncio.to_thread(wait_until, lambda: not broker.listener.transports, "all clients have gone")
            await asyncio.sleep(1)  # calls that are under way end
            return found()

    left = alone(run())
    assert sum(left.values()) <= LEFT_MAX, left
