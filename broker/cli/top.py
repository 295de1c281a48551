"""`slotmq top`: a live view of the queues: rates, lengths, the age of the head, consumers."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from broker.cli.broker_url import broker_of
from broker.cli.control_client import Unanswered, ask
from broker.cli.parser import BadUsage, add_broker, add_command, add_json
from broker.cli.table import print_json, print_rows
from broker.cli.top_view import SORT_KEYS, TopView

__all__ = ["add_top"]

INTERVAL_S: Final = 2.0
INTERVAL_MIN_S: Final = 0.5
INTERVAL_MAX_S: Final = 3600.0
ROWS: Final = 20
ROWS_MAX: Final = 500
COLUMNS: Final = ("vhost", "name", "state", "publish", "deliver", "ack", "ready", "unacked", "age", "consumers")


def add_top(commands: Any) -> None:
    """Add the command."""
    command = add_command(
        commands, "top", "watch the queues: rates, lengths, age of the oldest message; ? shows the keys, q quits"
    )
    command.add_argument(
        "--sort", metavar="KEY", choices=SORT_KEYS, default=SORT_KEYS[0],
        help=f"{', '.join(SORT_KEYS)}; default {SORT_KEYS[0]}",
    )  # fmt: skip
    command.add_argument("--reverse", action="store_true", help="the smallest first")
    command.add_argument("--filter", metavar="TEXT", default="", help="only queues whose name contains TEXT")
    command.add_argument("--vhost", metavar="V", help="only this vhost; default all")
    command.add_argument(
        "--interval",
        metavar="S",
        type=float,
        default=INTERVAL_S,
        help=f"seconds between two looks, default {INTERVAL_S:g}",
    )
    command.add_argument("--once", action="store_true", help="print one table and end, as without a terminal")
    command.add_argument("--limit", metavar="N", type=int, default=ROWS, help=f"rows of that table, default {ROWS}")
    add_json(command)
    add_broker(command)
    command.set_defaults(run=_top)


def _top(arguments: argparse.Namespace) -> int:
    if not INTERVAL_MIN_S <= arguments.interval <= INTERVAL_MAX_S:
        raise BadUsage(f"--interval should be from {INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g} seconds")
    if not 1 <= arguments.limit <= ROWS_MAX:
        raise BadUsage(f"--limit should be from 1 to {ROWS_MAX}")
    view = TopView(arguments.sort, arguments.filter, arguments.vhost, reverse=arguments.reverse)
    broker = broker_of(arguments)

    def look(limit: int) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = ask(broker, "top", limit=min(limit, ROWS_MAX), **view.question())
        return answer

    if arguments.json:
        print_json(look(arguments.limit))
    elif arguments.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        print_rows(look(arguments.limit)["queues"], COLUMNS, as_json=False)
    else:
        with suppress(KeyboardInterrupt):
            _watch(view, look, arguments.interval)
    return 0


def _watch(view: TopView, look: Any, interval_s: float) -> None:
    """Show the view until the user ends it. Raises: Unanswered if the first look fails."""
    from broker.cli.top_terminal import TopTerminal

    view.take(look(1))
    with TopTerminal() as terminal:
        due_s = time.monotonic()
        while True:
            size = terminal.size()
            if not view.paused and time.monotonic() >= due_s:
                try:
                    view.take(look(view.rows_of(size.lines)))
                except Unanswered as problem:
                    view.fail(str(problem))
                due_s = time.monotonic() + interval_s
            terminal.show(view.lines(size))
            key = terminal.key(None if view.paused else max(0.0, due_s - time.monotonic()))
            if key and not view.press(key):
                return
            if key and view.changed:
                due_s = time.monotonic()
