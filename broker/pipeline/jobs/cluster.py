"""`slotmq pipeline cluster start|stop|status`: a Spark cluster of this machine's own."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from broker.cli.parser import add_command
from broker.pipeline.cluster.folder import ClusterFolder, default_folder
from broker.pipeline.cluster.standalone import ClusterStatus, start, status, stop, why_not
from broker.pipeline.job import ERROR, OK, Progress, Summary, carry_out

__all__ = ["ClusterOptions", "add_cluster", "run_cluster"]

PORT: Final = 7077  # Spark's own
MEMORY: Final = re.compile(r"[1-9]\d{0,5}[mg]")
NONE: Final = "no cluster runs"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What is to be done, and how large a new cluster is."""

    action: Literal["start", "stop", "status"]
    folder: Path = field(default_factory=lambda: default_folder(os.environ))
    workers: int = 2
    cores: int = 1
    memory: str = "1g"
    host: str = "127.0.0.1"
    port: int = PORT


def add_cluster(commands: Any) -> None:
    """Add the command."""
    cluster = add_command(commands, "cluster", "start, stop or look at a Spark cluster of this machine's own")
    actions = cluster.add_subparsers(title="commands", metavar="COMMAND", required=True)
    starting = add_command(actions, "start", "start a master and workers, and wait until they are ready")
    starting.add_argument("--workers", metavar="N", type=_number, default=2, help="default 2")
    starting.add_argument("--cores", metavar="N", type=_number, help="of each worker; default is an equal share")
    starting.add_argument("--memory", metavar="SIZE", type=_memory, default="1g", help="of each worker; default 1g")
    starting.add_argument("--host", metavar="H", default="127.0.0.1", help="address to listen on; default 127.0.0.1")
    starting.add_argument("--port", metavar="P", type=_port, default=PORT, help=f"default {PORT}; 0 takes a free one")
    stopping = add_command(actions, "stop", "end the cluster")
    looking = add_command(actions, "status", "show the master's URL, the workers and their memory")
    for action, parser in (("start", starting), ("stop", stopping), ("status", looking)):
        parser.add_argument(
            "--folder", metavar="DIR", type=Path, help="where its state, secret and logs are; default is in the cache"
        )
        parser.add_argument("--json", action="store_true", help="the summary as JSON")
        parser.add_argument("--quiet", action="store_true", help="no progress")
        parser.set_defaults(run=_run, action=action)


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 1000")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return int(text)


def _memory(text: str) -> str:
    if MEMORY.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 512m or 2g")
    return text


def _run(arguments: argparse.Namespace) -> int:
    folder = (arguments.folder or default_folder(os.environ)).absolute()
    options = ClusterOptions(arguments.action, folder)
    if arguments.action == "start":
        cores = arguments.cores or max(1, (os.cpu_count() or 1) // arguments.workers)
        options = ClusterOptions(
            "start", folder, arguments.workers, cores, arguments.memory, arguments.host, arguments.port
        )
    return carry_out(arguments, "cluster", lambda progress: run_cluster(options, progress))


def run_cluster(options: ClusterOptions, progress: Progress) -> Summary:
    """Do it, and return how the cluster is then; the code of `status` says whether all of it runs.

    Raises: JobFailed.
    """
    folder = ClusterFolder(options.folder)
    if options.action == "stop":
        ended = stop(folder)
        values = {"ended": [each.role for each in ended]}
        return Summary(values, OK, (f"ended {', '.join(values['ended'])}" if ended else NONE,))
    if options.action == "start":
        progress.step(f"starting a master and {options.workers} workers")
        start(
            folder,
            host=options.host,
            port=options.port,
            workers=options.workers,
            cores=options.cores,
            memory=options.memory,
        )
    found = status(folder)
    if found is None:
        return Summary({"master": None, "daemons": []}, ERROR, (NONE,))
    return Summary(_values(found, folder), OK if found.whole else ERROR, tuple(_lines(found, folder)))


def _values(found: ClusterStatus, folder: ClusterFolder) -> dict[str, Any]:
    state = found.state
    return {
        "master": state.master,
        "ui": state.ui,
        "conf": str(folder.conf),
        "cores": state.cores,
        "memory": state.memory,
        "daemons": [
            {
                "role": each.daemon.role,
                "pid": each.daemon.pid,
                "runs": each.runs,
                "rss_bytes": each.rss_bytes,
                "log": each.daemon.log,
            }
            for each in found.daemons
        ],
    }


def _lines(found: ClusterStatus, folder: ClusterFolder) -> Iterator[str]:
    state = found.state
    yield f"master   {state.master}"
    yield f"page     {state.ui}"
    yield f"workers  {state.workers}, each {state.cores} core{'' if state.cores == 1 else 's'} and {state.memory}"
    yield f"folder   {folder.path}"
    for each in found.daemons:
        name = f"{each.daemon.role:<9}process {each.daemon.pid}"
        if each.runs:
            memory = "" if each.rss_bytes is None else f", {each.rss_bytes >> 20} MiB"
            yield f"{name}{memory}"
        else:
            yield f"{name} has ended: {why_not(each.daemon)}"
    yield f"use it   slotmq pipeline ... --master {state.master}"
