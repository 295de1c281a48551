"""Resolved routes of deleted queues and exchanges leave every cache."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from pamqp import commands

from broker.core.queue.queue import Queue
from broker.routing.exchange import Exchange
from tests.deadline import wait_until_async
from tests.raw_client import publish_frames
from tests.raw_talk import connect, declare, mortal_broker, talk

ROUNDS = 30


def deleted(prefix: str) -> list[str]:
    """Return the names of queues and exchanges that are deleted and still in memory."""
    gc.collect()
    found = [thing for thing in gc.get_objects() if isinstance(thing, Queue | Exchange)]
    return [thing.name for thing in found if thing.deleted and thing.name.startswith(prefix)]


@pytest.mark.parametrize("kind", ["topic", "direct", "fanout", "headers", "x-consistent-hash", "default", "onward"])
async def test_no_cache_keeps_a_deleted_queue(kind: str, tmp_path: Path) -> None:
    """Queues that come and go under one exchange, or with their exchange, leave nothing behind; the last may stay."""
    async with mortal_broker(tmp_path) as broker:
        with await talk(broker, connect, broker) as client:

            def churn() -> None:
                lasting = "" if kind == "default" else "lasting"
                if lasting:
                    made = "topic" if kind == "onward" else kind
                    client.call(
                        1, commands.Exchange.Declare(exchange=lasting, exchange_type=made), commands.Exchange.DeclareOk
                    )
                for number in range(ROUNDS):
                    queue = f"gone-{number}"
                    declare(client, queue)
                    for exchange in filter(None, (lasting, lasting and f"gone-x-{number}")):
                        if exchange != lasting:
                            made = "topic" if kind == "onward" else kind
                            client.call(
                                1,
                                commands.Exchange.Declare(exchange=exchange, exchange_type=made),
                                commands.Exchange.DeclareOk,
                            )
                        if kind == "onward":
                            source = commands.Exchange.Bind(destination=exchange, source=lasting, routing_key="#")
                            client.call(1, source, commands.Exchange.BindOk)
                        bound = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key="1")
                        client.call(1, bound, commands.Queue.BindOk)
                    for exchange in {lasting, lasting and f"gone-x-{number}"}:
                        for key in ("1", queue):
                            client.send(publish_frames(1, exchange, key, b"m") * 3)
                    client.call(1, commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)
                    if lasting:
                        gone = commands.Exchange.Delete(exchange=f"gone-x-{number}")
                        client.call(1, gone, commands.Exchange.DeleteOk)

            await talk(broker, churn)

            async def gone() -> bool:
                return len(deleted("gone-")) <= 3

            await wait_until_async(gone, "the end of what was deleted, once the pager has looked")
