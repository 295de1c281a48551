"""What is not built yet is refused with 540, never ignored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.in_process import running_broker
from tests.raw_client import RawClient, publish_frames

ASKED_FOR: list[tuple[str, commands.Basic.Properties]] = [
    ("property 'expiration' is not supported", commands.Basic.Properties(expiration="1000")),
    ("property 'user_id' is not supported", commands.Basic.Properties(user_id="guest")),
    ("header 'CC' is not supported", commands.Basic.Properties(headers={"x": 1, "CC": ["a"]})),
    ("header 'BCC' is not supported", commands.Basic.Properties(headers={"BCC": ["a"]})),
]


def told_after(port: int, *frames: Any, method: Any = None) -> str | None:
    """Sends frames or a method; returns the text of the connection.close, None when the channel still answers."""
    with RawClient("127.0.0.1", port) as client:
        client.open()
        client.open_channel(1)
        client.call(1, commands.Queue.Declare(queue="q", exclusive=True), commands.Queue.DeclareOk)
        client.send(*frames)
        if method is not None:
            client.method(1, method)
        client.method(1, commands.Queue.Declare(queue="q", passive=True))
        answer = client.next().value
        if isinstance(answer, commands.Connection.Close):
            assert answer.reply_code == 540
            return answer.reply_text
        return None


@pytest.mark.parametrize(("what", "properties"), ASKED_FOR)
async def test_properties_that_would_be_ignored_are_refused(
    tmp_path: Path, what: str, properties: commands.Basic.Properties
) -> None:
    """A publish that asks for TTL, a user check or CC is told that there is none, the second time as well."""
    async with running_broker(tmp_path) as broker:
        for _ in range(2):
            frames = publish_frames(1, "", "q", b"body", properties=properties)
            assert await asyncio.to_thread(told_after, broker.listener.port, frames) == f"NOT_IMPLEMENTED - {what}"


async def test_headers_that_look_like_cc_are_not_refused(tmp_path: Path) -> None:
    """A header whose value, or a nested table whose key, is CC asks for nothing."""
    properties = commands.Basic.Properties(headers={"note": "\x02CC", "nested": {"CC": "a", "BCC": "b"}})
    async with running_broker(tmp_path) as broker:
        frames = publish_frames(1, "", "q", b"body", properties=properties)
        assert await asyncio.to_thread(told_after, broker.listener.port, frames) is None


async def test_consumers_that_ask_for_more_are_refused(tmp_path: Path) -> None:
    """Consumer priorities and direct reply-to are refused by name."""
    async with running_broker(tmp_path) as broker:
        told = await asyncio.to_thread(
            lambda: told_after(
                broker.listener.port, method=commands.Basic.Consume(queue="q", arguments={"x-priority": 1})
            )
        )
        assert told == "NOT_IMPLEMENTED - argument 'x-priority' for queue 'q' in vhost '/' is not supported"
        told = await asyncio.to_thread(
            lambda: told_after(broker.listener.port, method=commands.Basic.Consume(queue="amq.rabbitmq.reply-to"))
        )
        assert told == "NOT_IMPLEMENTED - consuming from 'amq.rabbitmq.reply-to'"
