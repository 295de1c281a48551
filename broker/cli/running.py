"""`slotmq serve`, `health`, `config` and `version`: start a broker, check settings, or need none."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from broker.cli.parser import Run, add_command, add_folder, add_group, add_switch, add_value, finish, version_line
from broker.cli.settings_layers import load
from broker.settings import limits, sections
from broker.settings.fields import reload_of

__all__ = ["add_running", "documented", "with_settings"]

WIDTH: Final = 118  # characters after the #
HEAD: Final = """\
# Settings of SlotMQ: each key with its meaning, unit, limits, source and default. To change one, remove the # from its
# line. An unknown key is an error; `slotmq config check FILE` reports what is wrong in a file. Later sources override
# earlier ones: this file (slotmq serve --config FILE), the environment (SLOTMQ_SERVER__PORT=5673), flags (--port 5673).
# `slotmq reload` and SIGHUP make a running broker read the file again. "Reload" says when a changed key takes effect:
# at once, or for new connections. Any other key needs a restart.
# A size is a number of bytes, or text with a unit: "512MiB", "10GB" (B, kB, MB, GB, TB and KiB, MiB, GiB, TiB). So is a
# time a number in the unit of its key, or text: "500ms", "90s", "15m", "12h", "7d", "2w"."""


def check(arguments: argparse.Namespace) -> int:
    """Report that a file is valid. Raises: SettingsError with a line for each problem."""
    load(arguments.file, environment=False)
    print(f"{arguments.file}: ok")
    return 0


def example(_arguments: argparse.Namespace) -> int:
    """Print the documented file."""
    print(documented(), end="")
    return 0


def documented() -> str:
    """Return a settings file that has every key, commented out at its default."""
    lines = [HEAD]
    for name, model, fields in sections():
        lines += ["", f"[{name}]", *_wrapped(str(model.__doc__))]
        for key, field in fields.items():
            lines += ["", *_wrapped(_meaning(field)), *_assignment(key, field)]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> Iterator[str]:
    words = " ".join(text.split())  # a docstring has its indentation up to Python 3.12
    return (f"# {line}" for line in textwrap.wrap(words, WIDTH))


def _meaning(field: FieldInfo) -> str:
    """Return the meaning of a key, its unit, limits and source, as sentences."""
    said = [str(field.description).rstrip(".") + "."]
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "unit" in extra:
        low, high = limits(field)
        said += [f"Unit: {extra['unit']}."] if extra["unit"] else []
        said += [f"Limits: {low} to {high}."]
        said += [f"Source: {extra['source']}."] if extra["source"] else []
    elif get_origin(field.annotation) is Literal:
        said += [f"One of: {', '.join(get_args(field.annotation))}."]
    elif field.annotation is bool:
        said += ["One of: true, false."]
    reload = reload_of(field)
    said += [f"Reload: {reload}."] if reload else []
    return " ".join(said)


def _assignment(key: str, field: FieldInfo) -> Iterator[str]:
    value = field.get_default(call_default_factory=False)
    yield f"#{key} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, SecretStr):
        return _toml(value.get_secret_value())
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(inner) for inner in value) + "]"
    if isinstance(value, Path):
        value = str(value)
    return json.dumps(value)


def add_running(commands: Any) -> None:
    """Add the commands."""
    command = add_command(commands, "serve", "run the broker until SIGTERM or SIGINT")
    add_folder(command)
    add_value(command, "--host", "H", "address to listen on (default 127.0.0.1)")
    add_value(command, "--port", "P", "AMQP port (default 5672); 0 takes a free port", type=int)
    add_switch(command, "--mqtt", "take MQTT clients, on port 1883")
    add_switch(command, "--no-sync", "confirm without fdatasync; a power loss can lose messages")
    add_value(command, "--load-definitions", "FILE", "definitions (JSON) to import at the start")
    add_value(command, "--cluster", "URL", "be a node of a cluster on this PostgreSQL (postgresql://...)")
    add_value(command, "--cluster-file", "FILE", "a file that holds the URL, which `ps` then cannot show")
    add_value(command, "--node", "NAME", "name of this node of the cluster")
    command.add_argument("--log-format", choices=("text", "json"), help="default: text on a terminal, JSON elsewhere")
    command.set_defaults(run=_serve)

    # Without --url it is run by main() before any parser is built.
    command = add_command(commands, "health", "check whether the running broker answers: exit code 0 or 1")
    finish(command, _health)

    kinds = add_group(commands, "config", "check or print settings")
    check = add_command(kinds, "check", "report what is wrong in a settings file")
    check.add_argument("file", metavar="FILE", type=Path)
    check.set_defaults(run=_check)
    example = add_command(kinds, "example", "print a settings file with every key, its unit, default and limits")
    example.set_defaults(run=_example)

    command = add_command(commands, "version", "print the version")
    command.set_defaults(run=_version)


# These modules load pydantic, which takes longer than most other commands.


def _serve(arguments: argparse.Namespace) -> int:
    gc.disable()  # objects of modules stay: collecting them takes a tenth of the start; see `collector` for the rest
    try:
        from broker.cli import serve

        return with_settings(serve.run, arguments)
    finally:
        gc.enable()


def _check(arguments: argparse.Namespace) -> int:
    from broker.cli import config

    return with_settings(config.check, arguments)


def _example(arguments: argparse.Namespace) -> int:
    from broker.cli import config

    return with_settings(config.example, arguments)


def with_settings(run: Run, arguments: argparse.Namespace) -> int:
    """Run a command that reads the settings, and return its exit code; problems with them are a line each."""
    from broker.cli.exit_codes import UNUSABLE
    from broker.cli.settings_layers import SettingsError

    try:
        return run(arguments)
    except SettingsError as error:
        for problem in error.problems:
            print(f"slotmq: {problem}", file=sys.stderr)
        return UNUSABLE


def _health(arguments: argparse.Namespace) -> int:
    from broker.cli.control_client import ask_for
    from broker.cli.health import TIMEOUT_S

    ask_for(arguments, "health", silence_s=TIMEOUT_S)
    return 0


def _version(_arguments: argparse.Namespace) -> int:
    print(version_line())
    return 0
