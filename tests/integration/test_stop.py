"""`slotmq stop`: the broker stops cleanly; the command reports its progress and returns when the process has ended."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pamqp import commands

from broker.cli.control_client import Unanswered, ask
from broker.net.control_address import SOCKET_NAME
from tests.broker_process import PACKAGE, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until
from tests.in_process import running_broker
from tests.raw_client import RawClient, publish_frames

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE)}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Provide a running broker."""
    process = BrokerProcess(tmp_path / "data", environment={"SLOTMQ_SERVER__DRAIN_TIMEOUT_MS": "9000"}).start()
    yield process
    process.kill()


def command_of(process: BrokerProcess, *options: str) -> list[str]:
    """Return `slotmq stop` for a broker."""
    return [sys.executable, "-m", "broker", "stop", "--data-dir", str(process.folder), *options]


def run(process: BrokerProcess, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `slotmq stop` to its end."""
    command = command_of(process, *options)
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=DEADLINE_S, check=False)


@contextmanager
def stuck_client(process: BrokerProcess) -> Iterator[None]:
    """Provide a client that does not read its output, so that a stop waits for it."""
    host, port = process.address.host, process.address.port
    with RawClient(host, port) as publisher, RawClient(host, port, receive_buffer_bytes=4096) as client:
        for one in (publisher, client):
            one.open()
            one.open_channel(1)
        publisher.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        publisher.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        publisher.send(publish_frames(1, "", "q", bytes(100_000), piece_bytes=131_064) * 200)
        while publisher.expect(commands.Basic.Ack, 1).delivery_tag < 200:
            pass
        publisher.close()
        client.method(1, commands.Basic.Consume(queue="q", no_ack=True))
        seen = [-1] * 10

        def full() -> bool:
            seen.append(ask(process.folder, "status")["ready"])
            return len(set(seen[-10:])) == 1

        wait_until(full, "more than the sockets take")
        assert seen[-1] > 0
        yield


def test_the_process_is_gone_when_the_command_returns(process: BrokerProcess) -> None:
    """An idle client gets the close; the command reports what it waits for and finally that the broker has stopped."""
    with RawClient(process.address.host, process.address.port).with_channel() as client:
        client.call(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        done = run(process)
        assert process.running.poll() == 0
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[-3:] == ["waiting for 1 client", "waiting for the checkpoint of vhost '/'", "stopped"]
        client.expect_connection_close(320)
    assert process.wait() == 0
    assert not process.errors()
    assert run(process).returncode == 1, "there is none to stop"


def test_a_stop_that_takes_long_is_told_and_goes_on(process: BrokerProcess) -> None:
    """After --timeout the command ends with 1 and names what delays the broker; another one waits for the same stop."""
    with stuck_client(process):
        done = run(process, "--timeout", "1")
        assert done.returncode == 1
        assert done.stderr == "slotmq: the broker has not stopped within 1 s: it waits for 1 client\n"
        assert run(process).returncode == 0
    assert process.wait() == 0


def test_an_end_that_is_no_orderly_stop_is_told(process: BrokerProcess) -> None:
    """A broker that is killed while it stops is reported as not stopped cleanly."""
    with (
        stuck_client(process),
        subprocess.Popen(
            command_of(process), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        ) as command,
    ):
        assert command.stdout is not None
        assert command.stdout.readline() == "waiting for 1 client\n"
        process.kill()
        _said, problem = command.communicate(timeout=DEADLINE_S)
        assert command.returncode == 1
        assert problem.startswith(f"slotmq: the broker on data folder {process.folder} has ended, but not cleanly")


async def test_a_broker_inside_another_program_is_not_stopped(tmp_path: Path) -> None:
    """A broker inside another program is stopped by that program, not by the command."""
    async with running_broker(tmp_path / "data"):
        with pytest.raises(Unanswered, match="inside another program"):
            await asyncio.to_thread(ask, tmp_path / "data", "stop")


def test_who_waits_at_the_control_socket_leaves_no_traceback(process: BrokerProcess) -> None:
    """A stop ends the connections of the control socket, and standard error has only events."""
    with socket.socket(socket.AF_UNIX) as idle:
        idle.connect(str(process.folder / SOCKET_NAME))
        idle.sendall(b'{"verb":"health"}\n')
        assert idle.recv(100)
        assert process.terminate() == 0
    assert not process.errors()


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "1e9", "soon"])
def test_a_wrong_timeout_is_wrong_usage(tmp_path: Path, timeout: str) -> None:
    """A wrong timeout is refused before the broker is contacted."""
    assert run(BrokerProcess(tmp_path / "none"), f"--timeout={timeout}").returncode == 2


def test_status_says_which_process_it_is(process: BrokerProcess) -> None:
    """Status has the process facts: pid, uptime, incarnation and descriptors."""
    before = ask(process.folder, "status")
    assert before["pid"] == process.running.pid
    assert 0 <= before["uptime_s"] < 600
    assert before["incarnation"] in (process.folder / "incarnation").read_text()
    assert 0 < before["descriptors"] < before["descriptors_max"]
    with RawClient(process.address.host, process.address.port) as client:
        client.open()
        wait_until(lambda: ask(process.folder, "status")["descriptors"] > before["descriptors"], "one more")
