"""The progress display of the demo: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress as RichBars
    from rich.progress import TaskID

PLAIN_LINE_EVERY_S = 2.0
RATE_OVER_S = 3.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The progress at one moment."""

    at_s: float
    published: int
    confirmed: int
    delivered: int
    broker: str


class Progress(Protocol):
    """Shows the progress of the run."""

    def event(self, text: str) -> None:
        """Report a single event."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the current state."""

    def close(self) -> None:
        """Leave the last state on the screen."""


class Rates:
    """The rates over the last seconds."""

    def __init__(self) -> None:
        self._snapshots: deque[Snapshot] = deque()

    def of(self, snapshot: Snapshot) -> tuple[float, float, float]:
        """Return flights published, confirmed and delivered per second, up to this snapshot."""
        self._snapshots.append(snapshot)
        while snapshot.at_s - self._snapshots[0].at_s > RATE_OVER_S:
            self._snapshots.popleft()
        first = self._snapshots[0]
        span_s = snapshot.at_s - first.at_s
        if span_s <= 0:
            return 0.0, 0.0, 0.0
        return (
            (snapshot.published - first.published) / span_s,
            (snapshot.confirmed - first.confirmed) / span_s,
            (snapshot.delivered - first.delivered) / span_s,
        )


class PlainProgress:
    """One line every two seconds, for a file or a pipe."""

    def __init__(self, rows: int, deliveries: int) -> None:
        self._rows = rows
        self._deliveries = deliveries
        self._rates = Rates()
        self._began_s = time.monotonic()
        self._shown_s = float("-inf")

    def event(self, text: str) -> None:
        """Print the text with the time since the start."""
        print(f"[{time.monotonic() - self._began_s:6.1f} s] {text}", flush=True)

    def show(self, snapshot: Snapshot) -> None:
        """Print the current state unless the last line is recent."""
        published, confirmed, delivered = self._rates.of(snapshot)
        if snapshot.at_s - self._shown_s < PLAIN_LINE_EVERY_S:
            return
        self._shown_s = snapshot.at_s
        self.event(
            f"published {snapshot.published:,}/{self._rows:,} ({published:,.0f}/s)  "
            f"confirmed {snapshot.confirmed:,} ({confirmed:,.0f}/s)  "
            f"delivered {snapshot.delivered:,}/{self._deliveries:,} ({delivered:,.0f}/s)  {snapshot.broker}"
        )

    def close(self) -> None:
        """Do nothing: printed lines stay."""


class BarProgress:
    """Three moving bars, with the events above them, and between them what `above` returns."""

    def __init__(self, rows: int, deliveries: int, above: Callable[[], RenderableType] | None = None) -> None:
        from rich.console import Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._rates = Rates()
        self._began_s = time.monotonic()
        self._bars: RichBars = Progress(
            TextColumn("{task.description:>9}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:>12}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[broker]}"),
        )
        self._tasks: list[TaskID] = [
            self._bars.add_task(name, total=of, rate="", broker="")
            for name, of in (("published", rows), ("confirmed", rows), ("delivered", deliveries))
        ]
        self._live = Live(
            auto_refresh=False, get_renderable=lambda: Group(above(), self._bars) if above else self._bars
        )
        self._live.start()

    def event(self, text: str) -> None:
        """Print the text above the bars with the time since the start."""
        self._live.console.print(f"[{time.monotonic() - self._began_s:6.1f} s] {text}", markup=False, highlight=False)

    def show(self, snapshot: Snapshot) -> None:
        """Move the bars."""
        done = (snapshot.published, snapshot.confirmed, snapshot.delivered)
        for task, completed, rate in zip(self._tasks, done, self._rates.of(snapshot), strict=True):
            broker = snapshot.broker if task == self._tasks[0] else ""
            self._bars.update(task, completed=completed, rate=f"{rate:,.0f}/s", broker=broker)
        self._live.refresh()

    def close(self) -> None:
        """Stop the bars and leave them on the screen."""
        self._live.stop()


def make_progress(
    rows: int, deliveries: int, plain: bool, above: Callable[[], RenderableType] | None = None
) -> Progress:
    """Return bars if standard output is a terminal and rich is installed, else plain lines."""
    if not plain and sys.stdout.isatty():
        try:
            return BarProgress(rows, deliveries, above)
        except ImportError:
            pass
    return PlainProgress(rows, deliveries)
