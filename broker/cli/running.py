"""`slotmq serve`, `health`, `config` and `version`: the only commands that are imported when a broker starts."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

from broker.cli.parser import add_command, add_folder, add_group, add_switch, add_value, finish, version_line


def add_running(commands: Any) -> None:
    """Add the commands."""
    command = add_command(commands, "serve", "run the broker until SIGTERM or SIGINT")
    add_folder(command)
    add_value(command, "--host", "H", "address to listen on (default 127.0.0.1)")
    add_value(command, "--port", "P", "AMQP port (default 5672); 0 takes a free port", type=int)
    add_switch(command, "--mqtt", "listen for MQTT clients, on port 1883")
    add_switch(command, "--no-sync", "confirm without fdatasync; a power loss can lose messages")
    add_value(command, "--load-definitions", "FILE", "definitions (JSON) to import at the start")
    add_value(command, "--cluster", "URL", "be a node of a cluster on this PostgreSQL (postgresql://...)")
    add_value(command, "--cluster-file", "FILE", "a file that holds the URL, to keep it out of `ps`")
    add_value(command, "--node", "NAME", "name of this node in the cluster")
    command.add_argument("--log-format", choices=("text", "json"), help="default: text on a terminal, JSON elsewhere")
    command.set_defaults(run=_serve)

    # Unless it may use HTTP, main() runs this command before any parser is created.
    command = add_command(commands, "health", "check whether the running broker answers: exit code 0 or 1")
    finish(command, _health)

    kinds = add_group(commands, "config", "check or print settings")
    check = add_command(kinds, "check", "report what is wrong in a settings file")
    check.add_argument("file", metavar="FILE", type=Path)
    check.set_defaults(run=_config, part="check")
    example = add_command(kinds, "example", "print a settings file with every key, its unit, default and limits")
    example.set_defaults(run=_config, part="example")

    command = add_command(commands, "version", "print the version")
    command.set_defaults(run=lambda _arguments: print(version_line()))


# These functions import modules on use. `_serve` and `_config` load pydantic, which takes longer than most commands.


def _serve(arguments: argparse.Namespace) -> int | None:
    gc.disable()  # collections of the modules' objects would take a tenth of the start; `Collector` collects later
    try:
        from broker.cli import serve

        return serve.run(arguments)
    finally:
        gc.enable()


def _config(arguments: argparse.Namespace) -> None:
    from broker.cli import config

    getattr(config, arguments.part)(arguments)


def _health(arguments: argparse.Namespace) -> None:
    from broker.cli.control_client import ask_for
    from broker.cli.health import TIMEOUT_S

    ask_for(arguments, "health", silence_s=TIMEOUT_S)
