"""Draining: what clients hold they may finish, nothing more comes, and then they are told to go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from broker.cli.control_client import ask
from tests.broker_process import PACKAGE, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until
from tests.raw_client import RawClient, publish_frames

MESSAGES = 6
HELD = 2


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Provide a running broker."""
    process = BrokerProcess(tmp_path / "data").start()
    yield process
    process.kill()


@pytest.fixture
def worker(process: BrokerProcess) -> Iterator[RawClient]:
    """Provide a client that holds two of six messages, with a prefetch of two."""
    with RawClient(process.address.host, process.address.port).with_channel() as client:
        client.declare_queue(1, "q", durable=True)
        client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for number in range(MESSAGES):
            client.send(
                publish_frames(1, "", "q", b"%d" % number, properties=commands.Basic.Properties(delivery_mode=2))
            )
        while client.expect(commands.Basic.Ack, 1).delivery_tag < MESSAGES:
            pass
        client.call(1, commands.Basic.Qos(prefetch_count=HELD), commands.Basic.QosOk)
        client.call(1, commands.Basic.Consume(queue="q", consumer_tag="c"), commands.Basic.ConsumeOk)
        for _ in range(HELD):
            client.expect(commands.Basic.Deliver, 1)
            client.expect_content(1)
        yield client


def started(process: BrokerProcess, *words: str) -> subprocess.Popen[str]:
    """Start a command of the command line."""
    command = [sys.executable, "-m", "broker", *words, "--data-dir", str(process.folder)]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def ended(command: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code of a command and what it printed."""
    out, errors = command.communicate(timeout=DEADLINE_S)
    return command.returncode, out + errors


def queue(process: BrokerProcess) -> Any:
    """Return the row of the queue."""
    (row,) = ask(process.folder, "list_queues")
    return row


def is_draining(process: BrokerProcess) -> bool:
    """Return whether all connections are drained."""
    return all(row["state"] == "draining" for row in ask(process.folder, "list_connections"))


def name_of(process: BrokerProcess) -> str:
    """Return the name of the only connection."""
    (row,) = ask(process.folder, "list_connections")
    return str(row["name"])


@pytest.mark.parametrize("of", ["all", "connection"])
def test_a_client_finishes_what_it_holds_and_is_closed_with_320(
    process: BrokerProcess, worker: RawClient, of: str
) -> None:
    """An ack makes no room for more; the last one ends the drain: a cancel, a close, and the rest is in the queue."""
    command = started(process, "drain", *(["--connection", name_of(process)] if of == "connection" else []))
    wait_until(lambda: is_draining(process), "the drain")
    worker.method(1, commands.Basic.Ack(delivery_tag=1))
    worker.call(1, commands.Basic.Qos(prefetch_count=100), commands.Basic.QosOk)
    assert (queue(process)["messages_ready"], queue(process)["messages_unacknowledged"]) == (MESSAGES - HELD, 1)
    assert command.poll() is None
    worker.method(1, commands.Basic.Ack(delivery_tag=2))
    assert worker.expect(commands.Basic.Cancel, 1).consumer_tag == "c"
    close = worker.expect_connection_close(320)
    assert close.reply_text == "CONNECTION_FORCED - the broker is being drained"
    assert ended(command) == (0, "1 client closed, 1 consumer cancelled, 0 messages not settled in time\n")
    assert (queue(process)["messages_ready"], queue(process)["messages_unacknowledged"]) == (MESSAGES - HELD, 0)


def test_an_answer_reaches_the_client_that_waits_for_it(process: BrokerProcess, worker: RawClient) -> None:
    """A consumer without acks on a queue of its own gets what a worker publishes while it finishes."""
    with RawClient(process.address.host, process.address.port).with_channel() as caller:
        replies = caller.declare_queue(1, exclusive=True)
        caller.call(1, commands.Basic.Consume(queue=replies, no_ack=True), commands.Basic.ConsumeOk)
        command = started(process, "drain")
        wait_until(lambda: is_draining(process), "the drain")
        worker.send(publish_frames(1, "", replies, b"result"))
        worker.method(1, commands.Basic.Ack(delivery_tag=0, multiple=True))
        caller.expect(commands.Basic.Deliver, 1)
        assert caller.expect_content(1)[1] == b"result"
        caller.expect(commands.Basic.Cancel, 1)
        caller.expect_connection_close(320)
        assert ended(command)[0] == 0


def test_what_is_held_for_too_long_goes_back(process: BrokerProcess, worker: RawClient) -> None:
    """When the time is over the client is closed all the same, and its messages are ready again."""
    outcome = ended(started(process, "drain", "--timeout", "1", "--json"))
    assert (outcome[0], json.loads(outcome[1])) == (0, {"closed": 1, "cancelled": 1, "unacked": HELD})
    worker.expect(commands.Basic.Cancel, 1)
    worker.expect_connection_close(320)
    wait_until(lambda: queue(process)["messages_ready"] == MESSAGES, "the messages of the closed client")


def test_the_consumers_of_a_queue_hand_over_to_those_that_come(process: BrokerProcess, worker: RawClient) -> None:
    """The old consumer gets no more, a new one does; the old one is cancelled and its client stays."""
    command = started(process, "drain", "--queue", "q")
    wait_until(lambda: "queue.draining" in process.stderr(), "the drain")
    with RawClient(process.address.host, process.address.port).with_channel() as other:
        other.call(1, commands.Basic.Consume(queue="q", consumer_tag="new"), commands.Basic.ConsumeOk)
        for _ in range(MESSAGES - HELD):
            other.expect(commands.Basic.Deliver, 1)
            other.expect_content(1)
        worker.method(1, commands.Basic.Ack(delivery_tag=0, multiple=True))
        assert worker.expect(commands.Basic.Cancel, 1).consumer_tag == "c"
        assert ended(command) == (0, "0 clients closed, 1 consumer cancelled, 0 messages not settled in time\n")
        worker.declare_queue(1, "q", durable=True)


def test_a_drain_that_is_interrupted_leaves_everything_as_it_was(process: BrokerProcess, worker: RawClient) -> None:
    """When the command is killed, deliveries continue."""
    command = started(process, "drain")
    wait_until(lambda: is_draining(process), "the drain")
    command.kill()
    command.communicate()
    wait_until(lambda: not is_draining(process), "the end of the drain")
    worker.method(1, commands.Basic.Ack(delivery_tag=1))
    assert worker.expect(commands.Basic.Deliver, 1).delivery_tag == HELD + 1


def test_a_stop_with_a_drain_waits_for_what_clients_hold(process: BrokerProcess, worker: RawClient) -> None:
    """The command says what it waits for; the acked messages are settled after the restart, the others are there."""
    command = started(process, "stop", "--drain")
    wait_until(lambda: is_draining(process), "the drain")
    worker.method(1, commands.Basic.Ack(delivery_tag=0, multiple=True))
    worker.expect(commands.Basic.Cancel, 1)
    assert worker.expect_connection_close(320).reply_text == "CONNECTION_FORCED - the broker is about to stop"
    code, said = ended(command)
    assert (code, said.splitlines()[0], said.splitlines()[-1]) == (0, "waiting for 2 acknowledgements", "stopped")
    assert process.wait() == 0
    process.process = None
    process.start()
    assert (queue(process)["messages_ready"], queue(process)["messages_unacknowledged"]) == (MESSAGES - HELD, 0)


def test_a_drain_that_a_stop_overtakes_says_what_was_not_settled(process: BrokerProcess, worker: RawClient) -> None:
    """The clients are closed by the stop, with what they hold."""
    command = started(process, "drain", "--json")
    wait_until(lambda: is_draining(process), "the drain")
    worker.method(1, commands.Basic.Ack(delivery_tag=1))
    wait_until(lambda: queue(process)["messages_unacknowledged"] == 1, "the ack")
    process.terminate()
    code, said = ended(command)
    assert (code, json.loads(said)["unacked"]) == (0, 1)


def test_what_cannot_be_drained_is_one_line(process: BrokerProcess) -> None:
    """A connection or a queue that is not there, and both at once."""
    assert ended(started(process, "drain", "--connection", "x")) == (1, "slotmq: no connection 'x'\n")
    assert ended(started(process, "drain", "--queue", "x"))[1] == "slotmq: no queue 'x' in vhost '/'\n"
    assert ended(started(process, "drain", "--queue", "q", "--connection", "x"))[0] == 2


def test_what_a_queues_consumer_holds_for_too_long_goes_to_another(process: BrokerProcess, worker: RawClient) -> None:
    """When the time is over its messages are ready again, and acknowledging them late changes nothing."""
    assert ended(started(process, "drain", "--queue", "q", "--timeout", "1"))[0] == 0
    assert worker.expect(commands.Basic.Cancel, 1).consumer_tag == "c"
    wait_until(lambda: queue(process)["messages_ready"] == MESSAGES, "the messages of the cancelled consumer")
    worker.method(1, commands.Basic.Ack(delivery_tag=0, multiple=True))
    worker.method(1, commands.Basic.Ack(delivery_tag=HELD))
    assert worker.call(1, commands.Basic.Get(queue="q"), commands.Basic.GetOk).message_count == MESSAGES - 1


@pytest.mark.parametrize("words", [(), ("--queue", "q")], ids=["all", "queue"])
def test_one_of_two_drains_that_is_interrupted_leaves_the_other(
    process: BrokerProcess, worker: RawClient, words: tuple[str, ...]
) -> None:
    """Nothing is delivered until both drains are over."""
    interrupted, command = [started(process, "drain", *words) for _ in range(2)]
    wait_until(lambda: process.stderr().count("draining") == 2, "both drains")
    interrupted.kill()
    interrupted.communicate()
    worker.method(1, commands.Basic.Ack(delivery_tag=1))
    assert not worker.readable(1), "a delivery to a client that is drained"
    assert queue(process)["messages_unacknowledged"] == 1
    worker.method(1, commands.Basic.Ack(delivery_tag=2))
    assert worker.expect(commands.Basic.Cancel, 1).consumer_tag == "c"
    assert ended(command)[0] == 0


def test_an_interrupted_drain_delivers_nothing_to_a_client_that_does_not_read(process: BrokerProcess) -> None:
    """The client gets as much as its socket takes, and no more after a drain of it ended."""
    host, port = process.address.host, process.address.port
    with RawClient(host, port, receive_buffer_bytes=4096).with_channel() as client:
        client.declare_queue(1, "q", durable=True)
        for _ in range(400):
            client.send(publish_frames(1, "", "q", bytes(100_000)))
        client.call(1, commands.Basic.Consume(queue="q", consumer_tag="c"), commands.Basic.ConsumeOk)
        wait_until(lambda: queue(process)["messages_unacknowledged"], "the first deliveries")
        before = queue(process)["messages_unacknowledged"]
        command = started(process, "drain")
        wait_until(lambda: is_draining(process), "the drain")
        command.kill()
        command.communicate()
        wait_until(lambda: not is_draining(process), "the end of the drain")
        assert queue(process)["messages_unacknowledged"] == before
