"""The firehose: copies of publishes and deliveries at `amq.rabbitmq.trace`, in RabbitMQ's format.

RabbitMQ 3.10.8 ran the same `conversation`, with `rabbitmqctl trace_on`: `AS_RABBITMQ` holds its answers, without the
names of node and connection and with the queues in order.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pytest

from broker.cli.control_client import Unanswered
from broker.net.control_address import socket_address
from broker.operations.trace import KEPT_MAX, TRACES_MAX
from broker.server import BrokerServer
from tests.deadline import wait_until_async
from tests.in_process import client_of, running_broker, told

TRACE = "amq.rabbitmq.trace"
TYPED = {"n": 7, "deep": {"a": [1, "b"]}}
PROPERTIES = pika.BasicProperties(
    content_type="text/plain",
    headers=TYPED,
    delivery_mode=2,
    priority=3,
    correlation_id="c",
    expiration="60000",
    timestamp=1_700_000_000,
    type="t",
    user_id="guest",
    app_id="a",
)
SHOWN = {
    "content_type": "text/plain", "headers": TYPED, "delivery_mode": 2, "priority": 3, "correlation_id": "c",
    "expiration": "60000", "timestamp": 1_700_000_000, "type": "t", "user_id": "guest", "app_id": "a",
}  # fmt: skip


def conversation(channel: Any, copies: Any) -> list[tuple[str, dict[str, Any], bytes]]:
    """Publish, fetch and consume in every way, and return the copies: routing key, headers, body."""
    copies.queue_declare("copies")
    copies.queue_bind("copies", TRACE, "#")
    channel.queue_declare("q")
    channel.queue_declare("other")
    channel.queue_bind("q", "amq.topic", "a.#")
    channel.queue_bind("other", "amq.topic", "a.b")
    channel.basic_publish("amq.topic", "a.b", b"routed", PROPERTIES)
    channel.basic_publish("amq.topic", "nowhere", b"lost")
    channel.basic_publish("amq.topic", "nowhere", b"returned", mandatory=True)
    carbon = pika.BasicProperties(headers={"CC": ["a.b"], "BCC": ["a.c"]})
    channel.basic_publish("amq.topic", "x", b"carbon", carbon)
    channel.basic_publish("", "other", b"")
    fetched, _, _ = channel.basic_get("q")
    channel.basic_nack(fetched.delivery_tag, requeue=True)
    channel.basic_get("q", auto_ack=True)
    for method, _, _ in channel.consume("other", auto_ack=False):
        channel.basic_ack(method.delivery_tag)
        if method.delivery_tag == 5:  # two were fetched, three remain
            break
    channel.cancel()
    channel.tx_select()
    channel.basic_publish("", "q", b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", "q", b"committed")
    channel.tx_commit()
    for _, _, body in channel.consume("q", auto_ack=True):
        if body == b"committed":
            break
    channel.cancel()
    found: list[tuple[str, dict[str, Any], bytes]] = []
    while True:
        method, properties, body = copies.basic_get("copies", auto_ack=True)
        if method is None:
            return found
        assert (method.exchange, properties.delivery_mode) == (TRACE, None)
        found.append((method.routing_key, properties.headers, body))


def published(exchange: str, keys: list[str], queues: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    """Return the distinctive headers of a publish's copy."""
    return {"exchange_name": exchange, "routing_keys": keys, "properties": properties, "routed_queues": queues}


def delivered(exchange: str, keys: list[str], properties: dict[str, Any], again: int = 0) -> dict[str, Any]:
    """Return the distinctive headers of a delivery's copy."""
    return {"exchange_name": exchange, "routing_keys": keys, "properties": properties, "redelivered": again}


CARBON: dict[str, Any] = {"headers": {"CC": ["a.b"]}}
AS_RABBITMQ: list[tuple[str, dict[str, Any], bytes]] = [
    ("publish.amq.topic", published("amq.topic", ["a.b"], ["other", "q"], SHOWN), b"routed"),
    ("publish.amq.topic", published("amq.topic", ["nowhere"], [], {}), b"lost"),
    ("publish.amq.topic", published("amq.topic", ["nowhere"], [], {}), b"returned"),
    ("publish.amq.topic", published("amq.topic", ["x", "a.b", "a.c"], ["other", "q"], CARBON), b"carbon"),
    ("publish.", published("", ["other"], ["other"], {}), b""),
    ("deliver.q", delivered("amq.topic", ["a.b"], SHOWN), b"routed"),
    ("deliver.q", delivered("amq.topic", ["a.b"], SHOWN, again=1), b"routed"),
    ("deliver.other", delivered("amq.topic", ["a.b"], SHOWN), b"routed"),
    ("deliver.other", delivered("amq.topic", ["x", "a.b", "a.c"], CARBON), b"carbon"),
    ("deliver.other", delivered("", ["other"], {}), b""),
    ("publish.", published("", ["q"], ["q"], {}), b"rolled back"),
    ("publish.", published("", ["q"], ["q"], {}), b"committed"),
    ("deliver.q", delivered("amq.topic", ["x", "a.b", "a.c"], CARBON), b"carbon"),
    ("deliver.q", delivered("", ["q"], {}), b"committed"),
]
WITHOUT_BCC = ["x", "a.b"]  # docs/compatibility.md: a delivery does not know the keys of BCC


def message(body: bytes) -> Any:
    """Return a message for aio-pika."""
    return aio_pika.Message(body)


def connected(broker: BrokerServer) -> Any:
    """Return a connection."""
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.listener.port))


def converse(broker: BrokerServer) -> list[tuple[str, dict[str, Any], bytes]]:
    """Run the conversation on two connections."""
    with connected(broker) as one, connected(broker) as two:
        return conversation(one.channel(), two.channel())


async def test_copies_are_those_of_rabbitmq(tmp_path: Path) -> None:
    """Each publish and each delivery is copied once, in order, with user, place and content."""
    async with running_broker(tmp_path) as broker:
        await told(broker, "set_tracing", on=True)
        copies = await asyncio.to_thread(converse, broker)
    expected = [(key, dict(headers), body) for key, headers, body in AS_RABBITMQ]
    for _, headers, body in expected:
        if body == b"carbon" and "redelivered" in headers:
            headers["routing_keys"] = WITHOUT_BCC
    found = []
    for key, headers, body in copies:
        assert headers.pop("node").startswith("slotmq@")
        assert headers.pop("connection").endswith(f":{broker.listener.port}")
        assert (headers.pop("vhost"), headers.pop("channel"), headers.pop("user")) == ("/", 1, "guest")
        if "routed_queues" in headers:
            headers["routed_queues"].sort()
        found.append((key, headers, body))
    assert found == expected


async def test_a_publish_is_looked_at_closely_only_while_somebody_wants_it(tmp_path: Path) -> None:
    """Resolved routes of publishes are dropped when tracing begins and when it ends."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        vhost = broker.engines["/"].vhost
        user = broker.administration.users.get("guest")
        assert user is not None
        queue = await channel.declare_queue("q")

        async def straight() -> set[bool]:
            for _ in range(3):
                await channel.default_exchange.publish(message(b"m"), "q")
            return {entry.straight for entry in vhost.publish_caches.of(user.name).entries.values()}

        assert await straight() == {True}
        await told(broker, "set_tracing", on=True)
        assert await straight() == {False}
        assert [row["tracing"] for row in await told(broker, "list_vhosts")] == [True]
        await told(broker, "set_tracing", on=False)
        assert await straight() == {True}
        assert broker.engines["/"].workers.workers[0].firehose is None
        assert queue.name in vhost.queues


async def test_copies_of_copies_are_not_made_and_other_vhosts_are_left_alone(tmp_path: Path) -> None:
    """A consumer of the copies causes no further copies, and other vhosts are not traced."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await told(broker, "add_vhost", name="v")
        await told(broker, "set_tracing", on=True, vhost="v")
        assert not broker.engines["/"].vhost.firehose.active
        await told(broker, "set_tracing", on=True)
        await channel.declare_queue("q")
        copies = await channel.declare_queue("copies")
        await copies.bind("amq.rabbitmq.trace", "#")
        heard: asyncio.Queue[str] = asyncio.Queue()

        async def hear(copy: Any) -> None:
            await heard.put(copy.routing_key)

        await copies.consume(hear, no_ack=True)
        for key in ("q", "nowhere", "q"):
            await channel.default_exchange.publish(message(b""), key, mandatory=False)
        last = broker.engines["/"].vhost.queues["q"]
        assert [await heard.get() for _ in range(3)] == ["publish."] * 3
        assert (heard.qsize(), last.ready) == (0, 2)


def trace_process(folder: Path, *words: str, vhost: str = "/") -> subprocess.Popen[str]:
    """Return `slotmq trace` as a shell would start it, once it receives messages."""
    command = [sys.executable, "-m", "broker", "trace", "--data-dir", str(folder), "--vhost", vhost, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == f"tracing vhost {vhost}: ctrl-C ends it\n"
    return process


async def test_trace_shows_live_what_passes_its_filters_until_ctrl_c(tmp_path: Path) -> None:
    """slotmq trace shows matching messages until Ctrl-C ends it with exit code 130, and leaves nothing behind."""
    filters = ("--exchange", "am*", "--queue", "q?", "--key", "a.#", "--user", "g*t", "--json")
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        firehose = broker.engines["/"].vhost.firehose
        queues = [await channel.declare_queue(name) for name in ("q1", "other")]
        for queue in queues:
            await queue.bind("amq.topic", "#")
        topic = await channel.get_exchange("amq.topic")
        process = await asyncio.to_thread(trace_process, tmp_path, *filters)
        try:
            assert firehose.active
            assert not firehose.publishing
            await topic.publish(message(b"not this"), "b.a")
            await channel.default_exchange.publish(message(b"nor this"), "q1")
            await topic.publish(message(b"\xff\x00"), "a.b")
            await queues[1].get(no_ack=True)
            for _ in range(3):
                got = await queues[0].get(no_ack=True)
            assert process.stdout is not None
            rows = [json.loads(await asyncio.to_thread(process.stdout.readline)) for _ in range(2)]
            process.send_signal(signal.SIGINT)
            rest, said = await asyncio.to_thread(process.communicate)
        finally:
            process.kill()
        assert (process.returncode, rest, said) == (130, "", "")
        assert [(row["kind"], row["routing_keys"], row["body"]) for row in rows] == [
            ("publish", ["a.b"], "/wA="), ("deliver", ["a.b"], "/wA="),
        ]  # fmt: skip
        assert sorted(rows[0]["routed_queues"]) == ["other", "q1"]
        assert (rows[1]["queue"], rows[1]["redelivered"], rows[1]["user"]) == ("q1", False, "guest")
        assert got.body == b"\xff\x00"
        await wait_until_async(lambda: not firehose.active, "the trace to end in the broker")


async def test_trace_ends_after_as_many_as_were_asked_for(tmp_path: Path) -> None:
    """slotmq trace --count ends after this many messages, as lines to read."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        process = await asyncio.to_thread(trace_process, tmp_path, "--count", "2")
        for _ in range(3):
            await channel.default_exchange.publish(message(b"a\x1bb"), "q")
        out, said = await asyncio.to_thread(process.communicate)
        assert (process.returncode, said) == (0, "")
        assert len(out.splitlines()) == 2
        assert " publish exchange= key=q queues=q user=guest connection=127.0.0.1:" in out
        assert out.endswith(" body(3)=a\\x1bb\n")


async def test_who_does_not_read_misses_messages_and_is_told_how_many(tmp_path: Path) -> None:
    """A slow reader misses messages and learns how many; publishers do not wait, and the broker's buffer is bounded."""
    count, size = 3 * KEPT_MAX, 2000
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        address, descriptor = socket_address(tmp_path)
        assert descriptor is None
        slow = socket.socket(socket.AF_UNIX)
        slow.connect(address)
        slow.sendall(json.dumps({"verb": "trace", "body_bytes": size}).encode() + b"\n")
        lines = slow.makefile("r")
        assert "tracing" in await asyncio.to_thread(lines.readline)
        for _ in range(count // 100):
            await asyncio.gather(*(channel.default_exchange.publish(message(bytes(size)), "q") for _ in range(100)))
        passed = dropped = 0
        while passed + dropped < count:
            told_of = json.loads(await asyncio.to_thread(lines.readline))["progress"]
            passed += len(told_of.get("passed", ()))
            dropped += told_of.get("dropped", 0)
        assert (passed + dropped, dropped > 0) == (count, True)
        slow.close()
        lines.close()


async def test_trace_of_a_vhost_that_goes_ends(tmp_path: Path) -> None:
    """A trace ends with a line about it when its vhost is deleted."""
    async with running_broker(tmp_path) as broker:
        await told(broker, "add_vhost", name="v")
        process = await asyncio.to_thread(trace_process, tmp_path, vhost="v")
        await told(broker, "delete_vhost", name="v")
        _, said = await asyncio.to_thread(process.communicate)
        assert (process.returncode, said) == (1, "slotmq: vhost 'v' is deleted\n")


async def test_traces_leave_room_for_other_commands(tmp_path: Path) -> None:
    """One trace too many is refused, and when one has ended another may start."""
    async with running_broker(tmp_path) as broker:
        processes = await asyncio.gather(*(asyncio.to_thread(trace_process, tmp_path) for _ in range(TRACES_MAX)))
        with pytest.raises(Unanswered, match="8 traces run already"):
            await told(broker, "trace")
        assert await told(broker, "status")
        for process in processes:
            process.send_signal(signal.SIGINT)
            await asyncio.to_thread(process.communicate)
            assert process.returncode == 130
        await wait_until_async(lambda: not broker.engines["/"].vhost.firehose.active, "the traces to end in the broker")
