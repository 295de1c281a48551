"""Policies that give queues limits and take them away, while clients of all nodes publish: each answer is true."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pytest
from aio_pika.exceptions import DeliveryError
from pika.exceptions import NackError

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.cluster.two_nodes import Nodes
from tests.deadline import DEADLINE_S, wait_until

FLIPS = 8
PIECE = 20  # publishes whose confirms are awaited together
ANSWERS = 60  # of each node between two changes of the policy


@dataclass
class Answers:
    """The answers to publishers."""

    confirmed: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.confirmed) + len(self.refused)


async def publish(nodes: Nodes, name: str, queue: str, answers: Answers, stop: asyncio.Event) -> None:
    """Publish persistent messages in pieces until the end, and note the answers."""
    connection = await aio_pika.connect(nodes.by_name[name].address.url)
    channel = await connection.channel(publisher_confirms=True)
    number = 0

    async def one(body: str) -> None:
        try:
            message = aio_pika.Message(body.encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, queue, timeout=DEADLINE_S)
        except DeliveryError:
            answers.refused.add(body)
        else:
            answers.confirmed.add(body)

    while not stop.is_set():
        await asyncio.gather(*[one(f"{name} {number + place}") for place in range(PIECE)])
        number += PIECE
    await connection.close()


async def flip(nodes: Nodes, queue: str, limit: dict[str, object], each: Iterable[Answers]) -> None:
    """Set and delete a policy with a limit again and again; every node continues to answer after each change."""

    async def goes_on(name: str, what: str) -> None:
        await asyncio.to_thread(wait_until, lambda: all(len(one) >= upto for one, upto in marks), f"{what} on {name}")

    folders = [(name, node.folder) for name, node in nodes.by_name.items()]
    for number in range(FLIPS):
        name, folder = folders[number % 2]
        marks = [(one, len(one) + ANSWERS) for one in each]
        policy: dict[str, Any] = {"name": "limit", "pattern": f"^{queue}$", "definition": limit, "apply_to": "queues"}
        await asyncio.to_thread(ask, folder, "set_policy", **policy)
        await goes_on(name, "answers with the limit")
        marks = [(one, len(one) + ANSWERS) for one in each]
        await asyncio.to_thread(ask, folder, "delete_policy", name="limit")
        await goes_on(name, "answers without the limit")


def drained(nodes: Nodes, queue: str) -> list[str]:
    """Fetch all messages of a queue through both nodes."""
    found: list[str] = []
    for name in ("a", "b", "a"):
        channel = nodes.channel(name)
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(got[2].decode())
    return found


@pytest.mark.parametrize("kind", ["length", "bytes", "buried"])
def test_each_confirmed_message_is_there_and_no_refused_one(nodes: Nodes, name: str, kind: str) -> None:
    """A node that has the new policy obeys what PostgreSQL decided under the old one.

    A refused message is in the queue of dead letters if the policy says so, and nowhere else.
    """
    overflow = "reject-publish-dlx" if kind == "buried" else "reject-publish"
    limit = {"max-length-bytes": 200} if kind == "bytes" else {"max-length": 20}
    channel = nodes.channel("a")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + "-dead"}
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_declare(name + "-dead", durable=True)
    told = {node: Answers() for node in nodes.by_name}

    async def run() -> None:
        stop = asyncio.Event()
        publishers = [asyncio.create_task(publish(nodes, node, name, told[node], stop)) for node in told]
        try:
            await flip(nodes, name, limit | {"overflow": overflow}, told.values())
        finally:
            stop.set()
            await asyncio.gather(*publishers)

    asyncio.run(run())
    confirmed = told["a"].confirmed | told["b"].confirmed
    refused = told["a"].refused | told["b"].refused
    assert refused, "the limit refused nothing"
    found = drained(nodes, name)
    assert sorted(found) == sorted(confirmed)
    dead = drained(nodes, name + "-dead")
    assert sorted(dead) == (sorted(refused) if kind == "buried" else [])


def test_a_policy_that_a_start_brings_limits_the_queues(tmp_path: Path, postgres_url: str, schema: str) -> None:
    """The node stores the limits of all queues, also of those that no sweep has reached yet."""
    environment = {"SLOTMQ_CLUSTER__SCHEMA_NAME": schema}
    node = BrokerProcess(tmp_path / "a", "--cluster", postgres_url, "--node", "a", environment=environment).start()
    queues = [{"name": f"q{number}", "vhost": "/"} for number in range(3000)]
    ask(node.folder, "import_definitions", definitions={"queues": queues})
    node.terminate()
    definition = {"max-length": 1, "overflow": "reject-publish"}
    policy = {"vhost": "/", "name": "limit", "pattern": "^q", "definition": definition, "apply-to": "queues"}
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps({"policies": [policy]}))
    node.environment["SLOTMQ_SERVER__LOAD_DEFINITIONS"] = str(path)
    node.start()
    channel = pika.BlockingConnection(pika.URLParameters(node.address.url)).channel()
    channel.confirm_delivery()
    for number in (0, 1500, 2999):
        channel.basic_publish("", f"q{number}", b"1")
        with pytest.raises(NackError):
            channel.basic_publish("", f"q{number}", b"2")
    channel.connection.close()
    node.terminate()
