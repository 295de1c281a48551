"""The table at the end of a run: counts, latencies and usage, without missing measurements."""

from __future__ import annotations

from broker.perf.result import BrokerFacts, Figure, Generator
from broker.perf.table import table
from tests.perf_results import bare, result


def test_a_result_is_shown_in_columns() -> None:
    """Numbers are aligned under their names, each with a suitable unit."""
    lines = table(result(per_s=12_345)).splitlines()
    assert lines[0] == "throughput: SlotMQ 1.0 at 127.0.0.1:5672, 4 s"
    assert lines[2:7] == [
        "           messages  per second   MB/s",
        "published    49,380      12,345  0.198",
        "confirmed    49,380      12,345",
        "delivered    49,380      12,345  0.198",
        "acked        49,380",
    ]
    assert lines[9].split() == "publish to deliver 1,000 1 us 501 us 500 us 750 us 950 us 990 us 999 us 1 ms".split()
    assert lines[-2:] == [
        "broker     CPU 2 s, 40.5 us per message, memory 50 MiB, at most 60 MiB",
        "generator  CPU 1.5 s, busiest process 25 % busy, ceiling 2,000,000/s: not the bottleneck",
    ]


def test_what_was_not_measured_is_not_shown() -> None:
    """A scenario without messages shows its figures only; an IPv6 address is in brackets."""
    shown = table(bare(figures={"open_p50": Figure(212, "us"), "opened": Figure(1000, "connections")}))
    assert shown == (
        "connections: a broker at [::1]:1, 0 us\n\nopen p50             212 us\nopened    1,000 connections\n"
    )


def test_what_went_wrong_is_said_last() -> None:
    """Each failure is a line, with the control characters of the broker's text escaped."""
    lines = table(result("Evil\x1b[2J\nbroker", failures=("one\x07", "two"))).splitlines()
    assert lines[0].startswith("throughput: Evil\\x1b[2J\\nbroker at ")
    assert lines[-2:] == ["FAILED: one\\x07", "FAILED: two"]


def test_a_run_that_its_generator_held_up_says_so() -> None:
    """A run whose generator was the limit says that its figures do not describe the broker."""
    shown = table(result(generator=Generator(3.0, 0.98, None, bottleneck=True), broker=BrokerFacts("B", "h", 1)))
    assert "busiest process 98 % busy: the generator was the bottleneck, the broker can do more" in shown
