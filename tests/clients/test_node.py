"""amqplib, the client of Node programs: installed from npm, and run against the broker."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.broker_process import BrokerAddress

pytestmark = pytest.mark.slow

SOURCES = Path(__file__).with_name("node")
INSTALL_S = 30
RUN_S = 50


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a folder with the conversation and its client; skip where the client cannot be installed."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < 18:
        pytest.skip(f"node {version.strip()} has no test runner")
    folder = tmp_path_factory.mktemp("node")
    for source in SOURCES.iterdir():
        shutil.copy(source, folder)
    command = [npm, "ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--no-update-notifier"]
    with (folder / "install.log").open("w+", encoding="utf-8") as log:
        try:
            code = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=INSTALL_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not install amqplib within {INSTALL_S} s")
        log.seek(0)
        if code:
            pytest.skip(f"npm could not install amqplib: {log.read()[-500:]}")
    return folder


def test_conversation(installed: Path, broker: BrokerAddress) -> None:
    """Every assertion of tests/clients/node/conversation.mjs holds."""
    output = installed / "conversation.log"
    with output.open("w", encoding="utf-8") as log:
        code = subprocess.run(
            ["node", "--test", "--test-reporter=spec", "conversation.mjs"],
            check=False,
            cwd=installed,
            env=os.environ | {"AMQP_URL": broker.url},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=RUN_S,
        ).returncode
    said = output.read_text(encoding="utf-8")
    assert code == 0, said
    assert "pass 17" in said, said
