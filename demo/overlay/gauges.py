"""Reads what the brokers say of the overlay, twice a second, and remembers it for the picture."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.cli.control_client import Unanswered, ask
from demo.overlay.sites import MIDDLE, NAMES, PUBLISHERS, Sites

EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Gauge:
    """One broker at one moment. Counts begin again with each start of its process."""

    state: str
    links: int = 0
    links_of: int = 0
    known: Mapping[str, int] = field(default_factory=dict)  # V_b
    wanted: int = 0  # patterns of all directions
    promised: Mapping[str, int] = field(default_factory=dict)  # V_m of the stream that begins here
    sent: int = 0  # numbers of its own stream
    lag: int = 0
    matched: int = 0
    filtered: int = 0
    flooded: int = 0
    delivered: int = 0
    bytes_to: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """All brokers at one moment, and how many messages each site's consumers have got."""

    at_s: float
    gauges: Mapping[str, Gauge]
    delivered: Mapping[str, int]


class Gauges:
    """Asks in a thread of its own, so that a broker that is slow to answer does not hold up the run."""

    def __init__(self, sites: Sites, delivered: Callable[[], Mapping[str, int]]) -> None:
        self._sites = sites
        self._delivered = delivered
        self._began_s = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.now: Mapping[str, Gauge] = {name: Gauge("starting") for name in NAMES}
        self.samples: list[Sample] = []
        self.events: list[tuple[float, str]] = []

    def start(self) -> None:
        """Begin to ask."""
        self._began_s = time.monotonic()
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
        down = [f"{name} {gauge.state}" for name, gauge in self.now.items() if gauge.state != "up"]
        middle = [self.now[name] for name in MIDDLE]
        kept, left_out = sum(one.matched + one.flooded for one in middle), sum(one.filtered for one in middle)
        return f"brokers {', '.join(down) or 'all up'}; middle: {kept:,} on, {left_out:,} left out"

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.now = {name: self._gauge(name) for name in NAMES}
            self.samples.append(Sample(time.monotonic() - self._began_s, self.now, self._delivered()))

    def _gauge(self, name: str) -> Gauge:
        state = self._sites.states[name]
        if state != "up":
            return Gauge(state)
        try:
            (facts,) = ask(self._sites.folder_of(name), "overlay")
        except Unanswered:
            return Gauge("no answer")
        return gauge_of(facts)


def gauge_of(facts: Mapping[str, Any]) -> Gauge:
    """Return the gauge of a broker that runs, from what `slotmq overlay --json` shows of it."""
    streams = facts.get("streams", [])
    return Gauge(
        "up",
        links=sum(link["state"] != "down" for link in facts["links"]),
        links_of=len(facts["links"]),
        known={row["leaf"]: row["time"] for row in facts["leaves"]},
        wanted=sum(row["count"] for row in facts["patterns"]),
        promised=next((row["vector"] for row in streams), {}),
        sent=sum(row["sent"] for row in streams) if facts["broker"] == PUBLISHERS else 0,
        lag=sum(row["lag"] for row in [*streams, *facts.get("received", [])]),
        matched=facts.get("matched", 0),
        filtered=facts.get("filtered", 0),
        flooded=facts.get("flooded", 0),
        delivered=facts.get("delivered", 0),
        bytes_to={link["peer"]: link["sent_bytes"] for link in facts["links"]},
    )
