"""An error that prevents the start is one line, with exit code 1 if it may pass, else 2, and harms nothing else."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from crc32c import crc32c
from pamqp import commands

from tests.broker_process import PACKAGE, PROJECT, READY_LINE, WITHOUT_HTTP, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until
from tests.raw_client import RawClient

pytestmark = pytest.mark.fault


def environment() -> dict[str, str]:
    """Return the environment without the broker's variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLOTMQ_")} | WITHOUT_HTTP


def refusal(process: BrokerProcess, *options: str, code: int = 2) -> str:
    """Start a broker that must refuse, and return its one line of output."""
    process.spawn(*options)
    assert process.wait(DEADLINE_S) == code, process.stderr()
    assert process.stdout() == ""
    lines = process.stderr().splitlines()
    assert len(lines) == 1, lines
    assert "Traceback" not in lines[0]
    return lines[0]


def test_ready_line(broker_process: BrokerProcess) -> None:
    """One readable line announces the broker: URL, user and data folder."""
    broker_process.start()
    (line,) = broker_process.stdout().splitlines()
    assert f"amqp://127.0.0.1:{broker_process.address.port}/ (user guest)" in line
    assert "guest" in line
    assert str(broker_process.folder) in line


def test_second_broker_on_a_folder(broker_process: BrokerProcess) -> None:
    """A second broker on a data folder in use names the folder and exits 1; the first one keeps running."""
    broker_process.start()
    second = BrokerProcess(broker_process.folder)
    second.starts = 10  # its output is written beside the first one's
    assert str(broker_process.folder) in refusal(second, code=1)
    address = broker_process.address
    with RawClient(address.host, address.port).with_channel() as client:
        client.call(1, commands.Queue.Declare(queue="still here", durable=True), commands.Queue.DeclareOk)
        client.close()
    broker_process.restart(kill=False)  # the folder is free again


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
def test_a_lock_that_somebody_deleted(broker_process: BrokerProcess, again: bool) -> None:
    """A deleted or replaced file `lock` lets no second broker into a folder that is in use."""
    broker_process.start()
    lock = broker_process.folder / "lock"
    lock.unlink()
    if again:
        lock.touch()
    second = BrokerProcess(broker_process.folder)
    second.starts = 10
    try:
        line = refusal(second, code=1)
    finally:
        second.kill()
    assert line == f"slotmq: {broker_process.folder}: another broker is using this data folder"
    broker_process.restart(kill=False)


def test_folder_of_a_killed_broker_is_free(broker_process: BrokerProcess) -> None:
    """A broker that was killed leaves no lock behind."""
    broker_process.start()
    broker_process.restart()
    assert broker_process.alive


@pytest.mark.parametrize("what", ["is a file", "is below a file", "cannot be made"])
def test_folder_that_cannot_be_written(tmp_path: Path, what: str) -> None:
    """A data folder that is a file, below a file, or not writable is named in one line; exit code 2."""
    file = tmp_path / "file"
    file.write_text("not a folder")
    folder = {"is a file": file, "is below a file": file / "folder", "cannot be made": Path("/proc/slotmq")}[what]
    process = BrokerProcess(tmp_path / "unused")
    try:
        assert str(folder) in refusal(process, "--data-dir", str(folder))
    finally:
        process.kill()
    assert file.read_text() == "not a folder"


def later(folder: Path, what: str) -> Path:
    """Give one file of a folder the format 7, as a later version would write, and return its path."""
    match what:
        case "format" | "definitions":
            path = folder / what
            path.write_bytes(re.sub(rb"format \d+", b"format 7", path.read_bytes()))
        case "segment":
            path = min((folder / "vhosts" / "%2F" / "log").iterdir())
            block = path.read_bytes()
            front = block[:8] + b"\0\7" + block[10:60]
            path.write_bytes(front + crc32c(front).to_bytes(4, "big") + block[64:])
        case "checkpoint":
            path = max((folder / "vhosts" / "%2F").glob("checkpoint-??????????"))
            block = path.read_bytes()
            front = block[:8] + b"\0\7" + block[10:12]
            path.write_bytes(front + crc32c(front + block[16:]).to_bytes(4, "big") + block[16:])
        case _:
            path = folder / "slots" / "seals.log"
            text = re.sub(rb'"format":\d+', b'"format":7', path.read_bytes().rpartition(b"\t")[0])
            path.write_bytes(text + b"\t%08x\n" % crc32c(text))
    return path


@pytest.mark.parametrize(
    ("what", "known"), [("format", 3), ("definitions", 1), ("segment", 1), ("checkpoint", 1), ("seals", 2)]
)
def test_what_a_later_version_wrote(broker_process: BrokerProcess, what: str, known: int) -> None:
    """A folder or a file of a later version is named with both numbers in one line, exit code 2, and left unchanged."""
    broker_process.start()
    if what == "segment":  # of which recovery reads those after the last checkpoint
        broker_process.kill()
    else:
        assert broker_process.terminate() == 0
    folder = broker_process.folder
    path = later(folder, what)
    own = {"incarnation", "reserve"}  # for each start
    there = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name not in own}
    line = refusal(broker_process)
    named = folder if what == "format" else path
    assert line == f"slotmq: {named}: written by a newer SlotMQ, format 7; this version reads up to {known}"
    assert {file: file.read_bytes() for file in there} == there


def test_a_folder_of_a_version_that_was_never_released(broker_process: BrokerProcess) -> None:
    """An older folder is refused in one line with exit code 2, and left unchanged."""
    broker_process.start()
    assert broker_process.terminate() == 0
    (broker_process.folder / "format").write_bytes(b"slotmq data folder, format 2\n")
    there = {file: file.read_bytes() for file in broker_process.folder.rglob("*") if file.is_file()}
    says = "written by an older SlotMQ, format 2; this version reads only 3"
    assert refusal(broker_process) == f"slotmq: {broker_process.folder}: {says}"
    assert {file: file.read_bytes() for file in broker_process.folder.rglob("*") if file.is_file()} == there


def test_port_in_use(broker_process: BrokerProcess) -> None:
    """A port that another program listens on is named in one line; exit code 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in refusal(broker_process, "--port", str(port), code=1)


def test_unknown_setting_in_the_environment(broker_process: BrokerProcess) -> None:
    """An unknown key is an error that names the nearest known key."""
    broker_process.environment["SLOTMQ_SERVER__PROT"] = "5672"
    line = refusal(broker_process)
    assert "PROT" in line.upper()
    assert "port" in line.lower()


def test_a_start_that_is_refused_makes_no_folder(broker_process: BrokerProcess, tmp_path: Path) -> None:
    """A port in use is detected before any folder is created, and an empty path is not a folder."""
    broker_process.start()
    port = str(broker_process.address.port)
    second = BrokerProcess(tmp_path / "never made")
    said = refusal(second, "--port", port, code=1)
    assert said == f"slotmq: port {port} on 127.0.0.1 is in use; another one: --port {int(port) + 1}"
    assert not second.folder.exists()
    assert "--data-dir: should name a folder" in refusal(BrokerProcess(tmp_path / "unused"), "--data-dir", "")


def test_standard_streams_may_be_closed(tmp_path: Path) -> None:
    """A broker whose parent closed its standard streams runs, and stops cleanly."""
    folder = tmp_path / "folder"
    command = f"exec {sys.executable} -m broker serve --port 0 --data-dir '{folder}' <&- >&- 2>&-"
    process = subprocess.Popen(["/bin/sh", "-c", command], cwd=PROJECT, env=environment())
    try:
        wait_until((folder / "control.sock").exists, "the broker serves")
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("reader", ["goes away", "does not read"])
def test_a_log_that_nobody_reads_harms_nobody(tmp_path: Path, reader: str) -> None:
    """When the reader of the log ends or its pipe is full, clients are served, and the stop is clean."""
    reading, writing = os.pipe()
    if reader == "does not read":
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 4096)
        os.set_blocking(writing, True)
    command = [sys.executable, "-m", "broker", "serve", "--port", "0", "--data-dir", str(tmp_path / "folder")]
    with subprocess.Popen(command, cwd=PROJECT, env=environment(), stdout=subprocess.PIPE, stderr=writing) as process:
        try:
            os.close(writing)
            assert process.stdout is not None
            found = READY_LINE.search(process.stdout.readline().decode())
            assert found is not None
            if reader == "goes away":
                os.close(reading)
            for _ in range(3):
                with RawClient("127.0.0.1", int(found["port"])).with_channel() as client:
                    client.call(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
                    client.close()
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
            if reader != "goes away":
                os.close(reading)


@pytest.mark.parametrize(("part", "verb"), [("overlay", "open"), ("entrance", "start")])
def test_an_error_of_the_system_names_the_part_that_did_not_start(
    broker_process: BrokerProcess, tmp_path: Path, part: str, verb: str
) -> None:
    """The line has the part and the reason, one log event the call that failed; exit code 1."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import broker.parts.{part} as module, os\n"
        f"async def fails(self): os.close(-1)\n"
        f"module.{part.title()}.{verb} = fails\n"
    )
    broker_process.environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(PACKAGE)])
    broker_process.spawn()
    assert broker_process.wait(DEADLINE_S) == 1
    lines = broker_process.stderr().splitlines()
    lines.remove(f"slotmq: the part {part} did not start: Bad file descriptor")
    (failed,) = [event for event in map(json.loads, lines) if event["level"] == "error"]
    assert failed["event"] == "server.failed" and "in fails" in failed["exception"]


def test_an_address_that_is_not_ours_is_named(broker_process: BrokerProcess) -> None:
    """An address of another machine is named with port, setting and reason in one line; exit code 1."""
    said = refusal(broker_process, "--host", "203.0.113.1", "--port", "5999", code=1)
    assert said == "slotmq: cannot listen on 203.0.113.1:5999 (server.host): Cannot assign requested address"
    broker_process.environment |= {"SLOTMQ_HTTP__ENABLED": "1", "SLOTMQ_HTTP__HOST": "203.0.113.1"}
    said = refusal(broker_process, "--host", "127.0.0.1", code=1)
    assert said == "slotmq: cannot listen on 203.0.113.1:15672 (http.host): Cannot assign requested address"


def test_variables_of_rabbitmq_are_heard_or_named(broker_process: BrokerProcess) -> None:
    """RabbitMQ's port variable is honoured; a variable without meaning here is one event, without its value."""
    broker_process.environment |= {"RABBITMQ_NODE_IP_ADDRESS": "0.0.0.0", "RABBITMQ_ERLANG_COOKIE": "hunter2"}
    broker_process.environment |= {"RABBITMQ_LOGS": "-", "SLOTMQ_INTERPRETED": "compiling", "SLOTMQ_COMPILE": "1"}
    broker_process.start()
    assert broker_process.address.host == "0.0.0.0"
    assert broker_process.terminate() == 0
    ignored = [event for event in broker_process.log_events() if event["event"] == "variables.ignored"]
    assert [event["names"] for event in ignored] == [["RABBITMQ_ERLANG_COOKIE", "RABBITMQ_LOGS"]]
    assert "hunter2" not in broker_process.stderr()
    told = [event["reason"] for event in broker_process.log_events() if event["event"] == "modules.interpreted"]
    assert told == ["compiling"]  # what the launcher of a checkout says


@pytest.mark.parametrize("name", ["lock", "slots"])
def test_a_link_in_the_data_folder(broker_process: BrokerProcess, name: str) -> None:
    """It is not followed: the broker exits 2, and what the link leads to is as before."""
    folder = broker_process.folder
    folder.mkdir(mode=0o700)
    (folder / name).symlink_to(folder.parent / "precious")
    text = f"slotmq: {folder / name}: a symbolic link, which the broker does not follow in its data folder"
    assert refusal(broker_process).startswith(text)
    assert not (folder.parent / "precious").exists()
