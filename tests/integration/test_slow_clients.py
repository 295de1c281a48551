"""A client that does not read is logged once, with its queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.in_process import client_of, running_broker

SLOW_S = 3


@pytest.mark.parametrize("consumes", [False, True])
async def test_a_client_that_does_not_read(tmp_path: Path, consumes: bool) -> None:
    """The warning comes after this many seconds without progress, once, and again only after the client has read."""
    async with running_broker(tmp_path, flow={"slow_client_ms": 0}) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q")
        if consumes:
            await queue.consume(print, consumer_tag="c")
        (transport,) = broker.listener.transports

        def told(seconds: int) -> list[Any]:
            with capture_logs() as events:
                for _ in range(seconds):
                    transport.tick(SLOW_S)
            return events

        for _ in range(3):
            transport.pause_writing()
            assert told(SLOW_S - 1) == []
            transport.resume_writing()
        transport.pause_writing()
        first = told(10)
        transport.resume_writing()
        transport.pause_writing()
        second = told(10)
        transport.resume_writing()
        assert told(10) == []
    (event,) = first
    assert len(second) == 1
    facts = {"user": "guest", "vhost": "/", "unread_s": SLOW_S, "log_level": "warning"}
    facts |= {"event": "consumer.slow", "queue": "q", "consumer_tag": "c"} if consumes else {"event": "connection.slow"}
    assert facts.items() <= event.items()


async def test_a_publisher_that_an_alarm_blocks(tmp_path: Path) -> None:
    """The warning names the connection and the reason that the client is told."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        (transport,) = broker.listener.transports
        with capture_logs() as events:
            broker.clients.alarms.measure("disk", 0)
            transport.session.publishing = True
            broker.clients.throttle.published(transport)
        broker.clients.alarms.measure("disk", 1 << 60)
        broker.clients.throttle.alarms_changed()
    (event,) = events
    facts = {"event": "connection.blocked", "conn": transport.session.name, "user": "guest", "reason": "low on disk"}
    assert facts.items() <= event.items()
