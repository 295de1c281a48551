"""`slotmq pipeline server start|stop|status`: a Spark server that runs between commands, so that they start faster."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from broker.cli.parser import BadUsage, add_command, add_list, add_value, name_and_text, time_s
from broker.pipeline.faults import ERROR, OK, ServerRefused
from broker.pipeline.job import Progress, Summary, add_output, carry_out, options_of
from broker.pipeline.spark.server import connect, files, start, stop
from broker.pipeline.spark.server_files import ServerRequest, ServerState

MEMORY: Final = re.compile(r"[1-9]\d{0,5}[mg]")
NONE: Final = "no server runs"
SECRETS: Final = frozenset({"token", "conf"})


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The action, and the settings of a new server."""

    action: Literal["start", "stop", "status"]
    request: ServerRequest = field(default_factory=ServerRequest)


def add_server(commands: Any) -> None:
    """Add the command."""
    server = add_command(commands, "server", "start, stop or check a Spark server that commands share")
    actions = server.add_subparsers(title="commands", metavar="COMMAND", required=True)
    starting = add_command(actions, "start", "start it and wait until commands can use it")
    add_value(starting, "--master", "M", "default local[*], all cores", default="local[*]")
    add_value(starting, "--memory", "SIZE", "JVM memory limit; default 1g", type=_memory, default="1g")
    text = "end it after this idle time: 90s, 30m, 2h; default 30m"
    add_value(starting, "--idle", "T", text, dest="idle_s", type=time_s, default=1800.0)
    add_list(starting, "--conf", "K=V", "a Spark setting", type=name_and_text)
    stopping = add_command(actions, "stop", "end it and everything that runs on it")
    checking = add_command(actions, "status", "show whether it runs; exit code 1 if not")
    for action, parser in (("start", starting), ("stop", stopping), ("status", checking)):
        add_output(parser)
        parser.set_defaults(run=_run, action=action)


def _memory(text: str) -> str:
    if MEMORY.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512m or 2g")
    return text


def _run(arguments: argparse.Namespace) -> int:
    if getattr(arguments, "idle_s", 1) < 1:
        raise BadUsage("--idle is a second or more")
    arguments.conf = dict(getattr(arguments, "conf", ()))
    options = ServerOptions(arguments.action, options_of(ServerRequest, arguments))
    return carry_out(arguments, "server", lambda progress: run_server(options, progress))


def run_server(options: ServerOptions, progress: Progress) -> Summary:
    """Perform the action, and return the state of the server. Raises: JobFailed."""
    place = files()
    match options.action:
        case "stop":
            ended = stop(place)
            return Summary({"ended": ended}, OK, (f"ended the Spark server with pid {ended}" if ended else NONE,))
        case "status":
            state = place.read()
            if state is None:
                return Summary({"running": False}, ERROR, (NONE,))
            return Summary(_values(state), OK, (_text(state, "runs"),))
    progress.step("starting Spark")
    state, started = start(options.request, place)
    if not started and any(getattr(state, name) != value for name, value in asdict(options.request).items()):
        raise ServerRefused(f"{state} is already running: run slotmq pipeline server stop, then start it again")
    probe = connect(state, {})  # find out now, not in the first command, whether the server accepts clients
    probe.range(1).count()
    probe.stop()
    return Summary(_values(state), OK, (_text(state, "runs" if started else "runs already"),))


def _values(state: ServerState) -> dict[str, Any]:
    return {"running": True, **{name: value for name, value in asdict(state).items() if name not in SECRETS}}


def _text(state: ServerState, how: str) -> str:
    return (
        f"{state} {how}: port {state.port} of 127.0.0.1, since {state.began}, "
        f"ends when idle for {state.idle_s:,.0f} s; log {state.log}"
    )
