"""The last reading of the ledger, and its display: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from time import monotonic as clock

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo.ledger import Count, Ledger

PLAIN_LINE_EVERY_S = 2.0


class Watch:
    """The distinct flights published and confirmed, and the deliveries, as last read.

    `began_s`, `published_s`, `moved_s` are the times of the readings that first saw a flight published, saw the last
    one confirmed, and last saw any change.
    """

    def __init__(self, ledger: Ledger, deliveries: int, now_s: float) -> None:
        self._ledger = ledger
        self._deliveries = deliveries
        self.seen = (0, 0, 0)
        self.began_s: float | None = None
        self.published_s: float | None = None
        self.moved_s = now_s

    def read(self, now_s: float) -> tuple[int, int, int]:
        """Read the ledger; return the number of distinct flights published and confirmed, and of deliveries."""
        total = self._ledger.total
        seen = (total(Count.PUBLISHED) - total(Count.RESENT), total(Count.CONFIRMED), total(Count.DELIVERED))
        if seen != self.seen:
            self.seen, self.moved_s = seen, now_s
        if self.began_s is None and seen[0]:
            self.began_s = now_s
        if self.published_s is None and seen[1] >= self._ledger.rows:
            self.published_s = now_s
        return seen

    @property
    def complete(self) -> bool:
        """Whether all flights are confirmed and the expected number of distinct deliveries has arrived."""
        return self.published_s is not None and self._ledger.total(Count.DISTINCT) >= self._deliveries

    def __str__(self) -> str:
        return "{:,} flights published, {:,} confirmed, {:,} messages delivered".format(*self.seen)


class Display(Progress):
    """Shows events, then what `above` returns, then a bar for each of three growing counts."""

    def __init__(self, rows: int, deliveries: int, plain: bool, above: Callable[[], RenderableType]) -> None:
        self._plain = plain or not sys.stdout.isatty()
        self._above = above
        self._began_s = clock()
        self._shown_s = float("-inf")
        columns = TextColumn("{task.description:>9}"), BarColumn(bar_width=32), MofNCompleteColumn()
        texts = TextColumn("{task.fields[rate]:>12}"), TimeElapsedColumn(), TextColumn("{task.fields[state]}")
        super().__init__(
            *columns, *texts, speed_estimate_period=3.0, auto_refresh=False, disable=self._plain,
            console=Console(width=10_000) if self._plain else None,
        )  # fmt: skip
        for name, goal in (("published", rows), ("confirmed", rows), ("delivered", deliveries)):
            self.add_task(name, total=goal, rate="", state="")
        self.start()

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the text and the bars."""
        yield self._above()
        yield from super().get_renderables()

    def event(self, text: str) -> None:
        """Print the text with the time since the start."""
        self.console.print(f"[{clock() - self._began_s:6.1f} s] {text}", markup=False, highlight=False)

    def show(self, counts: tuple[int, ...], state: str) -> None:
        """Show the current counts; without a terminal only every two seconds."""
        for task, completed in zip(self.tasks, counts, strict=True):
            self.update(task.id, completed=completed, rate=f"{task.speed or 0:,.0f}/s")
        self.update(self.tasks[0].id, state=state)
        self.refresh()
        if self._plain and clock() - self._shown_s >= PLAIN_LINE_EVERY_S:
            self._shown_s = clock()
            parts = [f"{t.description} {t.completed:,}/{t.total:,} ({t.fields['rate']})" for t in self.tasks]
            self.event("  ".join([*parts, state]))
