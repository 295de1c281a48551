"""SIGHUP and `slotmq reload`: settings and certificates are read again, and the broker keeps running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from broker.cli.control_client import Unanswered, ask
from tests.broker_process import PACKAGE, READY_LINE, WITHOUT_HTTP, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until
from tests.raw_client import RawClient

ENVIRONMENT = {"SLOTMQ_AUTH__USERS__ALICE": "wonderland", "SLOTMQ_AUTH__USERS__GUEST": "guest"}
OURS = {"alice": "***", "guest": "***"}

# Runs the command line, and sends SIGHUP to itself at one moment of its life.
SIGNALLED = """
import importlib, os, signal, sys
module, names = sys.argv.pop(1).split(":")
*path, name = names.split(".")
owner = importlib.import_module(module)
for part in path:
    owner = getattr(owner, part)
original = getattr(owner, name)
def signalled(*words, **options):
    os.kill(os.getpid(), signal.SIGHUP)
    return original(*words, **options)
setattr(owner, name, signalled)
from broker.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def configured(tmp_path: Path, content: str) -> tuple[BrokerProcess, Path]:
    """Return a running broker and its settings file."""
    file = tmp_path / "slotmq.toml"
    file.write_text(content)
    process = BrokerProcess(tmp_path / "data", "--config", str(file), environment=ENVIRONMENT)
    return process.start(), file


def events(process: BrokerProcess, name: str) -> list[dict[str, Any]]:
    """Return the events of a name that are written so far."""
    lines = process.stderr().rpartition("\n")[0]
    return [event for event in process.log_events() if event["event"] == name] if lines else []


def hang_up(process: BrokerProcess, name: str = "settings.reloaded") -> dict[str, Any]:
    """Send SIGHUP and return the event of its result."""
    before = len(events(process, name))
    process.running.send_signal(signal.SIGHUP)
    wait_until(lambda: len(events(process, name)) > before, name)
    return events(process, name)[-1]


def declared(process: BrokerProcess, name: str) -> Any:
    """Declare a queue on a new connection and return the answer."""
    with RawClient(process.address.host, process.address.port).with_channel() as client:
        client.method(1, commands.Queue.Declare(queue=name, durable=True))
        return client.next().value


@pytest.fixture
def process(tmp_path: Path) -> Any:
    """Provide a broker with two settings from a file."""
    process, _file = configured(tmp_path, "[limits]\nqueues_max = 1\n[log]\nlevel = 'info'\n")
    yield process
    process.kill()


@pytest.fixture
def file(process: BrokerProcess) -> Path:
    """Return the settings file of a broker."""
    return process.folder.parent / "slotmq.toml"


def test_sighup_without_anything_to_reload_ends_nothing(tmp_path: Path) -> None:
    """A broker without TLS and without a file keeps running, and logs that it read its settings again."""
    process = BrokerProcess(tmp_path / "data").start()
    try:
        assert hang_up(process)["changed"] == []
        assert hang_up(process)["needs_restart"] == []
        assert isinstance(declared(process, "q"), commands.Queue.DeclareOk)
        assert process.terminate() == 0
        assert not process.errors()
    finally:
        process.kill()


def test_what_can_change_does_and_the_rest_is_named(process: BrokerProcess, file: Path) -> None:
    """A limit and the log level apply at once; a port needs a restart; no password is logged."""
    assert isinstance(declared(process, "a"), commands.Queue.DeclareOk)
    assert isinstance(declared(process, "b"), commands.Channel.Close)
    file.write_text(
        "[limits]\nqueues_max = 2\n[log]\nlevel = 'debug'\n[server]\nport = 1\n[auth]\nusers = {bob = 'hunter2'}\n"
    )
    said = hang_up(process)
    assert said["changed"] == [
        {"key": "limits.queues_max", "old": 1, "new": 2},
        {"key": "log.level", "old": "info", "new": "debug"},
    ]
    assert said["needs_restart"] == [  # the port is a flag, which overrides the file as before
        {"key": "auth.users", "old": {**OURS}, "new": {"bob": "***", **OURS}}
    ]
    assert isinstance(declared(process, "b"), commands.Queue.DeclareOk)
    assert "hunter2" not in process.stderr()
    assert "wonderland" not in process.stderr()
    file.write_text("[limits]\nqueues_max = 2\n[log]\nlevel = 'error'\n")
    ask(process.folder, "reload")
    assert process.terminate() == 0
    assert not events(process, "server.stopped"), "events below the new level are still written"


def test_limits_of_one_vhost_outlive_a_reload(process: BrokerProcess, file: Path) -> None:
    """A vhost's limits that an operator set by command are not settings of the file, and stay."""
    ask(process.folder, "set_vhost_limits", name="/", limits={"max-queues": 1})
    file.write_text("[limits]\nqueues_max = 5\n")
    hang_up(process)
    assert isinstance(declared(process, "a"), commands.Queue.DeclareOk)
    assert isinstance(declared(process, "b"), commands.Channel.Close)


def test_new_limits_of_a_connection_hold_for_the_next_one(process: BrokerProcess, file: Path) -> None:
    """New connections get the new heartbeat; open ones keep their negotiated one."""
    with RawClient(process.address.host, process.address.port) as client:
        client.open()
        file.write_text("[amqp]\nheartbeat_s = 7\n[server]\nconnections_max = 1\n")
        hang_up(process)
        with RawClient(process.address.host, process.address.port) as refused:
            refused.skip_to_end()  # connections_max applies at once, and no connection is closed
        client.open_channel(1)
    file.write_text("[amqp]\nheartbeat_s = 7\n")
    hang_up(process)
    with RawClient(process.address.host, process.address.port) as client:
        client.greet()
        client.authenticate("alice", "wonderland")
        assert client.expect(commands.Connection.Tune, 0).heartbeat == 7


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[limits]\nqueues_max = 0\n[log]\nlevel = 'debug'\n", "limits.queues_max: should be greater than"),
        ("[limits]\nqueues = 5\n", "limits.queues: unknown key; did you mean limits.queues_max?"),
        ("no toml", "not valid TOML"),
        (None, "cannot be read"),
    ],
)
def test_a_bad_file_changes_nothing(process: BrokerProcess, file: Path, content: str | None, reason: str) -> None:
    """One error names the file and the reason; no key of the file applies, and the next good file does."""
    file.unlink() if content is None else file.write_text(content)
    said = hang_up(process, "settings.not_reloaded")
    assert str(file) in said["reason"]
    assert reason in said["reason"]
    assert len(process.errors()) == 1
    with pytest.raises(Unanswered, match=r"slotmq\.toml"):
        ask(process.folder, "reload")
    file.write_text("[limits]\nqueues_max = 1\n[log]\nlevel = 'info'\n")
    assert hang_up(process)["changed"] == []


def test_the_command_says_what_came_of_it(process: BrokerProcess, file: Path) -> None:
    """`slotmq reload` prints each change, and ends with 1 for a bad file."""

    def reload() -> tuple[int, str]:
        command = [sys.executable, "-m", "broker", "reload", "--data-dir", str(process.folder)]
        environment = {**os.environ, **WITHOUT_HTTP, "PYTHONPATH": str(PACKAGE)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        return done.returncode, done.stdout + done.stderr

    assert reload() == (0, "no setting has changed\n")
    file.write_text("[limits]\nqueues_max = 3\n[log]\nlevel = 'info'\n[slots]\nworkers = 3\n[tls]\ncertfile = 'x'\n")
    assert reload() == (
        0,
        'limits.queues_max: 1 -> 3\ntls.certfile: "" -> x (needs a restart)\nslots.workers: 2 -> 3 (needs a restart)\n',
    )
    file.write_text("[")
    code, said = reload()
    assert code == 1
    assert said.startswith(f"slotmq: {file}: not valid TOML")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "moment",
    [
        "broker.cli.main:_run",
        "broker.cli.serve:load",
        "broker.process:BrokerServer",
        "broker.server:BrokerServer.recover",
        "broker.server:BrokerServer.serve",
        "broker.server:BrokerServer.stop",
        pytest.param("broker.log_writer:LogWriter.close", marks=pytest.mark.interpreted("a method is replaced")),
    ],
)
def test_sighup_ends_the_broker_at_no_moment(tmp_path: Path, moment: str) -> None:
    """From the command line's first step to the last line of the log the signal ends nothing."""
    command = [sys.executable, "-c", SIGNALLED, moment, "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
    environment = {**os.environ, **WITHOUT_HTTP, "PYTHONPATH": str(PACKAGE)}
    log = tmp_path / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*command, "--log-format", "json"], stdout=subprocess.PIPE, stderr=errors, env=environment
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert READY_LINE.search(process.stdout.readline().decode()), log.read_text()
            if moment.endswith((":load", ":Broker", ".recover")):
                # A reload that was requested before the broker could react is done once it can.
                wait_until(lambda: "settings.reloaded" in log.read_text(), "the settings are read again")
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0, log.read_text()
        finally:
            process.kill()
    assert '"level": "error"' not in log.read_text()
