"""The report's page: one self-contained, well-formed file that shows names as they are."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import pytest

from broker.pipeline.jobs.report import page
from tests.page_reader import PageReader

HOSTILE = "<script>alert(1)</script>&\x1b[2J\u202e\"'"


def values(name: str = "a.b") -> dict[str, Any]:
    """Return a report with all values, in which every name is this one."""
    heat = {"vhost": name, "exchange": name, "beginning": name, "messages": 3, "slices": [1, 0, 2]}
    tap = {
        "vhost": name, "tap": name, "cursor": name, "seal": 1, "slots": 4, "bytes": 9, "lag_slots": 2,
        "lag_messages": 20, "lag_bytes": 300, "lag_s": 4000.0, "lost_slots": 0,
    }  # fmt: skip
    held = {"vhost": name, "queue": name, "ready": 5, "unacked": 3, "consumers": 2, "held": [2, 1], "skew": 1.33}
    return {
        "made": "2026-11-20T10:00:00Z",
        "lake": f"/lake/{name}",
        "selection": {"since": "7d", "queues": [name], "where": None},
        "traffic": {
            "messages": 3, "bytes": 4000, "keys": 2, "first": "2026-11-20T07:00:00.000Z",
            "last": "2026-11-20T09:30:00.000Z", "first_ms": 1795158000000, "last_ms": 1795167000000,
            "slice_ms": 3600000,
            "rate": {"begins_ms": 1795158000000, "messages": [1, 0, 2], "bytes": [1000, 0, 3000]},
            "by_day": {}, "heat": [{"level": 1, "beginnings": 20, "messages": 4, "rows": [heat]}],
            "exchanges": [{"vhost": name, "exchange": name, "messages": 3, "bytes": 4000, "keys": 2}] * 2,
            "top_keys": [{"vhost": name, "exchange": name, "routing_key": name, "messages": 3, "bytes": 4000}],
            "sizes": {"mean": 1333.3, "p50": 1000, "p90": 2900.0, "p99": 3000, "max": 3000,
                      "classes": [{"upto": 1024, "messages": 1}, {"upto": 4096, "messages": 2}]},
        },
        "bindings_of": "the broker's bindings",
        "reach": {
            "bindings": 3, "copies": 6, "mean": 2.0, "by_queues": [{"queues": 2, "messages": 3, "keys": 2}],
            "unmatched_messages": 1, "unmatched_keys": 1,
            "unmatched": [{"vhost": name, "exchange": name, "routing_key": name, "messages": 1}],
            "dead_bindings": [{"vhost": name, "binding": name}],
        },
        "redundant_bindings": [{"vhost": name, "binding": name, "covered_by": name}],
        "taps": [tap, {**tap, "cursor": None}],
        "queues": [held, {**held, "skew": None, "held": []}],
        "forecast": {
            "messages_a_day": 50.0, "growth_a_day": -2.0, "lake_bytes_a_message": 99.5, "lake_bytes": 10_000,
            "free_bytes": 5_000, "ahead": [{"days": 7, "lake_bytes": 12_000.0}, {"days": 90, "lake_bytes": 13_000.0}],
            "full_in_days": 12.5,
        },
    }  # fmt: skip


NOTHING = {
    "traffic": None, "reach": None, "redundant_bindings": None, "taps": None, "queues": None, "forecast": None,
    "bindings_of": None,
}  # fmt: skip
EMPTY = {
    "taps": [], "queues": [], "redundant_bindings": [],
    "reach": {"bindings": 0, "copies": 0, "mean": 0.0, "by_queues": [], "unmatched_messages": 0, "unmatched_keys": 0,
              "unmatched": [], "dead_bindings": []},
}  # fmt: skip


@pytest.mark.parametrize("parts", [{}, NOTHING, EMPTY])
def test_the_page_is_well_formed_and_stands_alone(parts: dict[str, Any]) -> None:
    """Each tag is closed, each picture is XML with a name, and nothing is fetched or executed."""
    text = page({**values(), **parts})
    reader = PageReader(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    fetching = [value for name, value in reader.attributes if name in {"src", "href", "action"}]
    assert all(value is not None and value.startswith("#") for value in fetching)
    assert "url(" not in text
    assert "@import" not in text
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    for picture in pictures:
        assert ET.fromstring(picture).get("aria-label")
    assert len(pictures) == (0 if parts is NOTHING else 6)


def test_each_section_can_be_reached() -> None:
    """The links at the top lead to existing sections."""
    reader = PageReader(page(values()))
    links = {value for name, value in reader.attributes if name == "href"}
    assert links == {f"#{value}" for name, value in reader.attributes if name == "id"}
    assert len(links) == 10


def test_names_are_shown_and_do_nothing() -> None:
    """Names from the wire neither become tags nor control characters of the page."""
    text = page(values(HOSTILE))
    reader = PageReader(text)
    assert "script" not in reader.tags
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert any("<script>alert(1)</script>" in said for said in reader.texts)


def test_every_mark_tells_its_number() -> None:
    """Bars, squares and points have tooltips with their values."""
    titles = re.findall(r"<title>(.*?)</title>", page(values()))
    for title in (
        "messages: 1 message from 2026-11-20 07:00:00",
        "a.b: a.b, 2026-11-20 09:00:00: 2 messages",
        "lake: in 90 days: 12.7 KiB",
        "2 queues: 3 messages under 2 keys",
        "513 to 1,024 B: 1 message (33.3%)",
    ):
        assert title in titles


def columns(name: str) -> tuple[list[float], list[str]]:
    """Return the positions and widths of the columns of a picture, and its axis labels."""
    (picture,) = re.findall(rf'<svg [^>]*aria-label="{name}".*?</svg>', page(values()), re.DOTALL)
    root = ET.fromstring(picture)
    bars = [rect for rect in root.iter("rect") if rect.get("class") == "bar"]
    foot = [text.text or "" for text in root.iter("text") if text.get("text-anchor") == "middle"]
    return [float(rect.attrib[key]) for rect in bars for key in ("x", "width")], foot


def test_empty_buckets_have_their_place_on_the_axis() -> None:
    """Empty buckets leave gaps: bodies of 1 and 4 KiB without 2 KiB, and queue counts that no message has."""
    (first, width, last, _), foot = columns("Messages by size of the body")
    assert {"1 KiB", "2 KiB", "4 KiB"} <= set(foot)
    assert last - first > 2 * width
    _, foot = columns("Messages by number of queues")
    assert [text for text in foot if text.isdigit()] == ["0", "1", "2"]


def test_columns_do_not_touch() -> None:
    """There is space between the columns of a picture, and between numbers and the text after them."""
    traffic = values()["traffic"]
    crowded = [{"upto": 1 << power, "messages": 9} for power in range(30)]
    made = page({**values(), "traffic": {**traffic, "sizes": {**traffic["sizes"], "classes": crowded}}})
    (picture,) = re.findall(r'<svg [^>]*aria-label="Messages by size of the body".*?</svg>', made, re.DOTALL)
    bars = [(float(bar.attrib["x"]), float(bar.attrib["width"])) for bar in ET.fromstring(picture).iter("rect")]
    assert len(bars) == 30
    assert all(left + 1.3 * width < right for (left, width), (right, _) in pairwise(bars))
    assert re.search(r"\.number \+ :not\(\.number\) \{ padding-left: \d\dpx", made)
