"""`slotmq tap` and `slotmq cursor`: which messages of an exchange are kept for readers, and the readers' positions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from broker.cli.broker_url import broker_of
from broker.cli.control_client import ask
from broker.cli.parser import add_broker, add_command, add_group, add_json, add_vhost, size, time_ms
from broker.cli.table import counted, print_json, print_rows

__all__ = ["add_taps", "cursor_text"]

TAP_COLUMNS: Final = (
    "vhost", "name", "exchange", "pattern", "waiting", "slots", "messages", "bytes", "first_seal", "last_seal",
    "cursors",
)  # fmt: skip
CURSOR_COLUMNS: Final = ("vhost", "tap", "name", "seal", "lag_slots", "lag_messages", "lag_bytes", "lag_s", "user")


def add_taps(commands: Any) -> None:
    """Add the commands."""
    kinds = add_group(
        commands, "tap", "keep messages that pass an exchange for readers: add, remove, list or seal taps"
    )
    command = add_command(
        kinds, "add", "keep every message that passes an exchange with a key that matches a topic pattern"
    )
    command.add_argument("exchange", metavar="EXCHANGE", help="of any type; '' is the default exchange")
    command.add_argument("pattern", metavar="PATTERN", help="such as 'stock.*.nyse' or '#'")
    command.add_argument("--name", metavar="N", help="the tap's name; the default is the exchange's")
    command.add_argument(
        "--cursor",
        metavar="C",
        action="append",
        default=[],
        help="a reader for which messages are kept; can be repeated",
    )
    command.add_argument("--max-bytes", metavar="10GB", type=size, help="cap on the size of its slot files")
    command.add_argument(
        "--max-age", metavar="7d", type=time_ms, help="cap on the age of its slot files (ms, s, m, h, d, w)"
    )
    _finish(command, _add)
    command = add_command(kinds, "remove", "end a tap; its slot files stay until its cursors have passed them")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--drop", action="store_true", help="delete its slot files and cursors at once")
    _finish(command, _remove)
    _add_list(kinds, f"list the taps; columns: {', '.join(TAP_COLUMNS)}", _list)
    command = add_command(kinds, "seal", "write what taps hold into slot files now, and print the last seal")
    command.add_argument("name", metavar="NAME", nargs="?", help="only this tap; default all")
    command.add_argument("--vhost", metavar="V", help="only this vhost; default all")
    add_broker(command)
    command.set_defaults(run=_seal)

    kinds = add_group(commands, "cursor", "set, remove or list cursors, the positions of tap readers")
    command = add_command(kinds, "set", "set the seal that a reader has passed; creates the cursor if needed")
    _name(command)
    command.add_argument("seal", metavar="SEAL", type=int)
    command.add_argument("--reset", action="store_true", help="allow the cursor to move back")
    command.add_argument("--user", metavar="U", help="the reader's user, who needs only the right to read the tap")
    _finish(command, _set)
    command = add_command(kinds, "remove", "remove a cursor; nothing is kept for it any more")
    _name(command)
    _finish(command, _forget)
    _add_list(kinds, f"list the cursors; columns: {', '.join(CURSOR_COLUMNS)}", _list_cursors)


def cursor_text(cursor: Mapping[str, Any]) -> str:
    """Return the position of a cursor and its lag: `archive:42 (3 slots, 48123 bytes, 12 s behind)`."""
    slots, size, age = counted(cursor["lag_slots"], "slots"), counted(cursor["lag_bytes"], "bytes"), cursor["lag_s"]
    lag = f"{slots}, {size}, {age:.0f} s behind" if cursor["lag_slots"] else "up to date"
    return f"{cursor['name']}:{cursor['seal']} ({lag})"


def _finish(command: argparse.ArgumentParser, run: Any) -> None:
    add_vhost(command)
    add_broker(command)
    command.set_defaults(run=run)


def _add_list(kinds: Any, summary: str, run: Any) -> None:
    command = add_command(kinds, "list", summary)
    command.add_argument("--vhost", metavar="V", help="only this vhost; default all")
    add_json(command)
    add_broker(command)
    command.set_defaults(run=run)


def _name(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME")
    command.add_argument("tap", metavar="TAP")


def _add(arguments: argparse.Namespace) -> int:
    ask(
        broker_of(arguments),
        "tap_add",
        vhost=arguments.vhost,
        exchange=arguments.exchange,
        pattern=arguments.pattern,
        name=arguments.name,
        cursors=arguments.cursor,
        max_bytes=arguments.max_bytes,
        max_age_ms=arguments.max_age,
    )
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    asked: dict[str, Any] = {"vhost": arguments.vhost, "name": arguments.name, "drop": arguments.drop}
    dropped = ask(broker_of(arguments), "tap_remove", **asked)
    if arguments.drop:
        print("dropped {messages:,} messages; {slots:,} slot files, {bytes:,} bytes".format(**dropped))
    return 0


def _list(arguments: argparse.Namespace) -> int:
    rows = ask(broker_of(arguments), "taps", vhost=arguments.vhost)
    if arguments.json:
        print_json(rows)
        return 0
    shown = [{**row, "cursors": [cursor_text(one) for one in row["cursors"]]} for row in rows]
    print_rows(shown, TAP_COLUMNS, as_json=False)
    return 0


def _seal(arguments: argparse.Namespace) -> int:
    print(ask(broker_of(arguments), "seal", vhost=arguments.vhost, tap=arguments.name)["last_seal"])
    return 0


def _set(arguments: argparse.Namespace) -> int:
    named = {"name": arguments.name, "vhost": arguments.vhost, "tap": arguments.tap}
    moved = {"seal": arguments.seal, "reset": arguments.reset, "user": arguments.user}
    ask(broker_of(arguments), "cursor_set", **named, **moved)
    return 0


def _forget(arguments: argparse.Namespace) -> int:
    named = {"name": arguments.name, "vhost": arguments.vhost, "tap": arguments.tap}
    ask(broker_of(arguments), "cursor_remove", **named)
    return 0


def _list_cursors(arguments: argparse.Namespace) -> int:
    rows = ask(broker_of(arguments), "cursors", vhost=arguments.vhost)
    print_rows(rows, CURSOR_COLUMNS, as_json=arguments.json)
    return 0
