"""Adds the flags that scenarios share; names and letters are those of PerfTest and lavinmqperf.

`add_scenario` creates a scenario's parser with the flags that every scenario has: the broker, the interval, the
output. A scenario that moves messages calls `add_load`, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from broker.perf.peer import LOGIN, Address
from broker.perf.quantities import argument, count, count_or_none, duration, rate, size
from broker.perf.stamp import STAMP_BYTES

__all__ = ["DEFAULT_URI", "add_load", "add_scenario", "add_time", "masked"]

DEFAULT_URI: Final = "amqp://guest:guest@127.0.0.1:5672"


def add_scenario(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    """Return a scenario's parser, with the flags that every scenario has.

    Shapes: the options have `scenario` (its name), `uri` (an Address), `pid`, `interval` (seconds), `json` (None, "-"
    or a file's name), `plot`, `quiet`.
    """
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary, allow_abbrev=False, add_help=False
    )
    made.set_defaults(scenario=name)
    broker = made.add_argument_group("broker")
    broker.add_argument(
        "-h",
        "--uri",
        metavar="URL",
        type=_address,
        default=Address.parse(DEFAULT_URI),
        help=f"amqp://, or amqps:// with ?cacertfile=FILE or ?verify=verify_none; default {DEFAULT_URI}",
    )
    broker.add_argument(
        "--pid", metavar="PID", type=count, help="the broker's process on this machine, for CPU time and memory"
    )
    output = made.add_argument_group("output")
    output.add_argument(
        "-i", "--interval", metavar="T", type=_interval, default=1.0, help="interval of progress lines, default 1s"
    )
    output.add_argument("-j", "--json", metavar="FILE", nargs="?", const="-", help="write the result as JSON to FILE, or print it instead of the table")  # noqa: E501  # fmt: skip
    output.add_argument("--plot", metavar="FILE", type=Path, help="draw the result as one HTML page")
    output.add_argument("--quiet", action="store_true", help="show no progress")
    output.add_argument("-?", "--help", action="help", help="show this and exit")
    return made


def add_time(parser: argparse._ActionsContainer, default_s: float) -> None:
    """Add the flag for the duration of a run; 0 means until Ctrl-C."""
    parser.add_argument(
        "-z", "--time", metavar="T", type=duration, help=f"stop after T (default {default_s:g}s; 0: at Ctrl-C)"
    )


def add_load(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the flags for publishing and consuming, and return their group.

    Shapes: `producers`, `consumers`, `size` (bytes), `confirm` (window or 0), `pmessages`, `cmessages` (or None),
    `rate`, `consumer_rate` (per second and connection, or None), `prefetch` (0: no limit), `autoack`, `ack_every`,
    `persistent`, `mandatory`, `unsent` (bytes, 0: the kernel's default).
    """
    load = parser.add_argument_group("load")
    load.add_argument(
        "-x",
        "--producers",
        "--publishers",
        metavar="N",
        type=count_or_none,
        default=1,
        help="number of them, default 1",
    )
    load.add_argument("-y", "--consumers", metavar="N", type=count_or_none, default=1, help="number of them, default 1")
    load.add_argument("-s", "--size", metavar="SIZE", type=size, default=STAMP_BYTES, help=f"size of a body, default {STAMP_BYTES} bytes")  # noqa: E501  # fmt: skip
    load.add_argument("-c", "--confirm", metavar="N", type=count_or_none, default=0, help="use confirms, with at most N unconfirmed messages")  # noqa: E501  # fmt: skip
    load.add_argument("-C", "--pmessages", metavar="N", type=count, help="publish N messages in total")
    load.add_argument("-D", "--cmessages", metavar="N", type=count, help="consume N messages in total")
    load.add_argument("-r", "--rate", metavar="R", type=rate, help="messages per second and publisher")
    load.add_argument("-R", "--consumer-rate", metavar="R", type=rate, help="messages per second and consumer")
    load.add_argument("-q", "--qos", "-P", "--prefetch", dest="prefetch", metavar="N", type=_prefetch, default=0, help="unacked messages per consumer (default no limit)")  # noqa: E501  # fmt: skip
    load.add_argument("-a", "--autoack", action="store_true", help="consume without acks")
    load.add_argument("-A", "--multi-ack-every", "--ack", dest="ack_every", metavar="N", type=count, default=1, help="one ack for N messages (default 1)")  # noqa: E501  # fmt: skip
    load.add_argument("-f", "--flag", dest="flags", metavar="FLAG", action="append", choices=("persistent", "mandatory"), default=[], help="persistent or mandatory; can be repeated")  # noqa: E501  # fmt: skip
    load.add_argument("--persistent", dest="flags", action="append_const", const="persistent", help="as -f persistent")
    load.add_argument("--processes", metavar="N", type=count, help="number of processes for publishers, and for consumers (default one per core, at most 4)")  # noqa: E501  # fmt: skip
    load.add_argument("--unsent", metavar="SIZE", type=size, default=0, help="how much a publisher sends with one time stamp, and how much may wait in its kernel (default: what the kernel takes)")  # noqa: E501  # fmt: skip
    load.add_argument("--queue-args", metavar="K=V", type=argument, action="append", default=[], help="an argument of the queues; can be repeated")  # noqa: E501  # fmt: skip
    load.add_argument("--ceiling", action="store_true", help="first measure how fast the generator is without a broker")
    return load


def masked(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without the credentials in its URLs."""
    return [LOGIN.sub("//***@", word) for word in words]


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _interval(text: str) -> float:
    value = duration(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 50ms and 1h")
    return value


def _prefetch(text: str) -> int:
    value = count_or_none(text)
    if value > 0xFFFF:
        raise argparse.ArgumentTypeError(f"{text!r} is more than 65535, the most that AMQP can say")
    return value
