"""`slotmq doctor`: checks settings, machine and broker, and says what to change."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from broker.cli.broker_folder import folder_of
from broker.cli.control_client import Unanswered, ask
from broker.cli.parser import add_command, add_folder, add_json
from broker.cli.table import cell, print_json

if TYPE_CHECKING:
    from broker.doctor.finding import Diagnosis, Verdict

STYLES: Final = {"ok": "\x1b[32m", "warn": "\x1b[33m", "bad": "\x1b[31m"}
PLAIN: Final = "\x1b[0m"
GUEST: Final = "guest"


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
        print_json([finding.fields() for finding in findings])
    else:
        for finding in findings:
            print(f"{_word(finding.verdict)}  {finding.check}: {cell(finding.found)}")
            if finding.advice:
                print(f"      -> {cell(finding.advice)}")
    return 1 if any(finding.verdict is Verdict.BAD for finding in findings) else 0


def _word(verdict: Verdict) -> str:
    text = verdict.value.ljust(4)
    return f"{STYLES[verdict.value]}{text}{PLAIN}" if sys.stdout.isatty() else text


def _findings(arguments: argparse.Namespace) -> Iterator[Diagnosis]:
    from broker.cli.settings_layers import SettingsError, load
    from broker.doctor.access_checks import anonymous_findings, certificate_findings, guest_finding, port_findings
    from broker.doctor.broker_checks import broker_findings, guest_logs_in, settings_findings, settings_of
    from broker.doctor.finding import bad, fine
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
        has_guest = any(user["name"] == GUEST for user in ask(folder, "list_users")) and guest_logs_in(status["url"])
        running = settings_of(ask(folder, "settings"), folder)
    except Unanswered:  # also of a question that a broker of an older version, which is told below, does not know
        if status is None and not wrong:
            yield fine("settings", str(arguments.config or "the defaults and the environment"))
    if status is not None:
        wanted = None if wrong or arguments.config is None else settings
        yield from settings_findings(running, wanted, arguments.config)
    yield from machine_findings(running)
    yield from folder_findings(running)
    if status is None:
        yield fine("broker", f"none runs on {folder.absolute()}")
    else:
        yield from broker_findings(status)
    yield from certificate_findings(running, host, runs=status is not None)
    yield guest_finding(running, host, has_default_password=has_guest)
    yield from anonymous_findings(running)
    if status is None:
        yield from port_findings(running)
