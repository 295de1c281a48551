"""Other people's MQTT clients over kill -9 and a restart: what was acknowledged to them reaches their sessions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.broker_process import PROJECT, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until
from tests.mqtt.conftest import mqtt_port, mqtt_process

pytestmark = pytest.mark.slow

PROGRAMS: Final = Path(__file__).with_name("mqtt")
CLIENTS: Final = ("paho", "aiomqtt", "gmqtt", "node", "mosquitto")
DEBIAN: Final = PROJECT / "build" / "mosquitto"  # by .ci/mosquitto
ACKNOWLEDGED: Final = 50
INSTALL_S: Final = 30


class Client:
    """The programs of one client; `path` has what it imports."""

    def __init__(self, name: str, folder: Path, path: str = "") -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        self._environment = os.environ | ({"PYTHONPATH": path} if path else {})
        self._command = [sys.executable, str(PROGRAMS / f"{name}_client.py")]
        self.said = folder / f"{name}.acknowledged"

    def start(self, command: str, port: int, *count: str) -> subprocess.Popen[bytes]:
        """Start a program: subscribe, publish or read."""
        words = self._words(command, port, *count)
        given = self.said.with_name("lines") if "-l" in words else Path(os.devnull)
        with given.open("rb") as lines, self.said.open("ab") as said, self._log.open("ab") as log:
            output = said if command == "publish" else log
            return subprocess.Popen(words, stdin=lines, stdout=output, stderr=log, env=self._environment)

    def _words(self, command: str, port: int, *count: str) -> Sequence[str]:
        return [*self._command, command, str(port), self.name, *count]

    def acknowledged(self) -> int:
        """Return how many messages, which are numbered from 1, the broker has acknowledged."""
        return len(self.said.read_text(encoding="utf-8").splitlines())

    def run(self, command: str, port: int, *count: str) -> None:
        """Run a program to its end."""
        with self.start(command, port, *count) as process:
            try:
                code = process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                code = None
        assert code == 0, f"{self.name} {command}: {code}\n{self._log.read_text(encoding='utf-8')[-2000:]}"


class NodeClient(Client):
    """Node's mqtt."""

    def __init__(self, folder: Path, installed: Path) -> None:
        super().__init__("node", folder)
        self._command = ["node", str(installed / "mqtt.mjs")]


class MosquittoClient(Client):
    """mosquitto_pub and mosquitto_sub."""

    def __init__(self, folder: Path) -> None:
        super().__init__("mosquitto", folder)
        self._folder = "" if shutil.which("mosquitto_sub") else f"{DEBIAN}/"
        self._environment["LD_LIBRARY_PATH"] = str(DEBIAN)
        (folder / "lines").write_text("".join(f"{number}\n" for number in range(1, 100_000)), encoding="utf-8")

    def _words(self, command: str, port: int, *count: str) -> Sequence[str]:
        login = ["-p", str(port), "-u", "guest", "-P", "guest", "-V", "5", "-q", "1", "-t", self.name]
        if command == "publish":
            return [f"{self._folder}mosquitto_pub", *login, "-l", "-d"]
        session = ["-c", "-i", self.name, "-x", "3600"]
        end = ["-E"] if command == "subscribe" else ["-C", *count]
        return [f"{self._folder}mosquitto_sub", *login, *session, *end]

    def acknowledged(self) -> int:
        """Return how many messages the broker has acknowledged."""
        return len(re.findall("received PUBACK", self.said.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def gmqtt_folder(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Provide gmqtt in a folder of its own, because it brings a package `tests`, which would hide the project's."""
    folder = tmp_path_factory.mktemp("gmqtt")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "gmqtt==0.8.0"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    return folder


@pytest.fixture(scope="module")
def clients(
    tmp_path_factory: pytest.TempPathFactory, gmqtt_folder: Path | None, node_folder: Path | None
) -> dict[str, Client]:
    """Provide the clients that this machine has."""
    folder = tmp_path_factory.mktemp("mqtt-clients")
    found = [Client("paho", folder), Client("aiomqtt", folder)]
    if gmqtt_folder:
        found.append(Client("gmqtt", folder, str(gmqtt_folder)))
    if node_folder:
        found.append(NodeClient(folder, node_folder))
    if shutil.which("mosquitto_sub") or DEBIAN.exists():
        found.append(MosquittoClient(folder))
    return {client.name: client for client in found}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, clients: dict[str, Client]) -> Iterator[BrokerProcess]:
    """Provide a broker that was killed while the clients published, to sessions that they have begun, and restarted."""
    process = mqtt_process(tmp_path_factory.mktemp("killed") / "folder").start()
    try:
        for client in clients.values():
            client.run("subscribe", mqtt_port(process))
        with ExitStack() as stack:
            for client in clients.values():
                running = stack.enter_context(client.start("publish", mqtt_port(process)))
                stack.callback(running.kill)
            for client in clients.values():
                wait_until(lambda: client.acknowledged() >= ACKNOWLEDGED, f"publishes of {client.name}")  # noqa: B023
            process.kill()
        assert process.start().terminate() == 0
        yield process.start()
        assert not process.errors()
    finally:
        process.kill()


@pytest.mark.parametrize("name", CLIENTS)
def test_acknowledged_messages_reach_the_session(name: str, clients: dict[str, Client], killed: BrokerProcess) -> None:
    """A session that the client began before kill -9 gets every message whose PUBACK has arrived."""
    if name not in clients:
        assert name != "mosquitto" or not os.environ.get("TEST_MOSQUITTO_REQUIRED")
        pytest.skip(f"{name} is not installed, and cannot be")
    acknowledged = clients[name].acknowledged()
    assert acknowledged >= ACKNOWLEDGED
    clients[name].run("read", mqtt_port(killed), str(acknowledged))
