"""The page: self-contained, without scripts or external resources, and valid HTML and SVG."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from broker.perf.page import page
from broker.perf.result import BrokerFacts, Generator, Interval, Latency
from tests.page_reader import PageReader
from tests.perf_results import bare, histogram, result

EVIL = "<script>alert(1)</script>\"'&\x1b[2J\x00"
ALLOWED = set(
    "html head meta title style body header h1 h2 p section div b span i small code footer figure figcaption ul li svg "
    "line text polyline circle table thead tbody tr th td".split()
)


def figures(html: str) -> dict[str, ET.Element]:
    """Return the pictures by name."""
    pictures = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]
    return {picture.attrib["aria-label"]: picture for picture in pictures}


def lines(picture: ET.Element) -> list[list[tuple[float, float]]]:
    """Return the points of each line."""
    return [
        [(float(x), float(y)) for x, y in (point.split(",") for point in line.attrib["points"].split())]
        for line in picture.iter("polyline")
    ]


def test_a_page_needs_nothing_else() -> None:
    """No element or attribute loads or executes anything, and a policy forbids it anyway."""
    html = page([result(), result("Other 2.0")])
    reader = PageReader(html)
    assert set(reader.tags) <= ALLOWED
    assert not {name for name, _ in reader.attributes} & {"src", "href", "onload", "onclick", "srcset"}
    assert "url(" not in html
    assert "@import" not in html
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in reader.attributes
    assert "prefers-color-scheme: dark" in html


def test_nothing_that_a_broker_says_steers_the_page() -> None:
    """Markup and control characters in a product, option, failure, figure or argument are shown as text."""
    evil = result(
        EVIL,
        scenario=EVIL,
        arguments=(EVIL,),
        started=EVIL,
        broker=BrokerFacts(EVIL, EVIL, 1),
        options={EVIL: EVIL, "deep": {EVIL: [EVIL]}},
        figures={EVIL: result().figures["messages_per_cpu_second"]},
        failures=(EVIL,),
    )
    for html in (page([evil]), page([evil, evil, result()])):
        assert set(PageReader(html).tags) <= ALLOWED
        assert not re.search("[\x00-\x08\x0b-\x1f]", html)
        assert "<script" not in html.lower()
        assert any("<script>alert(1)</script>" in text for text in PageReader(html).texts)


def test_a_page_of_one_shows_its_headline_charts_and_facts() -> None:
    """The page has rates, latencies, broker, machine, options, command and the generator's figures."""
    reader = PageReader(page([result()]))
    for text in (
        "throughput: SlotMQ 1.0",
        "1,000/s",
        "500 us",
        "990 us",
        "60 MiB",
        "busiest process 25 % busy, ceiling 2,000,000/s: not the bottleneck.",
        "a processor, 2 cores",
        "persistent",
        "slotmq perf throughput -x 2 -u 'a queue'",
    ):
        assert text in reader.texts


def test_a_line_has_a_point_for_each_interval() -> None:
    """Published, confirmed and delivered are lines with all intervals, from left to right, level at a steady rate."""
    pictures = figures(page([result(seconds=7)]))
    assert list(pictures) == ["Messages per second", "Latency, publish to deliver", "Latency by percentile"]
    drawn = lines(pictures["Messages per second"])
    assert [len(line) for line in drawn] == [7, 7, 7]
    for line in drawn:
        assert [x for x, _ in line] == sorted({x for x, _ in line})
        assert len({y for _, y in line}) == 1
    assert [len(line) for line in lines(pictures["Latency, publish to deliver"])] == [7, 7]


def test_a_rate_is_that_of_its_interval() -> None:
    """A count over twice the time is half as high; an interval of almost no length is not drawn."""
    intervals = (Interval(1.0, 100), Interval(1.0, 50), Interval(3.0, 100), Interval(3.5, 50), Interval(3.6, 99))
    (line,) = lines(figures(page([result(intervals=intervals)]))["Messages per second"])
    assert len(line) == 3
    first, slow, last = (y for _, y in line)
    foot = 244.0
    assert first == last
    assert foot - slow == pytest.approx((foot - first) / 2, abs=0.2)


def test_the_latency_rises_with_the_percentile() -> None:
    """The distribution goes from left to right and never falls, however rare its tail."""
    wide = Latency.of(histogram(*range(1, 5000), 3_000_000))
    (line,) = lines(figures(page([result(latency_us=wide, confirm_latency_us=None)]))["Latency by percentile"])
    assert len(line) >= 10
    assert line == sorted(line, key=lambda point: (point[0], -point[1]))
    assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)


def test_several_are_compared_with_the_first() -> None:
    """Each result has a column with its ratio to the first, coloured by whether more is better, and chart lines."""
    html = page([result("A", 1000), result("B", 2000), result("C", 250)])
    reader = PageReader(html)
    assert {"2,000/s", "2x", "0.25x"} <= set(reader.texts)
    assert '<small class="good">2x</small>' in html
    assert '<small class="bad">0.25x</small>' in html
    assert "<b>125 us</b>" not in html
    for picture in figures(html).values():
        assert len(lines(picture)) == 3


def test_less_latency_is_better() -> None:
    """A ratio below one is good for a time."""
    html = page(
        [result("A", latency_us=Latency.of(histogram(1000))), result("B", latency_us=Latency.of(histogram(500)))]
    )
    assert '<b>500 us</b><small class="good">0.5x</small>' in html


def test_runs_of_one_broker_are_told_apart_by_their_options() -> None:
    """Names are unique: they contain the differing options, else the number of the run."""
    texts = PageReader(page([result(options={"size": 16, "x": 1}), result(options={"size": 1024, "x": 1})])).texts
    assert "SlotMQ 1.0, size 16" in texts
    assert {"SlotMQ 1.0, size 1024", "16", "1024"} <= set(texts)
    assert "SlotMQ 1.0 (run 2)" in PageReader(page([result(), result()])).texts


def test_a_generator_that_held_up_the_run_is_seen() -> None:
    """A run whose generator was the limit is marked in red."""
    html = page([result(generator=Generator(1.0, 0.97, None, bottleneck=True))])
    assert '<p class="note bad"><b>Held up by the generator:</b>' in html


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"intervals": (Interval(0.0, 5),)},
        {"intervals": (Interval(1.0),)},
        {"figures": {}, "failures": ("the broker closed the socket",)},
        {"latency_us": Latency(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, ((100.0, 0.0),))},
        {"latency_us": Latency(3, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, ((100.0, 1.0),))},
    ],
)
def test_a_page_is_made_of_whatever_there_is(changes: dict[str, Any]) -> None:
    """A page is made of runs without measurements, or with zeros only, also of two."""
    for html in (page([bare(**changes)]), page([bare(**changes), result()])):
        PageReader(html)
        assert not re.search(r"\b(nan|inf)\b", "".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL)))


def test_many_results_keep_their_colours_apart() -> None:
    """From the seventh line on, lines are dashed."""
    html = page([result(f"broker {number}") for number in range(8)])
    assert html.count('class="line k1 dashed"') == html.count('class="line k1"') == len(figures(html))


def test_no_result_is_no_page() -> None:
    """A page without results raises."""
    with pytest.raises(ValueError, match="at least one"):
        page([])
