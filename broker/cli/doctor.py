"""`slotmq doctor`: check settings, machine and broker, and report what to change."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from broker.cli.broker_folder import SettingsError, folder_of, is_locked
from broker.cli.control_client import NOT_LISTENING, Unanswered, ask
from broker.cli.parser import add_command, add_folder, add_json
from broker.cli.table import cell, print_json

if TYPE_CHECKING:
    from broker.doctor.finding import Diagnosis, Verdict

STYLES: Final = {"ok": "\x1b[32m", "warn": "\x1b[33m", "bad": "\x1b[31m"}
PLAIN: Final = "\x1b[0m"


def add_doctor(commands: Any) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "doctor",
        "check settings, machine and broker, and say what to change: exit code 1 if something is bad",
    )
    add_json(command)
    add_folder(command)
    command.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from broker.doctor.finding import Verdict

    findings = list(_findings(arguments))
    if arguments.json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            print(f"{_word(finding.verdict)}  {finding.check}: {cell(finding.found)}")
            if finding.advice:
                print(f"      -> {cell(finding.advice)}")
    return 1 if any(finding.verdict is Verdict.BAD for finding in findings) else 0


def _word(verdict: Verdict) -> str:
    text = verdict.ljust(4)
    return f"{STYLES[verdict]}{text}{PLAIN}" if sys.stdout.isatty() else text


def _findings(arguments: argparse.Namespace) -> Iterator[Diagnosis]:
    from broker.cli.settings_layers import load
    from broker.doctor import broker_checks as checks
    from broker.doctor.finding import bad, fine, warn
    from broker.doctor.folder_checks import folder_findings
    from broker.doctor.machine_checks import machine_findings
    from broker.settings import Settings

    flags = {} if arguments.data_dir is None else {"server": {"data_dir": arguments.data_dir}}
    wrong: tuple[str, ...] = ()
    try:
        settings = load(arguments.config, flags)
    except SettingsError as error:
        wrong = error.problems
        settings = Settings(server={"data_dir": folder_of(arguments)})
    for problem in wrong:
        yield bad("settings", problem, "slotmq config example shows every key with its limits")
    folder = settings.server.data_dir
    status, host, has_guest = None, settings.server.host, None
    running = settings
    try:
        status = ask(folder, "status")
        host = urlsplit(status["url"]).hostname or host
        has_guest = any(user["name"] == checks.GUEST for user in ask(folder, "list_users"))
        has_guest = has_guest and checks.guest_logs_in(status["url"])
        running = checks.settings_of(ask(folder, "settings"), folder)
    except Unanswered:  # also raised for a verb that an older broker does not know
        if status is None and not wrong:
            yield fine("settings", str(arguments.config or "the defaults and the environment"))
    if status is not None:
        wanted = None if wrong or arguments.config is None else settings
        yield from checks.settings_findings(running, wanted, arguments.config)
    yield from machine_findings(running)
    yield from folder_findings(running)
    runs = status is not None or is_locked(str(folder))
    if status is not None:
        yield from checks.broker_findings(status)
    elif runs:
        yield warn("broker", f"one runs on {folder.absolute()}, but {NOT_LISTENING}", "give it a control socket")
    else:
        yield fine("broker", f"none runs on {folder.absolute()}")
    yield from checks.certificate_findings(running, host, runs=runs)
    yield checks.guest_finding(running, host, has_default_password=has_guest)
    yield from checks.anonymous_findings(running)
    if not runs:
        yield from checks.port_findings(running)
