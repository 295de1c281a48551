"""Rates and histories: measured from readings, bounded in number and time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker.manage import samples as samples_module
from broker.manage.history import History, SampleRange, sample_range
from broker.manage.samples import FORGET_S, UNWATCHED_S, WATCHED_MAX, RequestedRates, Sampled, Samples

INTERVAL_S = 5.0


class Moment:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Moment:
    """Provide a clock."""
    return Moment()


def asked_rates(clock: Moment) -> RequestedRates:
    """Return rates by that clock."""
    return RequestedRates(INTERVAL_S, clock, lambda: clock.now_s + 1e9)


def test_a_rate_is_measured_since_a_reading_one_to_two_intervals_old(clock: Moment) -> None:
    """A frequent caller gets the rate of the last seconds, not of the last moment."""
    rates = asked_rates(clock)
    assert rates.of("q", (0, 7), 1) is None  # nobody has looked before
    clock.now_s += 2
    assert rates.of("q", (10, 3), 1) == [5.0, -2.0]
    clock.now_s += 4
    assert rates.of("q", (40, 7), 1) == [6.67, 0.0]  # becomes the newer reading
    clock.now_s += 4
    assert rates.of("q", (40, 7), 1) == [4.0, 0.0]
    clock.now_s += 1
    assert rates.of("q", (40, 7), 1) is None  # since the newer reading nothing changed


def test_a_rate_of_somebody_who_asks_seldom_covers_the_time_between(clock: Moment) -> None:
    """A scaler that asks each half minute gets the mean of that time."""
    rates = asked_rates(clock)
    rates.of("q", (0,), 1)
    clock.now_s += 30
    assert rates.of("q", (300,), 1) == [10.0]
    clock.now_s += 30
    assert rates.of("q", (330,), 1) == [1.0]


def test_counters_that_fall_belong_to_another_object(clock: Moment) -> None:
    """A channel may have the name of one that was closed; other numbers may fall."""
    rates = asked_rates(clock)
    rates.of("q", (100, 5, 9), 2)
    clock.now_s += 1
    assert rates.of("q", (120, 4, 9), 2) is None
    clock.now_s += 1
    assert rates.of("q", (121, 4, 1), 2) == [1.0, 0.0, -8.0]


def test_readings_are_forgotten(clock: Moment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings that are not requested are dropped after ten minutes, and their number is bounded."""
    monkeypatch.setattr(samples_module, "COUNTERS_MAX", 3)
    rates = asked_rates(clock)
    for key in "abcde":
        assert rates.of(key, (1,), 1) is None
    assert len(rates) == 3
    clock.now_s += FORGET_S + 1
    assert rates.of("a", (2,), 1) is None  # a rate over so long a time says nothing
    for _ in range(2):
        rates.sweep()
    assert len(rates) == 1


def test_when_an_object_changed_last_is_known_since_somebody_looks(clock: Moment) -> None:
    """The moment of the last change is that of the reading that found it."""
    rates = asked_rates(clock)
    assert rates.idle_since("q") == {}
    rates.of("q", (1,), 1)
    assert rates.idle_since("q") == {"idle_since": "2001-09-09T02:03:20.000+00:00"}
    clock.now_s += 10
    rates.of("q", (2,), 1)
    clock.now_s += 10
    rates.of("q", (2,), 1)
    assert rates.idle_since("q") == {"idle_since": "2001-09-09T02:03:30.000+00:00"}


def test_a_history_keeps_an_hour() -> None:
    """The oldest sample goes when there are more than fit into an hour."""
    history = History(("a", "b"), 1, 5000)
    for number in range(1000):
        history.add(number * 5000, (number, -number))
    assert len(history) == 720
    assert history.last(2) == [(998 * 5000, [998, -998]), (999 * 5000, [999, -999])]
    assert len(history.last(1000)) == 720
    assert history.rates((1004,), 1000 * 5000, 5000) == [1.0]
    assert history.rates((999,), 999 * 5000 + 1, 1) is None
    assert History(("a",), 1, 5000).rates((1,), 5000, 5000) is None


def test_a_history_keeps_an_hour_at_the_shortest_interval() -> None:
    """The number of samples follows from the interval alone, and the settings bound the interval."""
    history = History(("a",), 1, 500)
    for at_ms in range(0, 3_700_000, 500):
        history.add(at_ms, (0,))
    assert len(history) == 7200


def test_samples_are_shown_as_in_rabbitmq() -> None:
    """The newest sample is the first one; a moment before the first sample has the value 0."""
    history = History(("a", "b"), 1, 5000)
    for number in (1, 2, 3):
        history.add(100_000 + number * 5000, (number, number * 10))
    assert history.details("b", SampleRange(5, 5000), 117_000) == {
        "avg": 12.0,
        "avg_rate": 1.5,
        "rate": 2.0,
        "samples": [
            {"sample": 30, "timestamp": 115_000},
            {"sample": 20, "timestamp": 110_000},
            {"sample": 10, "timestamp": 105_000},
            {"sample": 0, "timestamp": 100_000},
            {"sample": 0, "timestamp": 95_000},
        ],
    }
    assert history.details("a", SampleRange(2, 10_000), 117_000)["samples"] == [
        {"sample": 2, "timestamp": 110_000},
        {"sample": 0, "timestamp": 100_000},
    ]


def test_a_range_of_samples_makes_sense() -> None:
    """Age and step are positive numbers of seconds, and not too many steps."""
    wanted = sample_range({"lengths_age": "60", "lengths_incr": "5"}, "lengths")
    assert wanted is not None
    assert (wanted.samples, wanted.step_ms) == (13, 5000)
    for query in (
        {},
        {"lengths_age": "60"},
        {"lengths_age": "60", "lengths_incr": "0"},
        {"lengths_age": "4", "lengths_incr": "5"},
        {"lengths_age": "-60", "lengths_incr": "5"},
        {"lengths_age": "999999999", "lengths_incr": "1"},
        {"msg_rates_age": "60", "msg_rates_incr": "5"},
    ):
        assert sample_range(query, "lengths") is None


async def test_histories_of_objects_end_when_nobody_asks(clock: Moment) -> None:
    """A history begins when someone asks, grows with each sample, and ends; a bounded number of objects has one."""

    async def totals() -> Sequence[int]:
        return (1, 2)

    samples = Samples(5000, ("a", "b"), 1, totals, clock=clock, wall=clock)
    values: dict[str, Sequence[int] | None] = {"q": (7,), "gone": (8,)}
    history = samples.watch(Sampled("q", ("n",), 1, lambda: values["q"]))
    gone = samples.watch(Sampled("gone", ("n",), 1, lambda: values["gone"]))
    values["gone"] = None
    clock.now_s += 5
    await samples.sample()
    assert (len(samples.totals), len(history), len(gone)) == (1, 2, 1)
    assert samples.watch(Sampled("q", ("n",), 1, lambda: None)) is history
    assert samples.watch(Sampled("gone", ("n",), 1, lambda: (9,))) is not gone
    clock.now_s += UNWATCHED_S + 1
    await samples.sample()
    assert samples.watch(Sampled("q", ("n",), 1, lambda: (7,))) is not history
    for number in range(WATCHED_MAX + 5):
        clock.now_s += 1
        samples.watch(Sampled(number, ("n",), 1, lambda: (0,)))
    assert len(samples._watched) == WATCHED_MAX
    assert "q" not in samples._watched
    await samples.close()
