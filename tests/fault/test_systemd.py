"""The broker as a service of systemd: what it reports while it starts, reloads and stops, and its unit."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from broker.cli.main import build_parser
from tests.broker_process import PROJECT, BrokerProcess
from tests.deadline import DEADLINE_S

pytestmark = pytest.mark.fault

UNIT = PROJECT / "config" / "slotmq.service"


def next_of(heard: socket.socket, wanted: str) -> list[str]:
    """Return the lines of the next datagram with this line, skipping the watchdog's and those of the recovery."""
    while wanted not in (lines := heard.recv(4096).decode().split("\n")):
        pass
    return lines


def test_a_service_of_systemd(broker_process: BrokerProcess, tmp_path: Path) -> None:
    """systemd hears when clients can connect, that the loop lives, of a reload, and of the stop."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(DEADLINE_S)
        broker_process.environment |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        broker_process.spawn()
        status = next_of(heard, "READY=1")[1]
        broker_process.wait_ready()
        assert status == f"STATUS=Ready at amqp://127.0.0.1:{broker_process.address.port}/"
        next_of(heard, "WATCHDOG=1")
        broker_process.running.send_signal(signal.SIGHUP)
        assert next_of(heard, "RELOADING=1")[1].startswith("MONOTONIC_USEC=")
        assert next_of(heard, "READY=1")[1] == status
        broker_process.running.send_signal(signal.SIGTERM)
        next_of(heard, "STOPPING=1")
        assert broker_process.wait() == 0
    assert not broker_process.errors()


def unit() -> dict[str, str]:
    """Return the settings of the unit."""
    return dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))


def test_the_unit_names_commands_that_exist() -> None:
    """The unit serves and reloads one data folder, which is the state directory."""
    found = unit()
    for setting, verb in (("ExecStart", "serve"), ("ExecReload", "reload")):
        program, *words = shlex.split(found[setting])
        assert Path(program).name == "slotmq"
        arguments = build_parser().parse_args(words)
        assert words[0] == verb
        assert str(arguments.data_dir) == f"/var/lib/{found['StateDirectory']}"
    assert found["RestartPreventExitStatus"] == "2"
    assert found["Type"] == "notify"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing wrong."""
    program = unit()["ExecStart"].split()[0]
    copy = tmp_path / "slotmq.service"
    copy.write_text(UNIT.read_text().replace(program, "/bin/true"))
    environment = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
