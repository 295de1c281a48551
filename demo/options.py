"""The demo's command line."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ALL_ROWS = 336_776
DEFAULT_COMMAND = f"{sys.executable} -m broker serve --host 127.0.0.1 --port {{port}} --data-dir {{folder}}"


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of one run of the demo."""

    rows: int
    queues: int
    kill_at: float | None
    url: str | None
    broker_command: str
    pika_consumers: int
    aio_consumers: int
    prefetch: int
    stall_timeout_s: float
    plain: bool
    keep: bool
    plot: Path | None = None


def parse_options(arguments: Sequence[str] | None = None, *, pictured: bool = False) -> Options:
    """Return the options of the command line; with `pictured` the run can be drawn.

    Raises: SystemExit(2) with one line on an argument that is out of range.
    """
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--rows", type=int, default=ALL_ROWS, metavar="N", help="publish the first N flights only")
    parser.add_argument("--queues", type=int, default=220, metavar="N", help="number of queues (default 220)")
    parser.add_argument(
        "--kill-at",
        type=float,
        default=0.4,
        metavar="SHARE",
        help="kill -9 once this share of the flights is confirmed (default 0.4)",
    )
    parser.add_argument(
        "--no-kill", action="store_true", help="leave the broker alone; any duplicate is then a failure"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--url", help="use a broker that runs already (implies --no-kill; needs an account that may declare)"
    )
    where.add_argument(
        "--broker-command",
        default=DEFAULT_COMMAND,
        metavar="COMMAND",
        help="start this broker; {port} and {folder} are filled in, a line with its amqp:// URL is awaited on stdout",
    )
    parser.add_argument(
        "--pika-consumers", type=int, default=2, metavar="N", help="consumer processes that use pika (default 2)"
    )
    parser.add_argument(
        "--aio-consumers", type=int, default=1, metavar="N", help="consumer processes that use aio-pika (default 1)"
    )
    parser.add_argument(
        "--prefetch", type=int, default=200, metavar="N", help="prefetch of each consumer (default 200)"
    )
    parser.add_argument(
        "--stall-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="give up when nothing moves for so long (default 60)",
    )
    parser.add_argument("--plain", action="store_true", help="print plain lines even on a terminal")
    parser.add_argument("--keep", action="store_true", help="keep the broker's data folder and output")
    if pictured:
        parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the run (needs matplotlib)")
    parsed = parser.parse_args(arguments)
    for name, lowest, highest in (
        ("rows", 1, ALL_ROWS),
        ("queues", 1, 5_000),
        ("pika_consumers", 1, 64),
        ("aio_consumers", 0, 64),
        ("prefetch", 1, 65_535),
    ):
        value = getattr(parsed, name)
        if not lowest <= value <= highest:
            parser.error(f"--{name.replace('_', '-')} is {value}; it must be {lowest} to {highest}")
    if not 0.0 < parsed.kill_at < 1.0:
        parser.error(f"--kill-at is {parsed.kill_at}; it must lie between 0 and 1")
    return Options(
        rows=parsed.rows,
        queues=parsed.queues,
        kill_at=None if parsed.no_kill or parsed.url else parsed.kill_at,
        url=parsed.url,
        broker_command=parsed.broker_command,
        pika_consumers=parsed.pika_consumers,
        aio_consumers=parsed.aio_consumers,
        prefetch=parsed.prefetch,
        stall_timeout_s=parsed.stall_timeout,
        plain=parsed.plain,
        keep=parsed.keep,
        plot=getattr(parsed, "plot", None),
    )
