"""`slotmq doctor` with a running broker, and without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.cli.control_client import ask
from broker.cli.main import main
from tests.broker_process import BrokerProcess


def test_doctor_looks_at_the_broker_and_the_machine(
    broker_process: BrokerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks the broker, finds the password of guest, and changes nothing in the data folder."""
    broker_process.start()
    folder = str(broker_process.folder)
    before = sorted(path.name for path in broker_process.folder.iterdir())
    assert main(["doctor", "--data-dir", folder, "--json"]) == 0
    findings = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["guest"]["found"] == "guest has the password guest, for clients on this machine only"
    assert findings["broker"]["found"].endswith(f"runs as process {broker_process.running.pid}")
    assert {"data folder", "disk speed", "disk space", "memory", "descriptors", "clock"} <= findings.keys()
    assert "port" not in findings
    assert sorted(path.name for path in broker_process.folder.iterdir()) == before
    assert main(["user", "delete", "guest", "--data-dir", folder]) == 0
    capsys.readouterr()
    assert main(["doctor", "--data-dir", folder]) == 0
    assert "ok    guest: no guest with the password guest" in capsys.readouterr().out.splitlines()
    assert not broker_process.errors()


def test_doctor_beside_a_running_broker_looks_at_its_settings(
    broker_process: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings of the running broker count, not those of this shell; a differing file is reported."""
    broker_process.environment["SLOTMQ_SERVER__CONNECTIONS_MAX"] = "77"
    broker_process.environment["SLOTMQ_AUTH__USERS__ALICE"] = "s3cret"
    broker_process.start()
    folder = str(broker_process.folder)
    assert main(["doctor", "--data-dir", folder]) == 0
    told = capsys.readouterr().out
    assert "ok    settings: those of the running broker" in told
    assert "for server.connections_max = 77 clients" in told
    assert "s3cret" not in json.dumps(ask(Path(folder), "settings"))
    file = tmp_path / "slotmq.toml"
    file.write_text("[server]\nconnections_max = 78\n")
    assert main(["doctor", "--data-dir", folder, "--config", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"warn  settings: the broker runs with other values than {file} has: ")
    assert "server.connections_max" in lines[0]
    assert any("for server.connections_max = 77 clients" in line for line in lines)


def test_bad_settings_are_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each problem is a line with an advice; the other checks run all the same."""
    file = tmp_path / "slotmq.toml"
    file.write_text("[server]\nprot = 1\n")
    assert main(["doctor", "--config", str(file), "--data-dir", str(tmp_path / "data")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"bad   settings: {file}: server.prot: unknown key; did you mean server.port?"
    assert lines[1].startswith("      -> ")
    assert any(line.startswith("ok    broker: none runs on ") for line in lines)
    assert not (tmp_path / "data").exists()
