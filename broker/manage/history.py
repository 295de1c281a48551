"""The history of some numbers: a ring of samples at equal intervals."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

AGE_MAX_S: Final = 3600
SAMPLES_MAX: Final = 3600  # of one history, whatever the interval


class History:
    """Keeps the samples of the last hour.

    Shapes: a sample has one integer for each of `names`, the first `counters` of which only grow.
    Units: moments are in milliseconds since 1970.
    """

    __slots__ = ("_samples", "_times_ms", "counters", "names")

    def __init__(self, names: Sequence[str], counters: int, interval_ms: int) -> None:
        self.names = tuple(names)
        self.counters = counters
        length = max(2, min(SAMPLES_MAX, AGE_MAX_S * 1000 // interval_ms))
        self._times_ms: deque[int] = deque(maxlen=length)
        self._samples: deque[array[int]] = deque(maxlen=length)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._times_ms)

    def add(self, at_ms: int, values: Sequence[int]) -> None:
        """Add a sample, and drop the oldest one when there are too many."""
        self._times_ms.append(at_ms)
        self._samples.append(array("q", values))

    def last(self, count: int) -> list[tuple[int, list[int]]]:
        """Return up to `count` of the newest samples, the oldest of them first. Cost: O(count)."""
        newest = zip(islice(reversed(self._times_ms), count), islice(reversed(self._samples), count), strict=True)
        return [(time_ms, sample.tolist()) for time_ms, sample in newest][::-1]

    def rates(self, values: Sequence[int], at_ms: int, window_ms: int) -> list[float] | None:
        """Return the rates per second of the first numbers, which read `values` now; None when all are 0 or unknown.

        They are measured since the newest sample that is `window_ms` old, or since the oldest one.
        """
        before: array[int] | None = None
        before_ms = at_ms
        for time_ms, sample in zip(reversed(self._times_ms), reversed(self._samples), strict=True):
            before, before_ms = sample, time_ms
            if at_ms - time_ms >= window_ms:
                break
        if before is None or at_ms <= before_ms:
            return None
        window_s = (at_ms - before_ms) / 1000
        rates = [round((value - earlier) / window_s, 2) for value, earlier in zip(values, before, strict=False)]
        return rates if any(rates) else None

    def details(self, name: str, wanted: SampleRange, now_ms: int) -> dict[str, Any]:
        """Return the samples of one number as RabbitMQ's API shows them: the newest first, with averages.

        Each is the last one up to its moment, 0 before the first.
        """
        place = self.names.index(name)
        values: list[tuple[int, int]] = []
        newest_ms = now_ms - now_ms % wanted.step_ms
        known = list(zip(reversed(self._times_ms), reversed(self._samples), strict=True))
        at = 0
        for back in range(wanted.count):
            time_ms = newest_ms - back * wanted.step_ms
            while at < len(known) and known[at][0] > time_ms:
                at += 1
            values.append((known[at][1][place] if at < len(known) else 0, time_ms))
        numbers = [value for value, _time_ms in values]
        span_s = max(1, (len(values) - 1) * wanted.step_ms) / 1000
        last_s = wanted.step_ms / 1000
        return {
            "avg": sum(numbers) / len(numbers),
            "avg_rate": (numbers[0] - numbers[-1]) / span_s,
            "rate": (numbers[0] - numbers[1]) / last_s if len(numbers) > 1 else 0.0,
            "samples": [{"sample": value, "timestamp": time_ms} for value, time_ms in values],
        }


class SampleRange:
    """The samples that a caller wants: how many, and how far apart."""

    __slots__ = ("count", "step_ms")

    def __init__(self, age_s: int, step_s: int) -> None:
        self.step_ms = step_s * 1000
        self.count = age_s // step_s + 1


def sample_range(query: Mapping[str, str], kind: str) -> SampleRange | None:
    """Return the range of a request's KIND_age and KIND_incr, None if they are missing or invalid.

    Shapes: `kind` is lengths, msg_rates, data_rates or node_stats, as RabbitMQ's page asks.
    """
    age, step = query.get(f"{kind}_age", ""), query.get(f"{kind}_incr", "")
    if not (age.isascii() and age.isdigit() and step.isascii() and step.isdigit()):
        return None
    age_s, step_s = int(age[:9]), int(step[:9])
    if not 0 < step_s <= age_s or age_s // step_s > SAMPLES_MAX:
        return None
    return SampleRange(min(age_s, AGE_MAX_S * 24), step_s)
