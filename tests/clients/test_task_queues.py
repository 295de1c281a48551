"""Dramatiq on classic and quorum queues, and the retries of Laravel, through kill -9 of the broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pika
import pytest

from broker.cli.control_client import ask
from tests.broker_process import PROJECT, BrokerProcess
from tests.clients.dramatiq_tasks import TASKS
from tests.deadline import DEADLINE_S, wait_until


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_dramatiq_loses_no_task(kind: str, tmp_path: Path) -> None:
    """Confirmed tasks outlive kill -9; a failing one is retried, then dead-lettered; a delayed one is not early."""
    broker = BrokerProcess(tmp_path / "broker").start()
    dramatiq("publish", kind, broker)
    broker.restart()
    done = json.loads(dramatiq("work", kind, broker))
    assert done["added"] == list(range(TASKS))
    assert done["attempts"] == 3
    assert done["late_s"] > -0.01  # its clock has whole milliseconds
    rows = {row["name"]: row for row in ask(broker.folder, "list_queues")}
    assert {rows[name]["arguments"].get("x-queue-type", "classic") for name in ("tasks", "tasks.DQ")} == {kind}
    assert [rows[name]["messages"] for name in ("tasks", "tasks.DQ", "tasks.XQ")] == [0, 0, 1]
    assert broker.terminate() == 0


def dramatiq(word: str, kind: str, broker: BrokerProcess) -> str:
    """Run the application, and return what it prints."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.clients.dramatiq_tasks", word, kind, broker.address.url]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        command, env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout


def test_laravel_retries_through_queues_that_expire(tmp_path: Path) -> None:
    """A released job waits in a queue named after its delay, across kill -9; an unused queue expires."""
    broker = BrokerProcess(tmp_path / "broker").start()
    for attempt in range(3):
        with pika.BlockingConnection(pika.URLParameters(broker.address.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("default", durable=True)
            if not attempt:
                publish(channel, "default", attempt)
            tag, headers = pop(channel, attempt)
            if attempt:
                assert headers["x-death"][0]["reason"] == "expired"
            if attempt < 2:
                release(channel, attempt + 1)
            channel.basic_ack(tag)
        if not attempt:
            broker.kill()
            broker.start()

    def queues() -> set[str]:
        return {row["name"] for row in ask(broker.folder, "list_queues")}

    wait_until(lambda: queues() == {"default"}, "the delays' queues to expire")
    assert broker.terminate() == 0


def pop(channel: Any, attempts: int) -> tuple[int, dict[str, Any]]:
    """Return the delivery tag and the headers of the job with this number of attempts.

    A crash may undo the ack of the attempt before: its job comes back, marked as redelivered.
    """
    while True:
        method, properties, _body = wait_until(lambda: get(channel), "a job")
        if properties.headers["laravel"]["attempts"] == attempts:
            return method.delivery_tag, properties.headers
        assert method.redelivered
        channel.basic_ack(method.delivery_tag)


def get(channel: Any) -> Any:
    """Return a message, None if the queue is empty."""
    found = channel.basic_get("default")
    return None if found[0] is None else found


def release(channel: Any, attempts: int) -> None:
    """Publish a job to the queue of its delay."""
    delay_ms = 400 * attempts
    name = f"default.delay.{delay_ms}"
    target = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "default"}
    lifetime = {"x-message-ttl": delay_ms, "x-expires": 2 * delay_ms}
    channel.queue_declare(name, durable=True, arguments={**target, **lifetime})
    publish(channel, name, attempts)


def publish(channel: Any, queue: str, attempts: int) -> None:
    """Publish a job as Laravel does."""
    properties = pika.BasicProperties(
        content_type="application/json", delivery_mode=2, headers={"laravel": {"attempts": attempts}}
    )
    channel.basic_publish("", queue, rb'{"job":"App\Jobs\Send"}', properties)
