"""What keeps a broker from starting is said in one line, with exit code 2; nothing else is harmed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from pamqp import commands

from tests.broker_process import BrokerProcess
from tests.raw_client import RawClient

pytestmark = pytest.mark.fault


def refusal(process: BrokerProcess, *options: str) -> str:
    """Starts a broker that is expected to refuse, and returns the one line that it says."""
    process.spawn(*options)
    assert process.wait(20) == 2, process.stderr()
    assert process.stdout() == ""
    lines = process.stderr().splitlines()
    assert len(lines) == 1, lines
    assert "Traceback" not in lines[0]
    return lines[0]


def test_ready_line(broker_process: BrokerProcess) -> None:
    """One readable line says that the broker is ready: URL, user and data folder."""
    broker_process.start()
    (line,) = broker_process.stdout().splitlines()
    assert f"amqp://guest@127.0.0.1:{broker_process.address.port}" in line
    assert "guest" in line
    assert str(broker_process.folder) in line


def test_second_broker_on_a_folder(broker_process: BrokerProcess) -> None:
    """A second broker on a data folder in use names the folder and exits 2; the first one goes on."""
    broker_process.start()
    second = BrokerProcess(broker_process.folder)
    second.starts = 10  # its output goes beside the first one's
    assert str(broker_process.folder) in refusal(second)
    address = broker_process.address
    with RawClient(address.host, address.port) as client:
        client.open()
        client.open_channel(1)
        client.call(1, commands.Queue.Declare(queue="still here", durable=True), commands.Queue.DeclareOk)
        client.close()
    assert broker_process.terminate() == 0
    # And the folder is free again.
    broker_process.start()


def test_folder_of_a_killed_broker_is_free(broker_process: BrokerProcess) -> None:
    """A broker that was killed leaves no lock behind."""
    broker_process.start()
    broker_process.restart()
    assert broker_process.alive


@pytest.mark.parametrize("what", ["is a file", "is below a file", "cannot be made"])
def test_folder_that_cannot_be_written(tmp_path: Path, what: str) -> None:
    """A data folder that is a file, or below one, or where nothing can be made, is named in one line; exit 2."""
    file = tmp_path / "file"
    file.write_text("not a folder")
    folder = {"is a file": file, "is below a file": file / "folder", "cannot be made": Path("/proc/slotmq")}[what]
    process = BrokerProcess(tmp_path / "unused")
    try:
        assert str(folder) in refusal(process, "--data-dir", str(folder))
    finally:
        process.kill()
    assert file.read_text() == "not a folder"


def test_port_in_use(broker_process: BrokerProcess) -> None:
    """A port that somebody else listens on is named in one line; exit 2."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in refusal(broker_process, "--port", str(port))


def test_unknown_setting_in_the_environment(broker_process: BrokerProcess) -> None:
    """An unknown key is an error that names the nearest known one."""
    broker_process.environment["SLOTMQ_SERVER__PROT"] = "5672"
    line = refusal(broker_process)
    assert "PROT" in line.upper()
    assert "port" in line.lower()
