"""Print rows: as an aligned table on a terminal, tab-separated without a header elsewhere, or as JSON.

Lines for other programs have no header, as with `gh` and `ps -o name=`; `--help` lists the columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def in_columns(columns: Sequence[str]) -> Callable[[Sequence[Mapping[str, Any]]], None]:
    """Return a function that prints rows in these columns."""
    return lambda rows: print_rows(rows, columns, as_json=False)


def print_count(participle: str) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that prints the number of messages in an answer, followed by a participle such as `purged`."""
    return lambda answer: print(f"{counted(answer['messages'], 'messages')} {participle}")


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """Print rows. JSON contains every key, a table only the columns."""
    if as_json:
        print_json(rows)
        return
    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    lines = aligned(columns, cells) if sys.stdout.isatty() else map("\t".join, cells)
    for line in lines:
        print(line)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print a line for each fact: its name and its text."""
    width = max(map(len, facts))
    for name, text in facts.items():
        print(f"{name.ljust(width)}  {text}")


def print_json(value: Any) -> None:
    """Print indented JSON; in ASCII if the output is not UTF-8, or a text is not valid UTF-8."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode("utf-8" if is_utf_8(sys.stdout.encoding) else "ascii")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2)
    print(text)


def is_utf_8(encoding: str | None) -> bool:
    """Return whether an encoding is UTF-8; an output without an encoding counts as UTF-8."""
    return encoding is None or encoding.lower().replace("-", "").replace("_", "") == "utf8"


def aligned(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yield the lines of a table with aligned columns, the header first."""
    rows = [list(columns), *cells]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def counted(count: int, plural: str) -> str:
    """Return a number with its noun: `1 message`, `2 messages`."""
    if count == 1:
        plural = f"{plural.removesuffix('ies')}y" if plural.endswith("ies") else plural.removesuffix("s")
    return f"{count} {plural}"


def warn(problem: str) -> None:
    """Print a problem as one line on standard error."""
    print(f"slotmq: {cell(problem)}", file=sys.stderr)


def failed(problem: str, code: int = 1) -> int:
    """Print why a command failed, and return the exit code."""
    warn(problem)
    return code


def cell(value: Any) -> str:
    """Return a value as text without characters that could control a terminal or end a line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() else _escaped(letter) for letter in value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return cell(",".join(value))
    if isinstance(value, (dict, list)):
        return cell(json.dumps(value, separators=(",", ":"), ensure_ascii=False)) if value else ""
    return str(value)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")
