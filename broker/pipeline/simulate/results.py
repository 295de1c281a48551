"""Show the results of simulations as text and as charts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.cli.table import aligned
from broker.figures.axis import Axis, bucket_axis, decade_axis, even_axis
from broker.figures.chart import Drawing, Line, line_chart, sheet
from broker.figures.numerals import KIB, digits, duration_text, short_text, size_text
from broker.pipeline.simulate.interest_network import LEAF_PATTERNS
from broker.pipeline.simulate.plan import AGGREGATIONS, MESSAGES, TABLES

Row = Mapping[str, Any]
Value = Callable[[Row], float | None]
VARIED: Final = ("brokers", "subscriptions", "redundancy", "aggregation")


def _traffic(row: Row, name: str) -> str:
    return f"{digits(100 * row[name] / row['flooded'])} %"


def _changes(row: Row) -> str:
    if row["changes"] is None:
        return "-"
    return f"{row['told_changes']} of {row['changes']}, {size_text(row['told_bytes'] / row['changes'])}"


def _crash(row: Row) -> str:
    sent = "" if row["crash_bytes"] is None else f", {size_text(row['crash_bytes'])}"
    return f"{duration_text(row['converge_ms'] * 1000)}{sent}"


COLUMNS: Final[Mapping[str, Callable[[Row], str]]] = {
    "brokers": lambda row: f"{row['brokers']:,}",
    "leaves": lambda row: f"{row['leaves']:,}",
    "complete": lambda row: f"{row['observed_leaves']:,}",
    "redundancy": lambda row: str(row["redundancy"]),
    "aggregation": lambda row: row["aggregation"],
    "subscriptions": lambda row: short_text(row["subscriptions"]),
    "traffic": lambda row: _traffic(row, "forwarded"),
    "needed": lambda row: _traffic(row, "needed"),
    "patterns": lambda row: short_text(row["inner_patterns"]),
    "memory": lambda row: size_text(row["broker_bytes"]),
    "told changes": _changes,
    "crash": _crash,
    "CPU": lambda row: duration_text(row["broker_cpu_ms"] * 1000),
}

NOTES: Final = (
    "traffic, needed: links crossed, of those that flooding crosses; needed is the least that reaches all who want it",
    "patterns: of all directions of an inner broker; memory, CPU: for each broker, the mean of all",
    "told changes: subscriptions and unsubscriptions that reached other brokers; bytes for each change, on all links",
    "crash: until all know everything again after a broker at the root restarted without state; bytes on all links",
    "exact: inner brokers above the sites, and the sites of complete leaves; sampled: messages, changes, other sites",
    f"aggregated: the equal subscriptions of a leaf, whose clients choose among {LEAF_PATTERNS} patterns",
)


def result_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the results as a table for each level, and the meaning of the figures."""
    for level, title in (
        (TABLES, "What brokers announce (level tables)"),
        (MESSAGES, "Whole brokers (level messages)"),
    ):
        chosen = sorted((row for row in rows if row["level"] == level), key=_order)
        if not chosen:
            continue
        yield f"{title}, {chosen[0]['messages']} messages in each"
        for line in aligned(list(COLUMNS), [[text(row) for text in COLUMNS.values()] for row in chosen]):
            yield f"  {line}"
    yield from NOTES


def _order(row: Row) -> tuple[Any, ...]:
    return (row["brokers"], row["redundancy"], row["aggregation"], row["subscriptions"])


@dataclass(frozen=True, slots=True)
class FigurePanel:
    """A chart that shows how figures depend on one field of the plans of a level.

    Shapes: `values` is one figure, or maps labels of lines to figures.
    """

    title: str
    varied: str
    y: str
    values: Value | Mapping[str, Value]
    text: Callable[[float], str] = short_text
    level: str = TABLES
    logarithmic: bool = True


def _figure(name: str) -> Value:
    return lambda row: row[name]


def _per_message(name: str) -> Value:
    return lambda row: row[name] / row["flooded"] * row["edges"]


def _of_flooding(row: Row) -> float:
    return 100 * row["forwarded"] / row["flooded"]


def _kib(name: str) -> Value:
    return lambda row: None if row[name] is None else row[name] / KIB


def _per_change(row: Row) -> float:
    return row["told_bytes"] / row["changes"] / KIB


def _percent(value: float) -> str:
    return f"{digits(value)} %"


def _ms(value: float) -> str:
    return f"{digits(value)} ms"


LINKS: Final = {"flooding": _per_message("flooded"), "forwarding": _per_message("forwarded")}
PATTERNS: Final = {"inner broker": _figure("inner_patterns"), "leaf": _figure("leaf_patterns")}
MEMORY: Final = {"inner broker": _kib("inner_bytes"), "leaf": _kib("leaf_bytes")}
UPDATES: Final = "Updates of one subscription or unsubscription"
CONVERGED: Final = "Until all know everything after a crash at the root"
CRASH: Final = "Updates after a crash at the root"
CONVERGE: Final = _figure("converge_ms")
INNER: Final = PATTERNS["inner broker"]
CRASH_BYTES: Final = _kib("crash_bytes")
PANELS: Final = (
    FigurePanel("Links that a message crosses", "brokers", "links", LINKS),
    FigurePanel("Traffic, of flooding", "subscriptions", "links crossed", _of_flooding, _percent, logarithmic=False),
    FigurePanel("Patterns of a broker, by brokers", "brokers", "patterns", PATTERNS),
    FigurePanel("Patterns of an inner broker, by subscriptions", "subscriptions", "patterns", INNER),
    FigurePanel("Patterns of an inner broker, by aggregation", "aggregation", "patterns", INNER, logarithmic=False),
    FigurePanel("Memory of a broker's interest", "brokers", "KiB", MEMORY),
    FigurePanel(f"{UPDATES}, all links", "subscriptions", "KiB", _per_change, logarithmic=False),
    FigurePanel(f"{UPDATES}, by aggregation", "aggregation", "KiB", _per_change, logarithmic=False),
    FigurePanel(CONVERGED, "brokers", "simulated time", CONVERGE, _ms, logarithmic=False),
    FigurePanel(f"{CONVERGED}, by redundancy", "redundancy", "simulated time", CONVERGE, _ms, logarithmic=False),
    FigurePanel(f"{CRASH}, all links", "brokers", "KiB", CRASH_BYTES),
    FigurePanel(f"{CRASH}, by redundancy", "redundancy", "KiB", CRASH_BYTES, logarithmic=False),
    FigurePanel("Whole brokers: CPU time for each to simulate", "brokers", "CPU time",
                _figure("broker_cpu_ms"), _ms, MESSAGES),
    FigurePanel("Whole brokers: memory of each", "brokers", "KiB", MEMORY, level=MESSAGES),
)  # fmt: skip


def result_sheet(rows: Sequence[Row]) -> str:
    """Return the charts as SVG; a chart whose field was not varied is left out."""
    drawings = [drawing for panel in PANELS if (drawing := _drawing(panel, rows)) is not None]
    return sheet("Simulated overlays", drawings)


def _drawing(panel: FigurePanel, rows: Sequence[Row]) -> Drawing | None:
    """Return the chart of a panel, or None if its field was not varied."""
    lines = list(_lines(panel, [row for row in rows if row["level"] == panel.level]))
    places = [x for line in lines for x, _, _ in line.points]
    heights = [y for line in lines for _, y, _ in line.points]
    if not lines:
        return None
    axis = decade_axis if panel.logarithmic and min(heights) > 0 else even_axis
    return line_chart(panel.title, _across(panel.varied, places), axis(panel.y, heights, panel.text), lines)


def _across(varied: str, places: Sequence[float]) -> Axis:
    if varied == "aggregation":
        return bucket_axis(varied, 0, len(AGGREGATIONS) - 1, lambda place: AGGREGATIONS[place])
    if varied == "redundancy":
        return bucket_axis("brokers of an inner tree node", round(min(places)), round(max(places)), str)
    return decade_axis(varied, places, short_text)


def _lines(panel: FigurePanel, rows: Sequence[Row]) -> Iterator[Line]:
    """Yield a line for each value and each set of plans that differ only in the varied field."""
    others = [name for name in VARIED if name != panel.varied]
    sets: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        sets[tuple(row[name] for name in others)].append(row)
    kept = {key: chosen for key, chosen in sets.items() if len(chosen) > 1}
    differing = [place for place in range(len(others)) if len({key[place] for key in kept}) > 1]
    colour = 0
    for key, chosen in sorted(kept.items()):
        about = ", ".join(f"{others[place]} {_short(key[place])}" for place in differing)
        for name, value in (panel.values if isinstance(panel.values, Mapping) else {"": panel.values}).items():
            points = sorted(
                (_place(row[panel.varied]), height, f"{_short(row[panel.varied])}: {panel.text(height)}")
                for row in chosen
                if (height := value(row)) is not None
            )
            yield Line(", ".join(filter(None, (name, about))) or panel.y, points, colour)
            colour += 1


def _place(value: str | int) -> float:
    return float(AGGREGATIONS.index(value)) if isinstance(value, str) else float(value)


def _short(value: str | int) -> str:
    return value if isinstance(value, str) else short_text(value)
