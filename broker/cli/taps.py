"""`slotmq tap` and `slotmq cursor`: keep messages of an exchange for readers, and store the readers' positions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.cli.control_client import ask_for, request
from broker.cli.parser import (
    add_any_vhost,
    add_command,
    add_group,
    add_list,
    add_switch,
    add_value,
    finish,
    size,
    time_ms,
)
from broker.cli.table import counted, in_columns, print_rows

TAP_COLUMNS: Final = (
    "vhost", "name", "exchange", "pattern", "waiting", "slots", "messages", "bytes", "first_seal", "last_seal",
    "cursors",
)  # fmt: skip
_CURSOR: Final = ("NAME", "TAP")  # the arguments that name a cursor
CURSOR_COLUMNS: Final = ("vhost", "tap", "name", "seal", "lag_slots", "lag_messages", "lag_bytes", "lag_s", "user")


def add_taps(commands: Any) -> None:
    """Add the commands."""
    kinds = add_group(
        commands, "tap", "keep messages that pass an exchange for readers: add, remove, list or seal taps"
    )
    command = add_command(
        kinds, "add", "keep every message that passes an exchange with a key that matches a topic pattern"
    )
    add_value(command, "exchange", "EXCHANGE", "of any type; '' is the default exchange")
    add_value(command, "pattern", "PATTERN", "such as 'stock.*.nyse' or '#'")
    add_value(command, "--name", "N", "the tap's name; the default is the exchange's")
    add_list(command, "--cursor", "C", "a reader for which messages are kept; can be repeated", dest="cursors")
    add_value(command, "--max-bytes", "10GB", "cap on the size of its slot files", type=size)
    age = "cap on the age of its slot files (ms, s, m, h, d, w)"
    add_value(command, "--max-age", "7d", age, type=time_ms, dest="max_age_ms")
    finish(command, request("tap_add"), vhost=True)
    command = add_command(kinds, "remove", "end a tap; its slot files stay until its cursors have passed them", "NAME")
    add_switch(command, "--drop", "delete its slot files and cursors at once")
    finish(command, _remove, vhost=True)
    _add_list(kinds, f"list the taps; columns: {', '.join(TAP_COLUMNS)}", request("taps", _print_taps))
    command = add_command(kinds, "seal", "write waiting messages into slot files now, and print the last seal")
    add_value(command, "tap", "NAME", "only this tap; default all", nargs="?")
    add_any_vhost(command)
    finish(command, request("seal", lambda answer: print(answer["last_seal"])))

    kinds = add_group(commands, "cursor", "set, remove or list cursors, the positions of tap readers")
    command = add_command(kinds, "set", "record the seal that a reader has passed, in a new cursor if needed", *_CURSOR)
    command.add_argument("seal", metavar="SEAL", type=int)
    add_switch(command, "--reset", "allow the cursor to move back")
    add_value(command, "--user", "U", "the reader's user, who needs only the right to read the tap")
    finish(command, request("cursor_set"), vhost=True)
    command = add_command(kinds, "remove", "remove a cursor; slot files are no longer kept for it", *_CURSOR)
    finish(command, request("cursor_remove"), vhost=True)
    shown = in_columns(CURSOR_COLUMNS)
    _add_list(kinds, f"list the cursors; columns: {', '.join(CURSOR_COLUMNS)}", request("cursors", shown))


def cursor_text(cursor: Mapping[str, Any]) -> str:
    """Return the position and the lag of a cursor: `archive:42 (3 slots, 48123 bytes, 12 s behind)`."""
    slots, size, age = counted(cursor["lag_slots"], "slots"), counted(cursor["lag_bytes"], "bytes"), cursor["lag_s"]
    lag = f"{slots}, {size}, {age:.0f} s behind" if cursor["lag_slots"] else "up to date"
    return f"{cursor['name']}:{cursor['seal']} ({lag})"


def _add_list(kinds: Any, summary: str, run: Any) -> None:
    command = add_command(kinds, "list", summary)
    add_any_vhost(command)
    finish(command, run, json=True)


def _remove(arguments: argparse.Namespace) -> None:
    dropped = ask_for(arguments, "tap_remove", "vhost", "name", "drop")
    if arguments.drop:
        print("dropped {messages:,} messages; {slots:,} slot files, {bytes:,} bytes".format(**dropped))


def _print_taps(rows: Sequence[Mapping[str, Any]]) -> None:
    shown = [{**row, "cursors": [cursor_text(cursor) for cursor in row["cursors"]]} for row in rows]
    print_rows(shown, TAP_COLUMNS, as_json=False)
