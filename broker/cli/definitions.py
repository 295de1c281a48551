"""`slotmq definitions`: import a definitions file in RabbitMQ's JSON format into the running broker, or export one."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.cli.control_client import Unanswered, ask_for
from broker.cli.exit_codes import unwritable
from broker.cli.parser import BadUsage, add_command, add_group, add_switch, add_value, finish
from broker.cli.progress_line import ProgressLine
from broker.cli.table import cell, counted, print_json, warn
from broker.core.definitions.json_text import read_json


def add_definitions(commands: Any) -> None:
    """Add the commands."""
    kinds = add_group(
        commands, "definitions", "import or export users, vhosts, permissions, policies, queues and bindings"
    )
    command = add_command(kinds, "import", "import a definitions file of RabbitMQ or SlotMQ, as a whole or not at all")
    add_value(command, "file", "FILE", "- is standard input")
    add_value(command, "--vhost", "V", "the vhost to import a single vhost's file into")
    add_switch(command, "--skip-refused", "skip exchanges, queues and bindings that are refused, and name them")
    finish(command, _import, json=True)
    command = add_command(kinds, "export", "write a definitions file, which RabbitMQ can read")
    add_value(command, "file", "FILE", "default: standard output", nargs="?", default="-")
    add_value(command, "--vhost", "V", "only this vhost, as a single vhost's file")
    finish(command, _export)


def _import(arguments: argparse.Namespace) -> None:
    answer = import_document(arguments, read_document(arguments.file), arguments.file, arguments.vhost)
    print_json(answer) if arguments.json else print_imported(answer)


def read_document(name: str) -> Any:
    """Return the JSON of a file, or of standard input for `-`. Raises: BadUsage."""
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return read_json(content)
    except OSError as error:
        raise BadUsage(f"{name}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadUsage(f"{name}: not valid JSON: {error}") from None


def import_document(arguments: argparse.Namespace, document: Any, name: str, vhost: str | None = None) -> Any:
    """Import definitions into the broker and return its answer. Raises: SettingsError, BadUsage, Unanswered."""
    request = {"definitions": document, "vhost": vhost}
    with ProgressLine() as line:
        try:
            return ask_for(arguments, "import_definitions", "skip_refused", on_progress=line.show_step, **request)
        except Unanswered as refused:
            raise Unanswered(f"{name}: {refused}") from None


def print_imported(answer: Mapping[str, Any]) -> None:
    """Print the outcome of an import."""
    for reason in answer["skipped"]:
        warn(f"skipped {reason}")
    for label, key in (("made", "made"), ("changed", "changed"), ("there already", "present")):
        if any(answer[key].values()):
            print(f"{label}: {', '.join(counted(n, part.replace('_', ' ')) for part, n in answer[key].items() if n)}")
    for name in answer["without_effect"]:
        print(f"without effect: {cell(name)}")
    if not any(answer["imported"].values()):
        print("no definitions in it")


def _export(arguments: argparse.Namespace) -> None:
    document = ask_for(arguments, "export_definitions", "vhost")
    if arguments.file == "-":
        print_json(document)
        return
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        # The file contains password hashes, so only its owner may read it, whatever the umask.
        descriptor = os.open(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # an existing file may be readable by others
            os.fchmod(descriptor, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise unwritable(arguments.file, error) from None
