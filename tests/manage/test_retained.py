"""Retained messages of MQTT topics, as operators list, read, set and delete them: the command line and the API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.cli.main import main
from broker.server import BrokerServer
from tests.deadline import wait_until_async
from tests.in_process import client_of, queue_of
from tests.manage.api_talk import Api, managed

pytestmark = pytest.mark.usefixtures("quiet")

MQTT = {"enabled": True, "port": 0, "retained_max": 3000}


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[tuple[BrokerServer, Api]]:
    """Provide a broker with MQTT and little memory for messages, and a client of its API."""
    async with managed(tmp_path, mqtt=MQTT, memory={"resident_max_bytes": 1 << 20}) as (broker, api):
        yield broker, api


@pytest.fixture
def slotmq(scene: tuple[BrokerServer, Api], capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Provide a function that runs a command and returns its exit code and output."""

    async def run(*words: str) -> tuple[int, str, str]:
        folder = str(scene[0].settings.server.data_dir)
        code = await asyncio.to_thread(main, [*words, "--data-dir", folder])
        said = capfd.readouterr()
        return code, said.out.strip(), said.err.strip()

    return run


async def test_commands_list_show_and_delete(scene: tuple[BrokerServer, Api], slotmq: Callable[..., Any]) -> None:
    """`publish` sets one, `list` and `get` take filters, `delete` deletes what a filter matches."""
    for key, body in (("home.kitchen", "21"), ("home.hall", "19"), ("car", "moved")):
        said = await slotmq("publish", f"amq.topic:{key}", body, "--header", "x-mqtt-retain=true")
        assert said[0] == 0, said
    code, out, err = await slotmq("retained", "list", "home/+", "--json")
    answer = json.loads(out)
    assert (code, err, answer["truncated"], answer["messages"]) == (0, "", False, 3)
    assert [(row["topic"], row["bytes"], row["expires_in_ms"]) for row in answer["rows"]] == [
        ("home/hall", 2, None),
        ("home/kitchen", 2, None),
    ]
    code, out, err = await slotmq("retained", "list", "--limit", "1")
    assert (len(out.splitlines()), err) == (1, "slotmq: 1 of more topics are shown (--limit); the vhost retains 3")
    code, out, err = await slotmq("retained", "get", "home/kitchen")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "home/kitchen"
    assert out.splitlines()[-2:] == ["  body (2 bytes, utf-8):", "    21"]
    assert await slotmq("retained", "delete", "home/#") == (0, "2 messages deleted", "")
    assert (await slotmq("retained", "get", "home/#"))[2] == "slotmq: nothing is retained for 'home/#'"
    assert (await slotmq("retained", "delete", "a/#/b"))[2] == "slotmq: filter 'a/#/b' has a # before its last level"

    refused = await slotmq("publish", "amq.topic:a.+", "x", "--header", "x-mqtt-retain=true")
    assert refused[2] == "slotmq: PRECONDITION_FAILED - x-mqtt-retain: routing key 'a.+' is not a topic in MQTT"


async def test_a_list_is_bounded_and_reads_what_is_on_disk(scene: tuple[BrokerServer, Api]) -> None:
    """2,000 messages of 2 KiB, most of them on disk, are listed as far as the limit goes; bodies are cut."""
    broker, api = scene
    async with client_of(broker) as channel:
        exchange = await channel.get_exchange("amq.topic")
        message = aio_pika.Message(b"x" * 2048, headers={"x-mqtt-retain": True}, delivery_mode=2, expiration=3600)
        await asyncio.gather(*[exchange.publish(message, f"t.{number:04d}") for number in range(2000)])
        queue = queue_of(broker, "amq.retained")
        slots = queue.level.manager.slots.values()

        async def paged_out() -> bool:
            return any(slot.contents is None for slot in slots)

        await wait_until_async(paged_out, "slots on disk")
        answer = await api.expect(200, "GET", "slotmq/retained/%2F?filter=t/%2B&limit=1500")
        assert (len(answer["rows"]), answer["truncated"], answer["messages"]) == (1500, True, 2000)
        assert 2000 * 2048 < answer["bytes"] < 2000 * 2300
        assert "body" not in answer["rows"][0]
        assert 0 < answer["rows"][0]["expires_in_ms"] <= 3_600_000
        answer = await api.expect(200, "GET", "slotmq/retained/%2F?filter=t/0007&truncate=10")
        assert [(row["body"], row["body_bytes"], row["body_complete"]) for row in answer["rows"]] == [
            ("x" * 10, 2048, False)
        ]
        assert await api.expect(200, "DELETE", "slotmq/retained/%2F?filter=t/%2B") == {"messages": 2000}
        assert (queue.ready, queue.unacked) == (0, 0)
    await api.expect(400, "GET", "slotmq/retained/%2F?limit=10001")
    await api.expect(400, "GET", "slotmq/retained/%2F?filter=a%23")
    await api.expect(400, "DELETE", "slotmq/retained/%2F")
    await api.expect(404, "GET", "slotmq/retained/none")


async def test_rights_and_limits_are_those_of_publishers(scene: tuple[BrokerServer, Api]) -> None:
    """The API sets one as a publisher does; who may not read `amq.retained` sees and deletes nothing."""
    _broker, api = scene
    body = {"properties": {"headers": {"x-mqtt-retain": True}}, "payload": "1", "payload_encoding": "string"}
    await api.expect(200, "POST", "exchanges/%2F/amq.topic/publish", {**body, "routing_key": "a.b"})
    for read, status in (("^amq\\.topic$", 401), ("^amq\\.retained$", 200)):
        user = await api.with_user(f"u{status}", "management", read=read)
        await user.expect(status, "GET", "slotmq/retained/%2F")
        await user.expect(status, "DELETE", "slotmq/retained/%2F?filter=a/b")
    assert (await api.expect(200, "GET", "slotmq/retained/%2F"))["messages"] == 0
    assert (await api.expect(200, "GET", "slotmq"))["mqtt"] is True
