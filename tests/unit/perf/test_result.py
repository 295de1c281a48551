"""The result document: it reads back equal, and other documents are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.perf.faults import BadDocument
from broker.perf.histogram import Histogram
from broker.perf.result import FORMAT, Latency, LatencyPair, Result
from tests.perf_results import bare, histogram, result

TOP_KEYS = set(
    "format scenario arguments started broker options seconds intervals totals latency_us confirm_latency_us generator "
    "process machine figures failures".split()
)


def _changed(path: str, value: Any) -> str:
    """Return the document of a result with one changed value."""
    document = json.loads(result().to_json())
    *above, last = path.split(".")
    place = document
    for name in above:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(document)


@pytest.mark.parametrize("written", [result(), bare(), result(process=None, latency_us=None, failures=("one", "two"))])
def test_a_result_comes_back_as_it_was(written: Result) -> None:
    """A document reads back as the written result; missing measurements are null."""
    assert Result.from_json(written.to_json()) == written


def test_the_document_names_what_other_programs_look_for() -> None:
    """The document has a format, keys at the top level, and latencies by percentile."""
    document = json.loads(result().to_json())
    assert document["format"] == FORMAT == "slotmq-perf/1"
    assert set(document) == TOP_KEYS
    assert set(document["intervals"][0]) == {"at_s", "published", "confirmed", "delivered", "latency_us"}
    assert {"count", "min", "mean", "p50", "p75", "p95", "p99", "p99_9", "max"} < set(document["latency_us"])
    assert document["figures"]["messages_per_cpu_second"] == {"value": 2000.0, "unit": "per_s"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[" * 100_000, "not JSON: nested too deep"),
        ("[]", "not a document of format slotmq-perf/1"),
        ('{"format": "slotmq-perf/2"}', "not a document of format slotmq-perf/1"),
        ('{"format": ["slotmq-perf/1"]}', "not a document of format slotmq-perf/1"),
        ('{"format": "slotmq-perf/1"}', "scenario: missing"),
        ('{"format": "slotmq-perf/1", "seconds": NaN}', "not JSON: NaN is not a number"),
        (_changed("seconds", "4"), 'seconds: expected a number, found "4"'),
        (_changed("seconds", True), "seconds: expected a number, found true"),
        (_changed("seconds", 10**400), "seconds: expected a number, found " + "1" + "0" * 39 + "..."),
        (_changed("totals.published", 1.5), "totals.published: expected a whole number, found 1.5"),
        (_changed("broker", []), "broker: expected an object, found a list"),
        (_changed("broker.host", None), "broker.host: expected a text, found null"),
        (_changed("intervals.2.delivered", None), "intervals[2].delivered: expected a whole number, found null"),
        (_changed("intervals.1.latency_us.p50", {}), "intervals[1].latency_us.p50: expected a number, found an object"),
        (
            _changed("latency_us.distribution.3", [1]),
            "latency_us.distribution[3]: expected a list of 2, found one of 1",
        ),
        (_changed("generator.bottleneck", 0), "generator.bottleneck: expected true or false, found 0"),
        (_changed("figures.opens", {"value": 1}), None),
        (_changed("figures.opens", {"value": 1, "units": "s"}), "figures.opens.units: unknown"),
        (_changed("process.\x1b[2J", 1), "process.'\\x1b[2J': unknown"),
    ],
)
def test_a_document_that_is_none_is_told_in_one_line(text: str, problem: str | None) -> None:
    """An invalid document is refused with the path of the error, without control characters."""
    if problem is None:
        assert Result.from_json(text).figures["opens"].unit == ""
        return
    with pytest.raises(BadDocument) as raised:
        Result.from_json(text)
    assert str(raised.value) == problem


def test_a_latency_is_told_by_percentile() -> None:
    """The percentiles of 1 to 1,000 us are right to three digits."""
    latency = Latency.of(histogram(*range(1, 1001)))
    assert latency is not None
    found = (latency.min, latency.p50, latency.p75, latency.p95, latency.p99, latency.p99_9, latency.max)
    assert found == pytest.approx((1, 500, 750, 950, 990, 999, 1000), rel=0.001)
    assert latency.count == 1000
    assert latency.mean == pytest.approx(500.5, rel=0.001)


def test_a_distribution_says_no_more_than_was_counted() -> None:
    """A hundred messages have no 99.9th percentile; a distribution ends with the slowest message."""
    few = Latency.of(histogram(*range(1, 101)))
    assert few is not None
    percents = [percent for percent, _ in few.distribution]
    assert percents == sorted(percents)
    assert percents[-2:] == [99.0, 100.0]
    assert few.distribution[-1][1] == few.max


def test_nothing_counted_is_no_latency() -> None:
    """An empty histogram is null, not zero microseconds."""
    assert Latency.of(Histogram()) is None
    assert LatencyPair.of(Histogram()) is None
    assert LatencyPair.of(histogram(1)) == LatencyPair(1.0, 1.0)
