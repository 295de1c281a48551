"""A policy over thousands of queues of a running broker: its answer, other clients, and the end of the broker."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pytest

from broker.cli.control_client import ask
from broker.net.control_address import socket_address
from broker.server import BrokerServer
from broker.store.definitions_file import DefinitionsFile
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.in_process import client_of, running_broker, told

MANY = 3000
QUEUES: dict[str, Any] = {
    "queues": [{"vhost": "/", "name": f"q{number}", "durable": True} for number in range(MANY)],
    "vhosts": [{"name": "/"}],
}
POLICY: dict[str, Any] = {"name": "p", "pattern": "^q", "apply_to": "queues", "definition": {"max-length": 1}}


def following(broker: BrokerServer) -> int:
    """Return the number of queues that follow the policy."""
    return sum(queue.policy == "p" for queue in broker.engines["/"].vhost.queues.values())


@pytest.mark.interpreted("a method of the file is replaced")
async def test_the_answer_waits_for_the_last_queue_and_clients_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep does not delay publishes, is answered at its end, and begins only after the policy is on disk."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await told(broker, "import_definitions", definitions=QUEUES)
        at_write: list[int] = []
        write = DefinitionsFile.write

        def watched(file: DefinitionsFile, document: Mapping[str, Any]) -> None:
            at_write.append(following(broker))
            write(file, document)

        monkeypatch.setattr(DefinitionsFile, "write", watched)
        sweep = broker.engines["/"].vhost.sweep
        between: list[int] = []
        changing = asyncio.create_task(told(broker, "set_policy", **POLICY))
        while not changing.done():
            await channel.default_exchange.publish(message(), "q0")
            if sweep.pending:
                between.append(following(broker))
        assert await changing is None
        assert (at_write, following(broker), sweep.pending) == ([0], MANY, False)
        assert between
        assert between[0] < MANY
        await told(broker, "delete_policy", name="p")
        assert following(broker) == 0
        entry = {**POLICY, "vhost": "/", "apply-to": "queues", "priority": 0}
        del entry["apply_to"]
        await told(broker, "import_definitions", definitions={"policies": [entry]})
        assert following(broker) == MANY


async def test_a_change_in_the_middle_of_another_begins_anew(tmp_path: Path) -> None:
    """When a change interrupts another, both are answered, and the last one holds."""
    async with running_broker(tmp_path) as broker:
        await told(broker, "import_definitions", definitions=QUEUES)
        changes = [{**POLICY, "definition": {"max-length": length}} for length in (1, 2, 3)]
        await asyncio.gather(*(told(broker, "set_policy", **change) for change in changes))
        (policy,) = await told(broker, "list_policies")
        assert {queue.rules.max_length for queue in broker.engines["/"].vhost.queues.values()} == {
            policy["definition"]["max-length"]
        }


def test_a_kill_in_the_middle_is_no_end(tmp_path: Path) -> None:
    """The policy was on disk before the first queue followed it: the next start completes it while serving clients."""
    process = BrokerProcess(tmp_path / "data").start()
    try:
        ask(process.folder, "import_definitions", definitions=QUEUES)
        client = control(process.folder)
        client.sendall(json.dumps({"verb": "set_policy", **POLICY}).encode() + b"\n")
        assert "applying policies" in client.makefile("r").readline()
        process.kill()
        client.close()
        process.start()
        where = pika.ConnectionParameters(process.address.host, process.address.port)
        with pika.BlockingConnection(where) as connection:
            channel = connection.channel()
            for number in range(3):
                channel.basic_publish("", "q0", b"%d" % number)
            assert channel.queue_declare("q0", passive=True).method.message_count == 1

        def all_follow() -> bool:
            return all(row["policy"] == "p" for row in ask(process.folder, "list_queues"))

        wait_until(all_follow, "every queue to follow the policy")
        assert process.errors() == []
    finally:
        process.kill()


def control(folder: Path) -> socket.socket:
    """Return a client of the control socket."""
    address, descriptor = socket_address(folder)
    client = socket.socket(socket.AF_UNIX)
    client.connect(address)
    if descriptor is not None:
        os.close(descriptor)
    return client


def message() -> Any:
    """Return a message for aio-pika."""
    return aio_pika.Message(b"")
