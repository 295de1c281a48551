"""amqplib, the client of Node programs, run against the broker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.broker_process import BrokerAddress

pytestmark = pytest.mark.slow

RUN_S = 50


def test_conversation(node_folder: Path | None, broker: BrokerAddress) -> None:
    """Every assertion of tests/clients/node/conversation.mjs holds."""
    if node_folder is None:
        pytest.skip("node 18 with npm is not installed, or cannot install amqplib")
    output = node_folder / "conversation.log"
    with output.open("w", encoding="utf-8") as log:
        code = subprocess.run(
            ["node", "--test", "--test-reporter=spec", "conversation.mjs"],
            check=False,
            cwd=node_folder,
            env=os.environ | {"AMQP_URL": broker.url},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=RUN_S,
        ).returncode
    said = output.read_text(encoding="utf-8")
    assert code == 0, said
    assert "pass 17" in said, said
