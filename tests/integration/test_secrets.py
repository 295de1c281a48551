"""No log line, answer or file reveals a secret, whatever is logged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.broker_process import PROJECT, BrokerProcess
from tests.raw_client import PeerGone, RawClient, frame

SECRET = "TopSecret"
"""All secrets of this conversation begin so."""

LONG = SECRET + "-alice"
LOGINS = [
    ("PLAIN", f"\0alice\0{LONG}"),
    ("PLAIN", f"\0alice\0{SECRET}-wrong"),
    ("PLAIN", f"\0nobody\0{SECRET}-unknown"),
    ("PLAIN", f"{SECRET}-without-nul"),
    ("PLAIN", f"\0{SECRET}-without-name"),
    ("PLAIN", f"other\0alice\0{SECRET}-for-another"),
    ("PLAIN", f"\0al\0ice\0{SECRET}-with-nul"),
    ("AMQPLAIN", f"\x05LOGINS\0\0\0\x05alice\x08PASSWORDS\0\0\0{chr(len(LONG))}{LONG}"),
    ("AMQPLAIN", f"\x05LOGINS\0\0\0\x05alice\x08PASSWORDS\0\0\x01{SECRET}-cut"),
    ("EXTERNAL", f"{SECRET}-external"),
    ("NOTHING", f"{SECRET}-nothing"),
]


def ask(folder: Path, *command: str, stdin: str = "") -> str:
    """Run a command and return all that it printed."""
    line = [sys.executable, "-m", "broker", *command, "--data-dir", str(folder)]
    done = subprocess.run(line, input=stdin, capture_output=True, text=True, check=False, cwd=PROJECT)
    return done.stdout + done.stderr


def log_in(client: RawClient, mechanism: str, response: str) -> None:
    """Answer the login question, and update the secret where the login succeeds."""
    client.greet()
    client.method(0, commands.Connection.StartOk({}, mechanism, response, "en_US"))
    try:
        answer = client.next().value
    except PeerGone:
        return
    if isinstance(answer, commands.Connection.Tune):
        client.method(0, commands.Connection.TuneOk(2047, 131072, 0))
        client.call(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
        secret: Any = commands.Connection.UpdateSecret(f"{SECRET}-new", f"{SECRET}-reason")
        client.call(0, secret, commands.Connection.UpdateSecretOk)


@pytest.mark.slow
def test_no_secret_is_said_or_kept_in_plain(tmp_path: Path) -> None:
    """No secret is logged or stored in plain text, at debug level and with clients and operators that make errors."""
    folder = tmp_path / "data"
    settings = {"LOG__LEVEL": "debug", "LOG__REPEAT_INTERVAL_MS": "0", "AUTH__DEFAULT_PASS": f"{SECRET}-default"}
    environment = {f"SLOTMQ_{name}": value for name, value in settings.items()}
    process = BrokerProcess(folder, environment=environment, fresh=True)  # with arguments of its own in /proc
    process.start()
    try:
        said = ask(folder, "user", "add", "alice", "--password-stdin", stdin=f"{LONG}\n")
        said += ask(folder, "user", "add", "alice", "--password-stdin", stdin=f"{SECRET}-again\n")
        said += ask(folder, "user", "set", "nobody", "--password-stdin", stdin=f"{SECRET}-nobody\n")
        ask(folder, "permission", "set", "alice", ".*", ".*", ".*")
        address = process.address
        for mechanism, response in LOGINS:
            with RawClient(address.host, address.port) as client:
                log_in(client, mechanism, response)
        with RawClient(address.host, address.port) as client:
            client.send(b"PROXY TCP4 192.0.2.1 192.0.2.1 1 2\r\n" + SECRET.encode())
            assert client.read_protocol_header() == b"AMQP\0\0\x09\x01"
        with RawClient(address.host, address.port) as client:
            client.greet()
            client.send(frame(1, 0, b"\x00\x0a\x00\x0b\xff\xff\xff\xff" + SECRET.encode()))
            client.expect(commands.Connection.Close, 0)
        said += ask(folder, "user", "list", "--json") + ask(folder, "list", "users", "--json")
        said += ask(folder, "list", "connections", "--json")
        assert "hash" not in said
        wrong = tmp_path / "wrong.json"
        for user in (
            {"password": f"{SECRET}-a", "tags": 5},
            {"password_hash": f"{SECRET}-b", "hashing_algorithm": "rot"},
        ):
            wrong.write_text(json.dumps({"users": [{"name": "carol", **user}]}))
            said += ask(folder, "definitions", "import", str(wrong))
        exported = tmp_path / "exported.json"
        exported.touch(mode=0o644)
        said += ask(folder, "definitions", "export", str(exported))
        assert "argon2id" in exported.read_text() and exported.stat().st_mode & 0o777 == 0o600
        argv = Path(f"/proc/{process.running.pid}/cmdline").read_text()
        assert process.terminate() == 0
    finally:
        process.kill()
    for where, text in (
        ("answers", said), ("log", process.stderr()), ("output", process.stdout()), ("argv", argv),
        ("export", exported.read_text()),
    ):  # fmt: skip
        assert SECRET not in text, where
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files and not any(SECRET.encode() in path.read_bytes() for path in files)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
