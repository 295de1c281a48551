"""The screen of `slotmq top`: it handles keys, and returns the lines to show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from broker.cli.table import cell, counted

SORT_KEYS: Final = ("publish", "deliver", "ack", "ready", "unacked", "age", "consumers", "name")
HEAD_LINES: Final = 4  # two lines of totals, an empty one, the titles of the columns
FOOT_LINES: Final = 1
NAME_CHARS: Final = 12
NUMBER_CHARS: Final = 10
PAGE_ROWS: Final = 10
BOLD, DIM, RED, REVERSE, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[7m", "\x1b[0m"
TITLES: Final = {
    "publish": "PUBLISH/s",
    "deliver": "DELIVER/s",
    "ack": "ACK/s",
    "ready": "READY",
    "unacked": "UNACKED",
    "age": "AGE",
    "consumers": "CONSUMERS",
    "name": "QUEUE",
}
NUMBERS: Final = SORT_KEYS[:-1]
KEYS: Final = "q quit  ←→ sort  r reverse  / filter  v vhost  ↑↓ scroll  space pause"
ENDS: Final = ("q", "Q", "\x03", "\x04")  # keys that quit; Ctrl-C and Ctrl-D do so even while a filter is typed


class TopView:
    """The state of the view.

    Shapes: `paused` says whether the user has paused the updates, `changed` whether the last key requires other rows.
    """

    def __init__(self, sort: str, filter_text: str, vhost: str | None, *, reverse: bool) -> None:
        self.paused = False
        self.changed = False
        self._sort = sort
        self._filter = filter_text
        self._vhost = vhost
        self._reverse = reverse
        self._offset = 0
        self._typing = False
        self._problem = ""
        self._answer: Mapping[str, Any] = {"queues": [], "matching": 0, "vhosts": []}

    def request(self) -> dict[str, Any]:
        """Return the arguments of the next request."""
        chosen = {} if self._vhost is None else {"vhost": self._vhost}
        return {"by": self._sort, "reverse": self._reverse, "filter": self._filter, "offset": self._offset, **chosen}

    def rows_of(self, height: int) -> int:
        """Return the number of queues that fit into a terminal of this height."""
        return max(1, height - HEAD_LINES - FOOT_LINES)

    def update(self, answer: Mapping[str, Any]) -> None:
        """Show the broker's answer."""
        self._answer, self._problem = answer, ""
        self._offset = min(self._offset, max(0, answer["matching"] - 1))

    def fail(self, problem: str) -> None:
        """Show why the broker did not answer, below the rows of its last answer."""
        self._problem = problem

    # -- keys ---------------------------------------------------------------------------------------------------------

    def press(self, key: str) -> bool:
        """Handle a key, and return whether to continue."""
        before = self.request()
        continues = self._type(key) if self._typing else self._command(key)
        self.changed = self.request() != before
        return continues

    def _type(self, key: str) -> bool:
        if key in ("\r", "\n"):
            self._typing = False
        elif key == "escape":
            self._typing, self._filter = False, ""
        elif key in ("\x7f", "\b"):
            self._filter = self._filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self._filter += key
            self._offset = 0
        return key not in ENDS[2:]

    def _command(self, key: str) -> bool:
        match key:
            case "left" | "right" | "<" | ">":
                step = 1 if key in ("right", ">") else -1
                self._sort = SORT_KEYS[(SORT_KEYS.index(self._sort) + step) % len(SORT_KEYS)]
                self._offset = 0
            case "r":
                self._reverse = not self._reverse
            case "/":
                self._typing = True
            case "v":
                self._offset, self._vhost = 0, self._next_vhost()
            case "up" | "down" | "page up" | "page down":
                step = (PAGE_ROWS if key.startswith("page") else 1) * (1 if key.endswith("down") else -1)
                self._offset = max(0, min(self._offset + step, self._answer["matching"] - 1))
            case " ":
                self.paused = not self.paused
            case "escape":
                self._filter = ""
        return key not in ENDS

    def _next_vhost(self) -> str | None:
        """Return the vhost to choose next, or None for all vhosts."""
        choices = [None, *self._answer["vhosts"]]
        return choices[(choices.index(self._vhost) + 1) % len(choices)] if self._vhost in choices else None

    # -- lines --------------------------------------------------------------------------------------------------------

    def lines(self, size: os.terminal_size) -> list[str]:
        """Return the lines of the view, cut to the size of the terminal."""
        width, height = size
        name_chars = max(NAME_CHARS, width - len(NUMBERS) * (NUMBER_CHARS + 1))
        rows = [self._row(row, name_chars, width) for row in self._answer["queues"][: self.rows_of(height)]]
        body = [*self._head(width), "", self._titles(name_chars, width), *rows]
        return [*body, *[""] * (height - FOOT_LINES - len(body)), self._foot(width)][:height]

    def _head(self, width: int) -> list[str]:
        totals = self._answer.get("totals", {})
        matching = self._answer["matching"]
        where = "all vhosts" if self._vhost is None else f"vhost {cell(self._vhost)}"
        text = f"{counted(matching, 'queues')} in {where}, {counted(self._answer.get('connections', 0), 'connections')}"
        if self._filter or self._typing:
            text += f", filter: {cell(self._filter)}{'_' if self._typing else ''}"
        rates = "  ".join(f"{name} {totals.get(name, 0):,.1f}/s" for name in SORT_KEYS[:3])
        counts = "  ".join(f"{name} {totals.get(name, 0):,}" for name in ("ready", "unacked", "consumers"))
        return [_cut(f"SlotMQ  {text}", width, BOLD), _cut(f"{rates}  {counts}", width)]

    def _titles(self, name_chars: int, width: int) -> str:
        arrow = "↑" if self._reverse != (self._sort == "name") else "↓"
        titles = {key: title + (arrow if key == self._sort else "") for key, title in TITLES.items()}
        numbers = " ".join(titles[key].rjust(NUMBER_CHARS) for key in NUMBERS)
        return _cut(f"{titles['name'].ljust(name_chars)} {numbers}".ljust(width), width, REVERSE)

    def _row(self, row: Mapping[str, Any], name_chars: int, width: int) -> str:
        name = cell(row["name"] if self._vhost is not None or row["vhost"] == "/" else f"{row['vhost']}:{row['name']}")
        if len(name) > name_chars:
            name = name[: name_chars - 1] + "…"
        texts = [*(_rate(row[key]) for key in SORT_KEYS[:3]), *(f"{row[key]:,}" for key in ("ready", "unacked"))]
        texts += [_age(row["age"]), "paused" if row["state"] == "paused" else f"{row['consumers']:,}"]
        line = f"{name.ljust(name_chars)} {' '.join(text.rjust(NUMBER_CHARS) for text in texts)}"
        return _cut(line, width, DIM if row["state"] == "paused" else "")

    def _foot(self, width: int) -> str:
        if self._problem:
            return _cut(cell(self._problem), width, RED)
        if alarms := self._answer.get("alarms"):
            return _cut(f"ALARM: low on {cell(alarms)}: publishers are blocked", width, RED)
        return _cut(f"PAUSED  {KEYS}" if self.paused else KEYS, width, DIM)


def _cut(line: str, width: int, style: str = "") -> str:
    return f"{style}{line[:width]}{PLAIN}" if style else line[:width]


def _rate(rate: float) -> str:
    return f"{rate:,.1f}" if rate else "·"


def _age(age_s: float | None) -> str:
    """Return a duration in at most two units, or a dot for None."""
    if age_s is None:
        return "·"
    if age_s < 60:
        return f"{age_s:.1f}s"
    minutes, seconds = divmod(int(age_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02}h" if days else f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"
