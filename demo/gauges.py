"""Reads what the brokers say of the overlay, twice a second: for the live table, and remembered for the picture."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from rich.table import Table

from broker.cli.control_client import Unanswered, ask
from demo.brokers import Broker

PUBLISHERS = "publishers"
MIDDLE = ("middle-1", "middle-2", "middle-3")
SUBSCRIBERS = ("europe", "america")
LEAVES = (PUBLISHERS, *SUBSCRIBERS)
NAMES = (PUBLISHERS, *MIDDLE, *SUBSCRIBERS)
EVERY_S = 0.5
COLUMNS = "broker|state|links|knows (V_b)|patterns|messages on|left out|not sure, so on|MB out|lag".split("|")

# What `slotmq overlay --json` shows of a broker, and its state. Counts begin again with each start of its process.
Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """All brokers at one moment, and how many messages each site's consumers have got."""

    at_s: float
    facts: Mapping[str, Facts]
    delivered: Mapping[str, int]


class Gauges:
    """Asks in a thread of its own, so that a broker that is slow to answer does not hold up the run."""

    def __init__(self, brokers: Mapping[str, Broker], delivered: Callable[[], Mapping[str, int]]) -> None:
        self._brokers = brokers
        self._delivered = delivered
        self._began_s = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._now: Mapping[str, Facts] = {name: {"state": "starting"} for name in NAMES}
        self.samples: list[Sample] = []
        self.events: list[tuple[float, str]] = []

    def start(self) -> None:
        """Begin to ask, and to remember events."""
        self._began_s = time.monotonic()
        self.events.clear()
        self._thread.start()

    def note(self, text: str) -> None:
        """Remember an event for the picture."""
        self.events.append((time.monotonic() - self._began_s, text))

    def stop(self) -> None:
        """End."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def summary(self) -> str:
        """Return the state of the overlay in a line."""
        down = [f"{name} {facts['state']}" for name, facts in self._now.items() if facts["state"] != "up"]
        kept = sum(passed(self._now[name]) for name in MIDDLE)
        left_out = sum(self._now[name].get("filtered", 0) for name in MIDDLE)
        return f"brokers {', '.join(down) or 'all up'}; middle: {kept:,} on, {left_out:,} left out"

    def table(self) -> Table:
        """Return the live table."""
        table = Table(title="the overlay")
        for column in COLUMNS:
            table.add_column(column, justify="left" if column in COLUMNS[:2] else "right")
        for name, facts in self._now.items():
            table.add_row(*cells(name, facts), style={"up": "", "killed": "bold red"}.get(facts["state"], "yellow"))
        return table

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._now = {name: _ask(self._brokers[name]) for name in NAMES}
            self.samples.append(Sample(time.monotonic() - self._began_s, self._now, self._delivered()))


def _ask(broker: Broker) -> Facts:
    if broker.state != "up":
        return {"state": broker.state}
    try:
        return {"state": "up", **ask(broker.data, "overlay")[0]}
    except Unanswered:
        return {"state": "no answer"}


def passed(facts: Facts) -> int:
    """Return how many messages a broker in the middle has passed on since its process started."""
    return int(facts.get("matched", 0) + facts.get("flooded", 0))


def running(counts: Iterable[int]) -> list[int]:
    """Return a count that runs on through the restarts of its process, which begins again at 0."""
    return list(accumulate(now - before if now >= before else now for before, now in pairwise([0, *counts])))


def cells(name: str, facts: Facts) -> list[str]:
    """Return a row; "messages on" of a leaf are those that it published into the overlay, or got from it."""
    if facts["state"] != "up":
        return [name, facts["state"]]
    streams, links = facts.get("streams", []), facts["links"]
    matched, filtered, flooded, delivered = (
        facts.get(count, 0) for count in ("matched", "filtered", "flooded", "delivered")
    )
    known = " ".join(sorted(f"{row['leaf']}:{row['time']}" for row in facts["leaves"]))
    patterns = f"{sum(row['count'] for row in facts['patterns']):,}"
    sent_mb = f"{sum(link['sent_bytes'] for link in links) / 1e6:,.1f}"
    row = [name, "up", f"{sum(link['state'] != 'down' for link in links)}/{len(links)}", known, patterns]
    if name in MIDDLE:
        return [*row, f"{matched:,}", f"{filtered:,}", f"{flooded:,}", sent_mb, ""]
    on = sum(one["sent"] for one in streams) if name == PUBLISHERS else delivered
    return [*row, f"{on:,}", "", "", sent_mb, f"{sum(one['lag'] for one in [*streams, *facts.get('received', [])]):,}"]
