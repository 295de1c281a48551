"""The findings of `slotmq doctor` and its advice."""

from __future__ import annotations

import datetime as dt
import os
import resource
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trustme

from broker.doctor import folder_checks, machine_checks
from broker.doctor.broker_checks import (
    anonymous_findings,
    broker_findings,
    certificate_findings,
    guest_finding,
    port_findings,
)
from broker.doctor.finding import Diagnosis, Verdict
from broker.doctor.folder_checks import folder_findings, sync_finding
from broker.doctor.machine_checks import machine_findings
from broker.settings import Settings

MIB = 1 << 20
STATUS = {"version": "x", "pid": 1, "alarms": [], "vhosts_down": [], "descriptors": 5, "descriptors_max": 1000}


def found(findings: Iterable[Diagnosis], check: str) -> Diagnosis:
    """Return the finding of a check; every one that is not ok has an advice."""
    by_check = {finding.check: finding for finding in findings}
    assert all(bool(one.advice) == (one.verdict is not Verdict.OK) for one in by_check.values())
    return by_check[check]


def in_folder(folder: Path, **sections: Any) -> Settings:
    """Return settings with a data folder."""
    return Settings(server={"data_dir": folder}, **sections)


def test_a_folder_that_others_can_read_should_be_closed(tmp_path: Path) -> None:
    """Messages and password hashes are in it."""
    tmp_path.chmod(0o755)
    finding = found(folder_findings(in_folder(tmp_path)), "data folder")
    assert (finding.verdict, finding.advice) == (Verdict.WARN, f"chmod 700 {tmp_path}")
    tmp_path.chmod(0o700)
    assert found(folder_findings(in_folder(tmp_path)), "data folder").verdict is Verdict.OK
    assert not list(tmp_path.iterdir())


def test_a_folder_that_others_can_write_is_worse(tmp_path: Path) -> None:
    """They could put their own files there, and links, with which the broker does not start."""
    tmp_path.chmod(0o777)
    finding = found(folder_findings(in_folder(tmp_path)), "data folder")
    assert (finding.verdict, finding.advice) == (Verdict.WARN, f"chmod 700 {tmp_path}")
    assert "can replace the broker's files" in finding.found
    tmp_path.chmod(0o700)
    (tmp_path / "slots").symlink_to(tmp_path)
    finding = found(folder_findings(in_folder(tmp_path)), "data folder")
    assert finding.verdict is Verdict.BAD
    assert "slots: a symbolic link" in finding.found


def test_a_folder_that_cannot_be_used_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in its place, and a folder of another user."""
    (tmp_path / "file").write_text("")
    assert found(folder_findings(in_folder(tmp_path / "file")), "data folder").verdict is Verdict.BAD
    monkeypatch.setattr(os, "access", lambda *_: False)
    finding = found(folder_findings(in_folder(tmp_path / "later")), "data folder")
    assert finding.verdict is Verdict.BAD
    assert finding.advice.startswith("run as that user, or: chown -R")


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("ext4", Verdict.OK), ("tmpfs", Verdict.WARN), ("nfs4", Verdict.WARN), ("overlay", Verdict.WARN)],
)
def test_the_file_system_should_be_a_disk(
    kind: str, verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest mount point above the folder says what it is; a space in it is escaped."""
    folder = tmp_path / "a b"
    folder.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"d / ext2 rw 0 0\nd {str(folder).replace(' ', chr(92) + '040')} {kind} rw 0 0\nd /other zfs rw 0 0\n"
    )
    assert folder_checks.file_system(folder, mounts) == kind
    monkeypatch.setattr(folder_checks, "file_system", lambda _folder: kind)
    assert found(folder_findings(in_folder(folder)), "file system").verdict is verdict


def test_space_is_compared_with_the_limit(tmp_path: Path) -> None:
    """Below it publishers are blocked."""
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    for least, verdict in ((free * 2, Verdict.BAD), (free // 2, Verdict.WARN), (0, Verdict.OK)):
        settings = in_folder(tmp_path, store={"disk_free_min_bytes": least})
        assert found(folder_findings(settings), "disk space").verdict is verdict


def test_a_disk_may_be_too_slow_and_too_fast() -> None:
    """The median counts: one slow sync is not a slow disk."""
    assert sync_finding(0.001, 0.002, 0.5).verdict is Verdict.OK
    assert sync_finding(0.001, 0.030, 0.040).advice == "use a faster disk, an SSD for example"
    assert "perhaps not a power loss" in sync_finding(*[0.000_001] * 5).advice


def test_the_machine_is_compared_with_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors, memory and the kernel's backlog."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(machine_checks, "memory_limit_bytes", lambda: 512 * MIB)
    (tmp_path / "somaxconn").write_text("128\n")
    (tmp_path / "cpu.max").write_text("25000 100000\n")
    monkeypatch.setattr(machine_checks, "SOMAXCONN_FILE", tmp_path / "somaxconn")
    monkeypatch.setattr(machine_checks, "CPU_QUOTA_FILE", tmp_path / "cpu.max")
    settings = in_folder(tmp_path, memory={"alarm_bytes": 1024 * MIB})
    findings = list(machine_findings(settings))
    assert found(findings, "descriptors").advice == "ulimit -n 11024, or LimitNOFILE=11024 in the unit of systemd"
    assert found(findings, "memory").verdict is Verdict.BAD
    assert "sysctl -w net.core.somaxconn=1024" in found(findings, "kernel").advice
    assert found(findings, "processor").found == "the control group can use 25 % of one processor"
    server = {"connections_max": 100, "data_dir": tmp_path}
    settings = Settings(server=server, memory={"alarm_bytes": 200 * MIB})
    findings = list(machine_findings(settings))
    assert found(findings, "descriptors").verdict is Verdict.OK
    assert found(findings, "memory").advice.startswith("lower memory.resident_max_bytes to 104 MiB")


def test_a_taken_port_is_bad() -> None:
    """A port for HTTP that no one asked for is only left out."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        settings = Settings(server={"port": taken}, http={"port": 0}, metrics={"enabled": False})
        server, http = port_findings(settings)
        assert (server.verdict, http.verdict) == (Verdict.BAD, Verdict.OK)
        assert server.found == f"server.port = {taken} on 127.0.0.1: Address already in use"
        optional = Settings(server={"port": 0}, http={"port": taken}, metrics={"enabled": False})
        assert [one.verdict for one in port_findings(optional)] == [Verdict.OK, Verdict.BAD]
        server, http = port_findings(Settings(server={"port": 0}, metrics={"enabled": False}))
        assert http.verdict in (Verdict.OK, Verdict.WARN)
        settings = Settings(server={"port": 0}, mqtt={"enabled": True, "port": taken}, metrics={"enabled": False})
        mqtt = [one for one in port_findings(settings) if one.found.startswith(f"mqtt.port = {taken}")]
        assert [one.verdict for one in mqtt] == [Verdict.BAD]


@pytest.mark.parametrize(("days", "verdict"), [(-1, Verdict.BAD), (10, Verdict.WARN), (90, Verdict.OK)])
def test_a_certificate_should_last(days: int, verdict: Verdict, tmp_path: Path) -> None:
    """The first certificate that ends counts."""
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(days=days, hours=1)
    certificate = trustme.CA().issue_cert("localhost", not_after=ends)
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    settings = Settings(tls={"certfile": str(tmp_path / "both.pem")})
    assert found(certificate_findings(settings, "127.0.0.1"), "tls").verdict is verdict


def test_tls_is_for_other_machines(tmp_path: Path) -> None:
    """Without it passwords travel in clear text; a file that is none stops the start."""
    assert not list(certificate_findings(Settings(), "127.0.0.1"))
    assert found(certificate_findings(Settings(), "0.0.0.0"), "tls").verdict is Verdict.WARN
    settings = Settings(tls={"certfile": str(tmp_path / "none.pem")})
    assert found(certificate_findings(settings, "::"), "tls").verdict is Verdict.BAD


def test_guest_should_not_be_reached_from_elsewhere() -> None:
    """Its password is known to everybody."""
    assert guest_finding(Settings(), "0.0.0.0", has_default_password=None).verdict is Verdict.OK
    anywhere = Settings(auth={"guest_anywhere": True})
    assert guest_finding(anywhere, "0.0.0.0", has_default_password=None).verdict is Verdict.BAD
    assert guest_finding(anywhere, "127.0.0.1", has_default_password=True).verdict is Verdict.OK
    assert guest_finding(anywhere, "0.0.0.0", has_default_password=False).verdict is Verdict.OK
    assert guest_finding(Settings(auth={"loopback_users": []}), "::", has_default_password=True).verdict is Verdict.BAD


def test_mqtt_without_a_login_is_for_this_machine() -> None:
    """Clients of other machines that need no login are told of, unless there is no such user or no MQTT."""
    anyone = {"enabled": True, "anonymous_user": "guest"}
    assert not list(anonymous_findings(Settings(mqtt=anyone)))
    assert not list(anonymous_findings(Settings(server={"host": "0.0.0.0"}, mqtt={"anonymous_user": "guest"})))
    found_there = found(anonymous_findings(Settings(mqtt={**anyone, "host": "0.0.0.0"})), "mqtt")
    assert (found_there.verdict, "as user 'guest'" in found_there.found) == (Verdict.WARN, True)


def test_the_running_broker_tells_what_is_wrong() -> None:
    """Alarms and vhosts that are down are bad."""
    alarmed = {**STATUS, "alarms": [{"kind": "disk"}], "connections_blocked": 3}
    assert found(broker_findings(alarmed), "alarm").found == "low on disk: publishers are blocked (3 now)"
    down = {**STATUS, "vhosts_down": [{"vhost": "v", "reason": "damage"}], "descriptors": 900}
    findings = list(broker_findings(down))
    assert found(findings, "vhost").verdict is Verdict.BAD
    assert found(findings, "descriptors").verdict is Verdict.WARN
    assert found(findings, "broker").found.startswith("version x is running, and ")
