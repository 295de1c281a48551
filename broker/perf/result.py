"""The result of a run: one document for the terminal's table, for `--json` and for the HTML page.

Reading a JSON document is strict: an error names the wrong, missing or unknown field.
"""

from __future__ import annotations

import json
import types
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, Final, Self, get_args, get_origin, get_type_hints

from broker.perf.faults import BadDocument
from broker.perf.histogram import Histogram
from broker.perf.machine import MachineFacts

_SHOWN_MAX: Final = 40  # characters of a wrong value in an error
_NUMBER_MAX: Final = 1e300  # no measurement is larger, and sums of larger numbers would overflow to infinity
_EXPECTED: Final[dict[type, tuple[tuple[type, ...], str]]] = {  # a field's type -> JSON types, and their name
    dict: ((dict,), "an object"),
    tuple: ((list,), "a list"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    bool: ((bool,), "true or false"),
}
FORMAT: Final = "slotmq-perf/1"
_CURVE: Final = (0, 10, 25, 50, 75, 90, 95, 97.5, 99, 99.5, 99.75, 99.9, 99.95, 99.975, 99.99, 99.995, 99.999, 99.9999)


def _decoded(kind: Any, value: Any, where: str) -> Any:
    """Return the object of type `kind` that a JSON value represents.

    Raises: BadDocument for a missing or unknown key, or a value of another type, length or magnitude.
    """
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is object:
        return value
    if origin is types.UnionType:
        return None if value is None else _decoded(inner[0], value, where)
    accepted, expected = _EXPECTED[dict if is_dataclass(origin) else origin]
    if type(value) not in accepted or (origin is float and not abs(value) <= _NUMBER_MAX):
        found = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else None
        raise _bad(where, f"expected {expected}, found {found or _cut(json.dumps(value))}")
    if is_dataclass(origin):
        return _decoded_dataclass(kind, value, where)
    if origin is dict:
        return {name: _decoded(inner[1], item, f"{where}.{_cut(name)}") for name, item in value.items()}
    if origin is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(value) != len(kinds):
            raise _bad(where, f"expected a list of {len(kinds)}, found one of {len(value)}")
        items = enumerate(zip(kinds, value, strict=True))
        return tuple(_decoded(kind, item, f"{where}[{at}]") for at, (kind, item) in items)
    return value


def _decoded_dataclass(kind: Any, given: dict[str, Any], where: str) -> Any:
    hints, known = get_type_hints(kind), {field.name: field for field in fields(kind)}
    made = {}
    for name, value in given.items():
        if name not in known:
            raise _bad(f"{where}.{_cut(name)}", "unknown")
        made[name] = _decoded(hints[name], value, f"{where}.{name}")
    for name, one in known.items():
        if name not in given and one.default is MISSING and one.default_factory is MISSING:
            raise _bad(f"{where}.{name}", "missing")
    return kind(**made)


def _bad(where: str, problem: str) -> BadDocument:
    return BadDocument(f"{where.removeprefix('.')}: {problem}")


def _cut(text: str) -> str:
    shown = text if text.isprintable() else ascii(text)
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The broker that was measured."""

    product: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LatencyPair:
    """The latency of an interval."""

    p50: float
    p99: float

    @classmethod
    def of(cls, histogram: Histogram) -> Self | None:
        if not histogram.count:
            return None
        p50, p99 = histogram.percentiles((50, 99))
        return cls(p50 / 1e3, p99 / 1e3)


@dataclass(frozen=True, slots=True)
class Interval:
    """The events since the previous interval. Units: `at_s` is the end of the interval, from the start of the run."""

    at_s: float
    published: int = 0
    confirmed: int = 0
    delivered: int = 0
    latency_us: LatencyPair | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of messages or confirms in a run.

    Shapes: `distribution` lists pairs (percent, latency), both ascending, for percents that `count` makes significant.
    """

    count: int
    min: float
    mean: float
    p50: float
    p75: float
    p95: float
    p99: float
    p99_9: float
    max: float
    distribution: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, histogram: Histogram) -> Self | None:
        """Return the latency of a histogram, or None if the histogram is empty."""
        count = histogram.count
        if not count:
            return None
        percents = [*(float(percent) for percent in _CURVE if count * (100 - percent) >= 100), 100.0]
        curve = [value / 1e3 for value in histogram.percentiles(percents)]
        p50, p75, p95, p99, p99_9 = (value / 1e3 for value in histogram.percentiles((50, 75, 95, 99, 99.9)))
        pairs = tuple(zip(percents, curve, strict=True))
        return cls(count, curve[0], histogram.mean_ns / 1e3, p50, p75, p95, p99, p99_9, curve[-1], pairs)


@dataclass(frozen=True, slots=True)
class RunTotals:
    """The totals of a run. Each rate is an average from the start until its clients ended."""

    published: int = 0
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    delivered: int = 0
    acked: int = 0
    publish_per_s: float = 0.0
    confirm_per_s: float = 0.0
    deliver_per_s: float = 0.0
    publish_bytes: int = 0
    deliver_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Generator:
    """The figures of the generator itself. If it is the bottleneck, the run says nothing about the broker's limits."""

    cpu_s: float = 0.0
    busy_share: float = 0.0
    ceiling_per_s: float | None = None
    bottleneck: bool = False


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """The resources that the broker's processes used."""

    cpu_s: float
    cpu_us_per_message: float | None
    rss_bytes: int
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of one scenario. Shapes: `unit` is us, s, bytes, per_s, share, or a noun that follows the number."""

    value: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The result document of a run. Invariant: neither `arguments` nor `options` contains a password."""

    scenario: str
    arguments: tuple[str, ...]
    started: str
    broker: BrokerFacts
    options: dict[str, object]
    seconds: float
    intervals: tuple[Interval, ...] = ()
    totals: RunTotals = field(default_factory=RunTotals)
    latency_us: Latency | None = None
    confirm_latency_us: Latency | None = None
    generator: Generator = field(default_factory=Generator)
    process: ProcessUse | None = None
    machine: MachineFacts | None = None
    figures: dict[str, Figure] = field(default_factory=dict)
    failures: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the result that a document describes. Raises: BadDocument."""
        try:
            document = json.loads(text, parse_constant=_no_number)
        except RecursionError:
            raise BadDocument("not JSON: nested too deep") from None
        except ValueError as error:
            raise BadDocument(f"not JSON: {error}") from None
        found = document.pop("format", None) if isinstance(document, dict) else None
        if found != FORMAT:
            raise BadDocument(f"not a document of format {FORMAT}")
        result: Self = _decoded(cls, document, "")
        return result
