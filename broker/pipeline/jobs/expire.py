"""`slotmq pipeline expire`: delete messages from a lake by age or key, optionally of some queues, without Spark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from broker.cli.parser import BadUsage, add_command, add_list, add_value
from broker.pipeline.faults import OK, LakeRefused, restated
from broker.pipeline.job import Progress, Summary, add_lake, add_output, carry_out, open_lake, options_of
from broker.pipeline.jobs.compact import KEEP_DAYS, add_keep, keep_hours
from broker.pipeline.options import instant_ms, now_ms


@dataclass(frozen=True, slots=True)
class ExpireOptions:
    """The conditions that all messages to delete meet.

    Shapes: `older` is a time as `instant_ms` parses it, and selects the messages of earlier days (UTC); None and () set
    no condition.
    """

    lake: Path | str
    older: str | None = None
    keys: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    vhost: str | None = None
    keep_days: float = KEEP_DAYS


def add_expire(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "expire", "delete messages from a lake, by age or routing key")
    add_lake(command, "the lake")
    add_value(command, "--older", "T", "messages of days (UTC) that ended before, such as 90d or 2026-11-20")
    add_list(command, "--key", "K", "messages with this routing key; can be repeated", dest="keys")
    add_list(command, "--queue", "Q", "only of this queue or tap", dest="queues")
    add_value(command, "--vhost", "V", "only of this vhost")
    add_keep(command)
    add_output(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.older is None and not arguments.keys:
        raise BadUsage("say what to delete: --older 90d, --key K or both")
    keep_hours(arguments.keep_days)
    options = options_of(ExpireOptions, arguments)
    with restated(LakeRefused, BadUsage, "--older: "):
        conditions(options)
    return carry_out(arguments, "expire", lambda progress: run_expire(options, progress))


def conditions(options: ExpireOptions) -> tuple[str, str | None]:
    """Return the SQL conditions for messages and, without keys, for bad records. Raises: LakeRefused."""
    found = []
    before_ms = instant_ms(options.older, now_ms())
    if before_ms is not None:
        found.append(f"date < '{datetime.fromtimestamp(before_ms / 1000, UTC).date().isoformat()}'")
    if options.queues:
        found.append(f"queue IN ({_texts(options.queues)})")
    if options.vhost is not None:
        found.append(f"vhost = {_texts([options.vhost])}")
    bad = None if options.keys else " AND ".join(found)
    return " AND ".join([*found, f"routing_key IN ({_texts(options.keys)})"] if options.keys else found), bad


def _texts(values: Sequence[str]) -> str:
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)


def run_expire(options: ExpireOptions, progress: Progress) -> Summary:
    """Delete the messages, and return the summary; an archive may run at the same time. Raises: JobFailed."""
    lake = open_lake(options.lake)
    messages, bad = conditions(options)
    progress.step("deleting")
    rows = lake.message_table.delete(messages)
    bad_rows = 0 if bad is None else lake.bad_table.delete(bad)
    progress.step("removing replaced files")
    removed = lake.vacuum(keep_hours(options.keep_days))
    values = {
        "lake": str(lake.place),
        "rows": rows,
        "bad": bad_rows,
        "removed": removed,
        "elapsed_s": round(progress.elapsed_s, 3),
    }
    return Summary(values, OK)
