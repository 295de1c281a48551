"""`slotmq slots QUEUE`: the slots of a queue of the running broker, one row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.cli.control_client import request
from broker.cli.parser import add_command, finish
from broker.cli.table import aligned

COLUMNS: Final = ("range", "state", "owner", "settled", "bytes", "where")


def add_slots(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "slots", "show the slots of a queue of the running broker", "QUEUE")
    finish(command, request("slots", "queue", "vhost", show=lambda answer: print(table(answer))), json=True, vhost=True)


def table(answer: Mapping[str, Any]) -> str:
    """Return the answer as lines to read. Shapes: a range names its first and its last message id."""
    rows: list[Sequence[str]] = [COLUMNS, *(_cells(slot) for slot in answer["slots"])]
    if answer["levels"] > 1:
        levels = ["level", *(str(slot["level"]) for slot in answer["slots"])]
        rows = [(level, *row) for level, row in zip(levels, rows, strict=True)]
    lines = list(aligned(rows[0], rows[1:]))
    more = answer["slot_count"] - len(answer["slots"])
    if more:
        lines.append(f"... and {more:,} more")
    # repr: a queue's name may hold control characters, and this is a terminal
    lines.append(
        f"queue {answer['queue']!r} in vhost {answer['vhost']!r}: {answer['slot_count']:,} slots, "
        f"{answer['ready']:,} messages ready, {answer['unacked']:,} unacked"
    )
    return "\n".join(lines)


def _cells(slot: Mapping[str, Any]) -> Sequence[str]:
    count = slot["end"] - slot["first"]
    return (
        f"{slot['first']}-{slot['end'] - 1}" if count else f"{slot['first']}-",
        slot["state"],
        slot["owner"] or "-",
        f"{slot['settled']}/{count}",
        str(slot["bytes"]),
        "resident" if slot["resident"] else "on disk",
    )
