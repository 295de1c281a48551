"""amqp-tools of Debian: rabbitmq-c's programs for shell scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.broker_process import BrokerAddress
from tests.deadline import DEADLINE_S, wait_until

PROGRAMS = ("publish", "get", "consume", "declare-queue", "delete-queue")
Run: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.skipif(
    not all(shutil.which(f"amqp-{program}") for program in PROGRAMS), reason="amqp-tools are not installed"
)


@pytest.fixture
def run(broker: BrokerAddress) -> Run:
    """Run one of the programs against the broker."""

    def _run(program: str, *options: str, said: str = "") -> subprocess.CompletedProcess[str]:
        command = [f"amqp-{program}", "--url", broker.url, *options]
        return subprocess.run(command, input=said, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    return _run


def test_queue_by_hand(run: Run, name: str) -> None:
    """A queue is declared, filled, emptied message by message, and deleted with its remaining messages."""
    assert run("declare-queue", "--queue", name, "--durable").stdout == f"{name}\n"
    for body in ("one", "two", "three"):
        assert run("publish", "--routing-key", name, "--body", body, "--persistent", "--header", "k: v").returncode == 0
    assert run("publish", "--routing-key", name, "--line-buffered", said="four\nfive\n").returncode == 0
    assert [run("get", "--queue", name).stdout for _ in range(3)] == ["one", "two", "three"]
    assert run("delete-queue", "--queue", name).stdout == "2\n"
    gone = run("get", "--queue", name)
    assert gone.returncode != 0
    assert f"server channel error 404, message: NOT_FOUND - no queue '{name}' in vhost '/'" in gone.stderr


def test_queue_that_the_broker_names(run: Run) -> None:
    """Without a name the broker generates one; the exit code reports an empty queue."""
    queue = run("declare-queue", "--queue", "").stdout.strip()
    assert queue.startswith("amq.gen-")
    assert run("get", "--queue", queue).returncode == 2
    assert run("delete-queue", "--queue", queue).stdout == "0\n"


def test_consuming_a_binding(broker: BrokerAddress, run: Run, name: str, tmp_path: Path) -> None:
    """A command runs for each message of a binding, until the requested number has arrived."""
    output = tmp_path / "output"
    command = ["amqp-consume", "--url", broker.url, "--exchange", "amq.topic", "--routing-key", f"{name}.#"]
    command += ["--exclusive", "--queue", name, "--count", "3", "--prefetch-count", "1", "cat"]
    with output.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=os.environ)
    try:
        sent = 0

        def done() -> bool:  # publishes are dropped until its queue is bound
            nonlocal sent
            run("publish", "--exchange", "amq.topic", "--routing-key", f"{name}.{sent}", "--body", f"<{sent}>")
            sent += 1
            return process.poll() is not None

        wait_until(done, "three messages")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
    numbers = [int(part.removeprefix("<")) for part in output.read_text().split(">")[:-1]]
    assert numbers == list(range(numbers[0], numbers[0] + 3))


def test_wrong_password(broker: BrokerAddress) -> None:
    """A wrong password is refused with a text and an exit code."""
    url = broker.url.replace(f":{broker.password}@", ":wrong@")
    refused = subprocess.run(
        ["amqp-get", "--url", url, "--queue", "q"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert refused.returncode != 0
    assert "ACCESS_REFUSED" in refused.stderr
