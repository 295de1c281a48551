"""Administrative changes that were reported as done survive kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pika
import pytest

from broker.cli.control_client import Unanswered, ask
from tests.broker_process import PROJECT, BrokerProcess

pytestmark = pytest.mark.fault


def slotmq(broker: BrokerProcess, *words: str, said: str = "") -> str:
    """Run a command against the broker and return what it printed."""
    command = [sys.executable, "-m", "broker", *words, "--data-dir", str(broker.folder)]
    done = subprocess.run(command, input=said, capture_output=True, text=True, cwd=PROJECT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def log_in(broker: BrokerProcess, user: str, password: str, vhost: str) -> pika.BlockingConnection:
    """Open a vhost."""
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", broker.address.port, vhost, credentials, blocked_connection_timeout=10)
    )


def test_every_change_outlives_a_kill(tmp_path: Path) -> None:
    """Users, passwords, vhosts, rights and policies that a command created or deleted survive a kill."""
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        for name in ("alice", "gone"):
            slotmq(broker, "user", "add", name, "--password-stdin", "--tag", "monitoring", said="secret\n")
            slotmq(broker, "vhost", "add", f"of {name}")
        slotmq(broker, "permission", "set", "alice", "^a", ".*", "", "--vhost", "of alice")
        slotmq(broker, "permission", "set-topic", "alice", "amq.topic", "^a", ".*", "--vhost", "of alice")
        slotmq(broker, "policy", "set", "p", "^a", '{"max-length": 1}', "--vhost", "of alice", "--priority", "3")
        slotmq(broker, "policy", "set", "p", "^a", '{"max-length": 2}', "--vhost", "of alice", "--operator")
        slotmq(broker, "user", "delete", "gone")
        slotmq(broker, "vhost", "delete", "of gone")
        slotmq(broker, "user", "set", "alice", "--password-stdin", said="another\n")
        before = slotmq(broker, "definitions", "export")
        broker.restart()
        assert json.loads(slotmq(broker, "definitions", "export")) == json.loads(before)
        assert slotmq(broker, "user", "list").splitlines() == ["alice\tmonitoring", "guest\tadministrator"]
        with pytest.raises(pika.exceptions.AMQPError):
            log_in(broker, "alice", "secret", "of alice")
        connection = log_in(broker, "alice", "another", "of alice")
        channel = connection.channel()
        channel.queue_declare("a")
        (row,) = json.loads(slotmq(broker, "list", "queues", "--json"))
        assert (row["policy"], row["operator_policy"]) == ("p", "p")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
            channel.queue_declare("b")
        connection.close()
    finally:
        broker.kill()


def test_imported_topology_outlives_a_kill(tmp_path: Path) -> None:
    """The import command ends only when all definitions are on disk."""
    document = {
        "vhosts": [{"name": "v"}],
        "exchanges": [{"name": "x", "vhost": "v", "type": "topic"}],
        "queues": [{"name": f"q{number}", "vhost": "v"} for number in range(500)],
        "bindings": [
            {"source": "x", "vhost": "v", "destination": f"q{number}", "destination_type": "queue", "routing_key": "#"}
            for number in range(500)
        ],
    }
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(document))
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        made = slotmq(broker, "definitions", "import", str(file))
        assert made == "made: 1 exchange, 500 queues, 500 bindings, 1 vhost\n"
        broker.restart()
        exported = json.loads(slotmq(broker, "definitions", "export"))
        assert (len(exported["queues"]), len(exported["bindings"])) == (500, 500)
    finally:
        broker.kill()


@pytest.mark.parametrize(("step", "taken"), [("checking", False), ("importing", True)])
def test_import_that_a_kill_ends_is_there_whole_or_not_at_all(tmp_path: Path, step: str, taken: bool) -> None:
    """After a kill, a checked import is absent or completed by the next start; its passwords are on disk as hashes."""
    names = [f"q{number}" for number in range(1000)]
    document = {
        "users": [{"name": "u", "password": "secret", "tags": ["monitoring"]}],
        "vhosts": [{"name": "v", "metadata": {"description": "new"}}],
        "permissions": [{"user": "u", "vhost": "v", "configure": "", "write": "", "read": ".*"}],
        "policies": [{"vhost": "v", "name": "p", "pattern": "^q1$", "definition": {"max-length": 1}, "priority": 2}],
        "operator_policies": [{"vhost": "/", "name": "o", "pattern": "^q1$", "definition": {"max-length": 2}}],
        "parameters": [{"vhost": "/", "component": "shovel", "name": "s", "value": {"src-uri": "amqp://"}}],
        "global_parameters": [{"name": "g", "value": 1}],
        "exchanges": [{"name": "x", "vhost": "/", "type": "topic", "internal": True}],
        "queues": [{"name": name, "vhost": vhost} for name in names for vhost in ("/", "v")],
        "bindings": [
            {"source": "x", "vhost": "/", "destination": name, "destination_type": "queue", "routing_key": "#"}
            for name in names
        ],
    }
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        before = json.loads(slotmq(broker, "definitions", "export"))

        def kill(progress: Mapping[str, Any]) -> None:
            if progress["step"] == step and 500 <= progress["done"] < 600:
                broker.kill()

        with pytest.raises(Unanswered):
            ask(broker.folder, "import_definitions", on_progress=kill, definitions=document)
        assert b"secret" not in (broker.folder / "definitions").read_bytes()
        broker.restart()
        after = json.loads(slotmq(broker, "definitions", "export"))
        if not taken:
            assert after == before
            return
        assert {part: len(after[part]) for part in document if part != "operator_policies"} == {
            "users": 2, "vhosts": 2, "permissions": 2, "policies": 1, "parameters": 2, "global_parameters": 1,
            "exchanges": 1, "queues": 2000, "bindings": 1000,
        }  # fmt: skip
        log_in(broker, "u", "secret", "v").close()
        broker.restart()
        assert json.loads(slotmq(broker, "definitions", "export")) == after
    finally:
        broker.kill()


def test_bad_definitions_keep_the_broker_from_starting(tmp_path: Path) -> None:
    """Bad definitions end the start with exit code 2 and one line that names the file and the entry."""
    file = tmp_path / "definitions.json"
    file.write_text('{"queues": [{"name": "q", "vhost": "nowhere"}]}')
    broker = BrokerProcess(tmp_path / "data", "--load-definitions", str(file))
    broker.spawn()
    assert broker.wait() == 2
    said = [line for line in broker.stderr().splitlines() if line.startswith("slotmq: ")]
    assert said == [f"slotmq: {file}: queues[0]: Virtual host 'nowhere' does not exist"]
