"""Publish real flights through brokers, kill some of the brokers, and prove that no flight was lost."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

ALL_ROWS = 336_776
DEFAULT_COMMAND = f"{sys.executable} -m broker serve --host 127.0.0.1 --port {{port}} --data-dir {{folder}}"
# The description of each show, its class, and the extras that it needs.
SHOWS = {
    "broker": ("one broker, killed once", "demo.run:Run", "demo"),
    "cluster": ("three nodes on one PostgreSQL, one killed and one frozen", "demo.cluster:ClusterRun", "demo-cluster"),
    "overlay": ("six brokers, five of them killed", "demo.overlay:OverlayRun", "demo,bench"),
    "page": ("the web page of a busy broker, until Ctrl-C", "demo.page:PageRun", "manage,demo"),
    "pipeline": ("a tap, a lake, and Spark", "demo.pipeline:PipelineRun", "demo,spark"),
}
CHECKED = ("broker", "cluster", "overlay", "pipeline")  # the flights of every queue are checked at the end
DEFAULTS = {"page": {"rows": 20_000, "queues": 11}, "pipeline": {"queues": 200, "no_kill": True}}


def _option(
    default: Any, help: str, only: Sequence[str] = (), limits: tuple[float, float] | None = None, **how: Any
) -> Any:
    """Return a field with its command-line option: the help, the shows that have it, and the limits."""
    how = {"action": "store_true"} if default is False else {"type": type(default), "metavar": "N"} | how
    return field(default=default, metadata={"help": help, "only": only, "limits": limits, "how": how})


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of one run."""

    show: str = _option("broker", "; ".join(f"{name}: {about}" for name, (about, *_) in SHOWS.items()),
                        choices=SHOWS, metavar="WHAT")  # fmt: skip
    rows: int = _option(ALL_ROWS, "only the first N flights", limits=(1, ALL_ROWS))
    queues: int = _option(220, "number of queues", limits=(1, 12_000))
    kill_at: float = _option(0.4, "kill -9 when this share is confirmed", ["broker"], (0.01, 0.99), metavar="SHARE")
    no_kill: bool = _option(False, "leave the broker alone; any duplicate is then a failure", ["broker"])
    url: str = _option("", "a running broker; it is not killed", ["broker"], metavar="URL")
    broker_command: str = _option(DEFAULT_COMMAND, "start this broker; {port} and {folder} are filled in, a line with "
                                  "its amqp:// URL is awaited on stdout", ["broker"], metavar="COMMAND")  # fmt: skip
    pika_consumers: int = _option(2, "consumer processes that use pika", CHECKED, (1, 64))
    aio_consumers: int = _option(1, "consumer processes that use aio-pika", CHECKED, (0, 64))
    prefetch: int = _option(200, "prefetch of each consumer", CHECKED, (1, 65_535))
    stall_timeout: float = _option(60.0, "give up after this time without progress", CHECKED, metavar="SECONDS")
    plot: Path | None = _option(None, "draw the run (needs matplotlib)", ["overlay"], type=Path, metavar="FILE")
    seconds: float | None = _option(None, "end after this time", ["page"], type=float, metavar="SECONDS")
    rate: float = _option(300.0, "flights published per second", ["page"], (1, 10_000))
    http_port: int = _option(0, "port of the page; 0 is any free one", ["page"], (0, 65_535), metavar="PORT")
    report: Path | None = _option(None, "write the report here", ["pipeline"], type=Path, metavar="FILE")
    master: str = _option("local[*]", "Spark's master", ["pipeline"], metavar="URL")
    plain: bool = _option(False, "print plain lines even on a terminal")
    keep: bool = _option(False, "keep the brokers' data folders and output")


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Return the options of the command line. Raises: SystemExit(2) with one line for a wrong argument."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__, allow_abbrev=False)
    flags = {one.name: "--" + one.name.replace("_", "-") for one in fields(Options)}
    for one in fields(Options):
        only = one.metadata["only"]
        usual = "" if one.default in {None, False, "", DEFAULT_COMMAND} else f" ({one.default})"
        text = (f"{', '.join(only)}: " if only else "") + one.metadata["help"] + usual
        parser.add_argument(flags[one.name], help=text, default=argparse.SUPPRESS, **one.metadata["how"])
    given = vars(parser.parse_args(arguments))
    options = Options(**DEFAULTS.get(given.get("show", "broker"), {}) | given)
    for name in given:
        value, said = getattr(options, name), Options.__dataclass_fields__[name].metadata
        lowest, highest = said["limits"] or (value, value)
        if not lowest <= value <= highest:
            parser.error(f"{flags[name]} is {value}; it must be {lowest} to {highest}")
        if said["only"] and options.show not in said["only"]:
            parser.error(f"{flags[name]} is for --show {' and '.join(said['only'])}")
    if options.url and "broker_command" in given:
        parser.error("--url names a running broker, --broker-command starts one; give only one of them")
    return options
